"""Faults of the registry under a real daemon: two tables of them, and what is expected of all."""
