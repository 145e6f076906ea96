"""Identifies the directory that is now at an agent's worktree or temp dir path; see `core.sites`.

Git is not run: its pointers are read directly. No link is followed, and nothing is changed.
"""

import os
from contextlib import suppress

from watchdog import file_identity
from watchdog.core.sites import KnownSite, Made, Site, site_json, stranger
from watchdog.errors import PathRefused
from watchdog.owner import paths
from watchdog.owner.git.git import dirs_of

HEAD_LIMIT = 4096  # bytes


def site(path: str) -> dict[str, object] | None:
    """A helper call: the directory at that path; None if there is none, or none that a hook would touch.

    Raises OSError.
    """
    try:
        directory = paths.open_directory(path)
    except (FileNotFoundError, PathRefused):
        return None
    try:
        return site_json(seen(directory))
    finally:
        os.close(directory)


def refuse_stranger(directory: int, known: KnownSite, path: str) -> None:
    """Raise PathRefused (`stranger`) if the open directory is not the one that the agent had there."""
    why = stranger(known, seen(directory))
    if why is not None:
        raise PathRefused("stranger", f"{path}: {why}")


def seen(directory: int) -> Site:
    """The site of an open directory. Raises OSError."""
    top = f"/proc/self/fd/{directory}"
    lies, when = _made(directory)
    entry: Made | None = None
    branch = where = None
    if os.path.isfile(f"{top}/.git") and not os.path.islink(f"{top}/.git"):
        with suppress(OSError, PathRefused):
            own, common = dirs_of(paths.real_path(directory))
            if own != common:
                fd = os.open(own, paths.STEP & ~os.O_NOFOLLOW)
                try:
                    entry, began = _made(fd)
                finally:
                    os.close(fd)
                branch, where = _branch(os.path.join(own, "HEAD")), os.path.realpath(common)
                # `commondir` is written when the entry is made, `gitdir` also by `git worktree move` and `repair`.
                when = max(
                    when, began, *(os.stat(os.path.join(own, name)).st_mtime for name in ("commondir", "gitdir"))
                )
    with suppress(OSError):
        return Site(lies, entry, branch, when, where if entry is not None else None, above(directory))
    return Site(lies, entry, branch, when)


def above(directory: int) -> Made:
    """Its parent directory. Raises OSError."""
    parent = os.open("..", paths.STEP, dir_fd=directory)
    try:
        return made(parent)
    finally:
        os.close(parent)


def made(fd: int) -> Made:
    """The identity of an open directory. Raises OSError."""
    return _made(fd)[0]


def _made(fd: int) -> tuple[Made, float]:
    """Its identity, and its birth time in seconds: 0 if the file system does not report it."""
    born = file_identity.born(fd)
    return (os.fstat(fd).st_ino, born), 0.0 if born is None else born / 1e9


def _branch(head: str) -> str | None:
    fd = os.open(head, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        words = os.fsdecode(file.read(HEAD_LIMIT)).rstrip("\n")
    return words.removeprefix("ref: ") if words.startswith("ref: ") else None
