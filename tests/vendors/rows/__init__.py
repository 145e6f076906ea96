"""The steps, program by program."""
