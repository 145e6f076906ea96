"""Runs the cleanup hooks of an ended agent: journaled in the registry, with deadlines and retries."""
