"""What the kernel says of processes, and the only way to signal them.

    bounded   which functions read files of single processes, each of which may hang
    reader    the child that carries them out, and how it is asked
    reader_main  that child: threads that may be left to a read
    procfs    the reads themselves, and the fields of what they give
    identity  which process is this, and is it still there (pidfd, else raw /proc)
    pidfd_info  what a pidfd alone tells
    exits     how did it end
    table     one scan
    survey    what one scan says of all agents
    tree      one scan of /proc for all agents, and which process belongs to which of them
    vendors   whose a value of a vendor's marker is
    memory    what of a tree is remembered from one scan to the next
    signals   the one guarded send
    cgroups   control groups, raw: who is in one, freeze and thaw, what the kernel counted
    evidence  a bounded picture of a tree for the history

Nothing outside this package reads /proc or holds a pidfd that it did not get here.
"""
