"""Git without running anything foreign: worktrees, locks, branches, rescue, trash and restore."""
