"""Crash-safety and races of the kill: daemons that die or stop at every effect, beats that come at every point."""
