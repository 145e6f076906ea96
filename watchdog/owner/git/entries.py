"""Removes git's entry of one worktree, `<common>/worktrees/NAME`, from git's list by one rename.

`git worktree remove PATH` does the same, but it also checks what is at PATH and deletes it, by name, if it is clean. A
lock whose maker is proved to have exited is removed first (`worktree_locks`).
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from watchdog.errors import OwnerCallFailed
from watchdog.owner import paths, trash
from watchdog.owner.git import worktree_locks


def take_out(place: str, path: str, into: int, name: str, is_it: Callable[[int], bool] = lambda _: True) -> str:
    """Rename the entry `place`, whose worktree was at `path`, to `name` in the open directory `into`.

    Returns why its lock was stale, or nothing. `is_it` checks the entry after it was renamed away. Raises
    OwnerCallFailed if it was locked, its path was taken, or the entry was exchanged meanwhile; then it is put back.
    """
    if os.path.lexists(path):
        raise _taken(path)
    unlocked = _drop_lock(place)
    if _is_locked(place):
        raise _locked()
    os.rename(place, name, dst_dir_fd=into)
    problem = None
    if _is_locked(os.path.join(paths.real_path(into), name)):
        problem = _locked()
    elif os.path.lexists(path):
        problem = _taken(path)
    elif not _asked(into, name, is_it):
        problem = OwnerCallFailed("changed", f"git's entry of {path} was made again meanwhile")
    if problem is not None:
        os.rename(name, place, src_dir_fd=into)
        raise problem
    trash.sync(into)
    drop_list_if_empty(os.path.dirname(place))
    return unlocked


def drop_list_if_empty(entries: str) -> None:
    """Remove `<common>/worktrees` when its last entry is gone, as git does."""
    with contextlib.suppress(OSError):  # others have entries there, or it is gone
        os.rmdir(entries)


def _taken(path: str) -> OwnerCallFailed:
    return OwnerCallFailed("changed", f"something was put at {path} meanwhile")


def _locked() -> OwnerCallFailed:
    return OwnerCallFailed("locked", "the worktree was locked meanwhile")


def _asked(into: int, name: str, is_it: Callable[[int], bool]) -> bool:
    entry = paths.step(into, name)
    try:
        return is_it(entry)
    finally:
        os.close(entry)


def _is_locked(entry: str) -> bool:
    """Whether git considers it locked (git-worktree(1), lock)."""
    return os.path.lexists(os.path.join(entry, "locked"))


def _drop_lock(place: str) -> str:
    """Remove a lock whose maker is proved to have exited, and return the reason; any other lock stays."""
    lock = os.path.join(place, "locked")
    with contextlib.suppress(FileNotFoundError):
        ended = worktree_locks.ended_maker(Path(lock).read_text("utf-8", "replace"), place)
        if ended:
            os.unlink(lock)
        return ended
    return ""
