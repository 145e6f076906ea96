"""The HTTP client of a control socket, where such sockets lie, and which daemon holds a process.

For the CLI, for a daemon that asks another one, and for the helpers of owners.
"""
