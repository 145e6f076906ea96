"""The daemon process: command line, wiring, main loop, recovery, reload, shutdown order."""
