"""All that touches an owner's files, git or terminals. It runs as that owner's uid, in a process that can be ended.

    helper      the process: JSON lines in and out, one call table
    confinement  what a helper may not do: privileges, system calls, files, memory
    parsing     what parses foreign data, in a child that sees nothing else
    contained   a piece of work in a child, with a deadline that ends its whole tree
    command     a command hook, run contained
    paths       directories opened component by component, without following links; mounts
    proc_files  reads of single processes' files, each of which may hang
    occupancy   who has a cwd, an open file, a socket or a lock below a directory
    session_dirs  temp dirs of vendors' sessions, and which session may live
    environments  what this uid started a process with; nothing that another uid chose
    conversations  which conversation a process is in
    purging     its files, to the trash
    temp_leftovers, lock_leftovers, task_leftovers  the finders of temp dirs, locks, and apra-fleet's tasks
    temp_dirs   one temp dir, removed in rounds
    hindrances  what a full disk and its kin are called, and told as
    trash       rename aside, delete from there
    copying     copies of small trees
    untouched   whether anybody changed anything in a worktree since a former look
    git         git's plumbing, with everything that runs foreign programs off
    gits        which living git works where, who holds a lock file
    git_locks   lock files of a dead git, moved aside
    worktrees   what git and the disk say of one linked worktree
    tree_locks  whose lock of one is none: its maker is proved to have ended
    missing     git's entry of one whose directory was deleted
    held        what git holds for one worktree alone
    rescue      a verified copy of its work in its repository
    containers  the trash of a repository's worktrees
    branches    what becomes of its branch
    restoring   brings it back
    emptying    deletes what lay long enough in that trash
    leftovers   what dead agents have left here: one finder a kind, looked at first, acted on one by one
    sockets     those that a killed `run` has left
    findings    what is found there, and what the daemon knows: values
    terminals/  panes that agents sit in: tmux, kitty, wezterm
    sources/    other programs' registries of agents: read, and one entry put in order
    hooks/      the built-in cleanup hooks

Nothing here is imported by the daemon but `hooks.base`, `sources.base` and `findings` (values) and the table of
sources. It imports core and errors only, and decides nothing about another uid's process or path.
"""
