"""Agents that other programs' registries, a `run`, or another daemon report: import, match, close stale entries."""
