"""Cleans up what dead agents left behind, every 10 minutes, and deletes old rows from the registry."""
