"""Terminals that an agent may sit in, one file each: find the pane, type into it."""
