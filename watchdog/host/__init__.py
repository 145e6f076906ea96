"""This machine: service manager, instance lock, child processes, descriptor limit, reserved disk space, clock steps."""
