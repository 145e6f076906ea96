"""What the kernel says of processes, and the only way to signal them.

    identity  which process is this, and is it still there (raw /proc and pidfd)
    exits     how did it end
    tree      one scan of /proc for all agents, and which process belongs to which of them
    vendors   whose a value of a vendor's marker is
    memory    what of a tree is remembered from one scan to the next
    signals   the one guarded send
    cgroups   control groups, raw: who is in one, freeze and thaw, what the kernel counted
    evidence  a bounded picture of a tree for the history

Nothing outside this package reads /proc or holds a pidfd that it did not get here.
"""
