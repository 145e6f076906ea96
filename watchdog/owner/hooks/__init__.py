"""The built-in hooks, one file each. A new one is one file and one line in this table."""

from watchdog.owner.hooks.base import Hook
from watchdog.owner.hooks.git_locks import git_locks
from watchdog.owner.hooks.pane import pane
from watchdog.owner.hooks.registry_entry import registry_entry
from watchdog.owner.hooks.temp_dir import temp_dir
from watchdog.owner.hooks.worktree import worktree

BUILT_IN: dict[str, Hook] = {
    "pane": pane,
    "git_locks": git_locks,
    "worktree": worktree,
    "temp_dir": temp_dir,
    "registry_entry": registry_entry,
}
