"""The HTTP client for control sockets, where such sockets are found, and which daemon watches a process.

Used by the CLI, by a daemon that asks another one, and by the owners' helpers.
"""
