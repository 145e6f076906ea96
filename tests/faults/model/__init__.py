"""The kill worker against a model of it: random families of real processes."""
