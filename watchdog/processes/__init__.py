"""What the kernel reports about processes, and the only way to signal them (`signals.send`).

No other package reads files of single processes, or holds a pidfd that it did not get here.
"""
