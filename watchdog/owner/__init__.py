"""All that touches an owner's files, git or terminals. It runs as that owner's uid, in a process that can be ended.

    helper      the process: JSON lines in and out, one call table
    contained   a piece of work in a child, with a deadline that ends its whole tree
    command     a command hook, run contained
    paths       directories opened component by component, without following links; mounts
    occupancy   who has a cwd, an open file, a socket or a lock below a directory
    trash       rename aside, delete from there
    git         git's plumbing, with everything that runs foreign programs off
    worktrees   what git and the disk say of one linked worktree
    hooks/      the built-in cleanup hooks

Nothing here is imported by the daemon but `hooks.base` (values). It imports core and errors only, and decides nothing
about another uid's process or path.
"""
