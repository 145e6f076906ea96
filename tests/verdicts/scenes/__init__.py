"""Scenes, a file for each kind of situation."""
