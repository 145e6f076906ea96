"""Git without running foreign code: worktrees, locks, branches, rescue, trash and restore."""
