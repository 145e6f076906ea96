"""Tests of `watchdog.processes`, on real processes."""
