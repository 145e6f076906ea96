"""Agents reported by other programs' registries, a `run`, or another daemon: import, match, close stale entries."""
