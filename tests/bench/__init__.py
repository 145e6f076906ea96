"""Figures: `make bench` (tests/bench/run.py) and what it is made of. Never a gate."""
