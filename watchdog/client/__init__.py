"""The HTTP client of a control socket, and where such sockets lie: for the CLI, and a daemon that asks another."""
