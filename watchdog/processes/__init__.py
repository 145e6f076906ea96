"""What the kernel says of processes, and the only way to signal them (`signals.send`).

Nothing outside this package reads files of single processes, or holds a pidfd that it did not get here.
"""
