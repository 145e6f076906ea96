"""Finds repositories inside a directory, at any depth, or around it.

Only git knows what a repository holds, so this is checked before a directory is deleted. It works by descriptors,
without following links, with few of them open at any depth. It changes nothing except the mode of an own directory that
it could not list, which it restores.

Tests: tests/owner/hooks/test_temp_dir.py.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from watchdog import file_identity
from watchdog.errors import PathRefused
from watchdog.owner import paths

# Names checked; more cannot be checked within a hook's deadline (a busy disk lists 100,000 a second).
ENTRIES_LIMIT = 4_000_000
LISTING = 0o500  # mode bits that the owner needs to list a directory and to look up names in it
# Names that together make a directory a git dir (gitrepository-layout(5)); the second is a linked worktree's entry.
GIT_DIRS = (frozenset({"HEAD", "objects", "refs"}), frozenset({"HEAD", "commondir"}))
POINTER = ".git"  # a checkout's git dir, or the file that names it (worktree, submodule)
# Other systems (jj, Mercurial, Subversion, Breezy, Darcs, Pijul, Fossil): only their own programs know what they hold.
OTHERS = frozenset({".jj", ".hg", ".svn", ".bzr", "_darcs", ".pijul", ".fslckout", "_FOSSIL_"})
POINTERS = OTHERS | {POINTER}


@dataclass(slots=True)
class _Level:
    """One directory on the way down, and its subdirectories still to visit."""

    name: str
    file_id: file_identity.FileId
    below: list[str]


Notice = Callable[[int, os.DirEntry[str]], None]  # the directory's descriptor and one entry of it


def inside(
    directory: int, limit: int = ENTRIES_LIMIT, notice: Notice | None = None, *, opening: bool = True
) -> str | None:
    """The path of the first repository, relative to `directory` (`.` for itself); None if there is none.

    Raises PathRefused if it has more than `limit` names, a part cannot be read or is on another mount, or it changes
    meanwhile. `notice` is called with each entry on the way, and may raise. Without `opening` an own directory that
    cannot be listed is skipped: changing its mode temporarily would change its ctime.
    """
    levels: list[_Level] = []
    current, seen, name = os.dup(directory), 0, "."
    with ExitStack() as opened:
        try:
            while True:
                levels.append(_Level(name, file_identity.file_id(current), []))
                found = False
                if opening or not _is_closed(os.fstat(current)):
                    _open_up(current, opened)
                    found, seen = _look(current, levels[-1], seen, limit, notice)
                if found:
                    return "/".join(level.name for level in levels[1:]) or "."
                below = None
                while below is None:
                    while not levels[-1].below:
                        levels.pop()
                        if not levels:
                            return None
                        current = _replaced(current, _up(current, levels[-1]))
                    name = levels[-1].below.pop()
                    below = _down(current, name)
                    if not opening and _is_closed(os.fstat(below)):  # from such a directory only root could go up again
                        os.close(below)
                        below = None
                current = _replaced(current, below)
        finally:
            os.close(current)


def around(parent: int, levels: int) -> str | None:
    """The nearest checkout or git dir among `parent` and its `levels` - 1 next parents; None if there is none."""
    current = os.dup(parent)
    try:
        for _ in range(levels):
            if any(_has(current, name) for name in POINTERS) or any(
                all(_has(current, name) for name in names) for names in GIT_DIRS
            ):
                return paths.real_path(current)
            current = _replaced(current, os.open("..", paths.STEP, dir_fd=current))
    finally:
        os.close(current)
    return None


def _has(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new


def _is_closed(status: os.stat_result) -> bool:
    """Whether it is our own but we may not list it."""
    return status.st_mode & LISTING != LISTING and status.st_uid == os.geteuid()


def _open_up(directory: int, opened: ExitStack) -> None:
    """Make a directory of our own listable until `opened` is closed, which restores its mode."""
    status = os.fstat(directory)
    if not _is_closed(status):
        return
    kept = os.dup(directory)
    opened.callback(os.close, kept)
    # An O_PATH descriptor takes no fchmod; its /proc name does (open(2)).
    place, mode = f"/proc/self/fd/{kept}", stat.S_IMODE(status.st_mode)
    os.chmod(place, mode | LISTING)
    opened.callback(os.chmod, place, mode)


def _look(directory: int, level: _Level, seen: int, limit: int, notice: Notice | None) -> tuple[bool, int]:
    """Whether this directory is a git dir or a checkout; records its subdirectories."""
    telling: set[str] = set()
    with _listed(directory, level.name) as entries:
        for entry in entries:
            seen += 1
            if seen > limit:
                raise PathRefused("too_large", f"too large to look through: more than {limit} entries lie in it")
            if entry.name in POINTERS:
                return True, seen
            if any(entry.name in names for names in GIT_DIRS):
                telling.add(entry.name)
            if notice is not None:
                notice(directory, entry)
            if entry.is_dir(follow_symlinks=False):
                level.below.append(entry.name)
    return any(names <= telling for names in GIT_DIRS), seen


@contextmanager
def _listed(directory: int, name: str) -> Iterator[Iterator[os.DirEntry[str]]]:
    try:
        fd = paths.readable(directory)
    except PermissionError:
        raise PathRefused("unreadable", f"cannot be looked through: {name!r} in it may not be listed") from None
    try:
        with os.scandir(fd) as entries:
            yield entries
    finally:
        os.close(fd)


def _down(directory: int, name: str) -> int:
    try:
        return paths.step_inside(directory, name)
    except FileNotFoundError:
        raise PathRefused("changing", f"{name!r} in it went away while it was looked through") from None
    except PermissionError:
        raise PathRefused("unreadable", f"cannot be looked through: {name!r} in it may not be entered") from None


def _up(directory: int, level: _Level) -> int:
    """The directory that we came from; PathRefused if it is another one now."""
    above = os.open("..", paths.STEP, dir_fd=directory)
    if file_identity.file_id(above) != level.file_id:
        os.close(above)
        raise PathRefused("changing", f"{level.name!r} in it was moved while it was looked through")
    return above
