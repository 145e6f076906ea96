"""What the kernel says of processes, and the only way to signal them.

    identity  which process is this, is it still there, how did it end (raw /proc and pidfd)
    tree      one scan of /proc for all agents, and which process belongs to which of them
    signals   the one guarded send
    evidence  a bounded picture of a tree for the history

Nothing outside this package reads /proc or holds a pidfd that it did not get here.
"""
