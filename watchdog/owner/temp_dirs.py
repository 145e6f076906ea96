"""Removes one temp dir, or reports which rule keeps it.

1. Refuse it unless it is clearly that agent's own temp dir: strictly below one of `cleanup.roots` and on its mount, or
   with our mark; owned by this uid; reached without links; not a mount, root, home, nor a parent of those; with no
   repository inside at any depth, marked or not; and, unless it has our mark (then `run` made it), none around it below
   the root.
2. Keep it, with a message, while another living agent has a directory in it, a process uses it, a socket in it is
   served, or a process holds its lock.
3. Rename it into the trash next to it: one step, so a killed run leaves it complete in one place or the other.
4. Delete it from the trash in rounds of `ROUND` entries, with pauses for others that need the disk, for `SECONDS` per
   call; the rest is deleted in later calls.

A second run continues with what it finds in the trash. It must not touch any directory that it was not given.

Tests: tests/owner/hooks/test_temp_dir.py, tests/owner/finders/test_temp_dirs.py.
"""

import os
import stat
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from watchdog import file_identity
from watchdog.core import hooks, sites
from watchdog.core.hooks import HookResult
from watchdog.errors import PathRefused
from watchdog.owner import occupancy, paths, trash
from watchdog.owner import sites as site_now
from watchdog.owner.git import repositories

MARK = ".agent-watchdog"  # a file in the directory that contains the agent's id
SUFFIX = ".temp"  # of a container in the trash next to a temp dir; its content is only to be deleted
ROUND = 10_000  # entries deleted at a time: 1 s on a busy disk
PAUSE = 0.02  # seconds between two rounds
SECONDS = 15.0  # for the rounds of one call, out of a hook's 60

InUse = Sequence[tuple[str, str]]  # HookContext.in_use


@dataclass(frozen=True, slots=True)
class TempDir:
    """The directory to be removed; nothing in it may have changed in the last `unchanged_for` seconds."""

    path: str
    holder: str  # the agent's id, or a vendor's session id
    in_use: InUse = ()
    unchanged_for: float = 0.0
    known: sites.KnownSite = sites.UNKNOWN
    used_by: str | None = None  # `HookContext.used_by`

    @property
    def container(self) -> str:
        """Its name in the trash."""
        return paths.checked_agent_id(self.holder) + SUFFIX


def remove(what: TempDir, settings: hooks.CleanupSettings) -> HookResult:
    """Remove it by the rules in the module's docstring. `details["more"]`: it was moved, but not all of it is deleted.

    Raises OSError for failures that a later try may overcome.
    """
    try:
        return _remove(what, settings)
    except PathRefused as refused:
        return hooks.kept(f"refused: {refused}", refused=refused.reason)


def mark(directory: int) -> str | None:
    """The content of the directory's mark; None without one. A FIFO or a link of that name is not a mark."""
    try:
        fd = os.open(MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return None
        return os.read(fd, 256).decode("utf-8", "replace").strip()
    finally:
        os.close(fd)


def root_above(path: str, roots: Sequence[str]) -> str | None:
    """The configured root that the path lies strictly below, compared by full names."""
    names = paths.components(path)
    for root in roots:
        above = [name for name in root.split("/") if name]
        if above and len(names) > len(above) and names[: len(above)] == above:
            return "/" + "/".join(above)
    return None


def _refuse_foreign(directory: int, parent: int, what: TempDir, settings: hooks.CleanupSettings) -> None:
    """Raise PathRefused unless the open directory may be removed for this agent."""
    path, home = what.path, os.environ.get("HOME", "/")
    if file_identity.file_id(directory) in paths.ancestors(["/", home, *settings.roots, *settings.protected]):
        raise PathRefused("protected", f"{path} is a root, a home, or holds one")
    paths.refuse_unless_plain(directory, parent, path)
    marked = mark(directory)
    if marked is not None:
        if marked != what.holder:
            raise PathRefused("other_agent", f"{path} carries the mark of another agent")
        return
    site_now.refuse_stranger(directory, what.known, path)
    root = root_above(path, settings.roots)
    if root is None:
        raise PathRefused("outside_roots", f"{path} lies below none of cleanup.roots and does not carry our mark")
    if not _on_mount_of(root, parent):
        raise PathRefused("other_mount", f"{path} lies on another mount than {root}, and does not carry our mark")
    # The root itself is not checked: any user may make a .git in /tmp, and then no temp dir would ever be removed.
    between = len(paths.components(path)) - len(paths.components(root)) - 1
    if above := repositories.around(parent, between):
        raise PathRefused("repository", f"{path} lies in the repository {above}")


def _on_mount_of(root: str, directory: int) -> bool:
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return file_identity.mount_id(fd) == file_identity.mount_id(directory)
    finally:
        os.close(fd)


def _refuse_contents(directory: int, what: TempDir, limit: int, *, opening: bool) -> None:
    """Raise PathRefused if it contains a repository, a served socket or a young file, or cannot be checked for them."""
    path, young = what.path, time.time() - what.unchanged_for

    def notice(inside: int, entry: os.DirEntry[str]) -> None:
        plain = entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False) or entry.is_symlink()
        if not plain and occupancy.served(inside, entry.name):
            raise PathRefused("socket", f"a socket in it is in use: {entry.name!r}")
        if what.unchanged_for and changed(os.stat(entry.name, dir_fd=inside, follow_symlinks=False)) > young:
            raise PathRefused("young", f"{entry.name!r} in it was changed less than {what.unchanged_for:.0f} s ago")

    if what.unchanged_for and changed(os.fstat(directory)) > young:
        raise PathRefused("young", f"{path} was changed less than {what.unchanged_for:.0f} s ago")
    try:
        place = repositories.inside(directory, limit, notice, opening=opening)
    except FileNotFoundError as gone:
        raise PathRefused("changing", f"{path}: {gone.filename!r} went away while it was looked through") from None
    except PathRefused as unknown:
        raise PathRefused(unknown.reason, f"{path}: {unknown}") from None
    if place is not None:
        raise PathRefused("repository", f"a repository lies in {path}: {place}")


def changed(status: os.stat_result) -> float:
    """The time of its last change, by its own stamps: seconds since the epoch."""
    return max(status.st_mtime, status.st_ctime)


def reason_to_keep(what: TempDir, settings: hooks.CleanupSettings, limit: int) -> tuple[str, str] | None:
    """A word and a sentence why `remove` would keep it; None if there is no reason, or it does not exist.

    It changes nothing, not even a ctime, which would make the directory young for `remove`. Checks only `limit`
    entries. Raises OSError.
    """
    with ExitStack() as stack:
        try:
            parent, name = paths.open_parent(what.path, root_above(what.path, settings.roots) or "/")
            stack.callback(os.close, parent)
            directory = paths.step(parent, name)
            stack.callback(os.close, directory)
            user = _user(stack, directory, parent, what, settings, limit, opening=False)
        except FileNotFoundError:
            return None
        except PathRefused as refused:
            return None if refused.reason == "too_large" else (refused.reason, str(refused))
    return ("in_use", user) if user else None


def _user(
    stack: ExitStack,
    directory: int,
    parent: int,
    what: TempDir,
    settings: hooks.CleanupSettings,
    limit: int = repositories.ENTRIES_LIMIT,
    *,
    opening: bool = True,
) -> str | None:
    """Describe what uses it; None: nothing. Raises PathRefused if it must not be touched. Holds its lock during
    `stack`.
    """
    _refuse_foreign(directory, parent, what, settings)
    locked = paths.readable(directory)
    stack.callback(os.close, locked)
    if user := occupancy.neighbour(paths.real_path(directory), what.in_use):
        return f"in use: {user}"
    if not occupancy.lock(locked):
        return f"a process holds a lock on {what.path}"
    if user := what.used_by or occupancy.occupant(paths.real_path(directory), by_name=True):
        return f"in use: {user}"
    _refuse_contents(directory, what, limit, opening=opening)
    return None


def _remove(what: TempDir, settings: hooks.CleanupSettings) -> HookResult:
    path, freed = what.path, trash.Freed()
    with ExitStack() as stack:
        try:
            parent, name = paths.open_parent(path, root_above(path, settings.roots) or "/")
        except FileNotFoundError:
            return hooks.nothing(f"{path} is not there")
        stack.callback(os.close, parent)
        earlier = delete(parent, what.container, freed)
        try:
            directory = paths.step(parent, name)
        except FileNotFoundError:
            return report(path, freed) if earlier else hooks.nothing(f"{path} is not there")
        stack.callback(os.close, directory)
        if freed.more or freed.problems:
            return report(path, freed)  # an earlier one of that name comes first
        if user := _user(stack, directory, parent, what, settings):
            return hooks.kept(user)
        container = trash.use_trash(parent, lambda bin_fd: trash.open_trash(bin_fd, what.container))
        stack.callback(os.close, container)
        taken = trash.squatted(parent, trash.beside_name(parent))
        user = trash.take(parent, name, container, directory)
        delete(parent, what.container, freed)
    return hooks.kept(f"in use: {user}") if user else report(path, freed, taken)


def delete(parent: int, container: str, freed: trash.Freed) -> bool:
    """Delete one container from the trash in `parent`, as far as one call may. False when there was none."""
    until = time.monotonic() + SECONDS
    try:
        bin_fd = trash.open_trash(parent, trash.beside_name(parent), create=False)
    except FileNotFoundError:
        return False
    try:
        os.stat(container, dir_fd=bin_fd, follow_symlinks=False)
        while not trash.remove_container(bin_fd, container, freed, ROUND):
            if not freed.more or time.monotonic() >= until:
                break
            time.sleep(PAUSE)
    except FileNotFoundError:
        return False
    finally:
        os.close(bin_fd)
        trash.drop_if_empty(parent, trash.beside_name(parent))
    return True


def report(path: str, freed: trash.Freed, taken: str | None = None) -> HookResult:
    """The result of a round, as text and figures. `taken`: describes another user's file at the trash's usual name."""
    figures: dict[str, object] = {"bytes": freed.bytes, "inodes": freed.inodes, "entries": freed.entries}
    counted = f"{freed.entries} entries, {freed.inodes} inodes and {freed.bytes} bytes freed"
    counted += f" ({taken})" if taken else ""
    if freed.problems:
        why = "; ".join(freed.problems)
        return hooks.failed(f"{path} is in the trash, but could not be deleted: {why}", reason=freed.reason, **figures)
    if freed.more:
        return hooks.done(f"moved {path} to the trash; {counted}, the rest goes in later rounds", more=True, **figures)
    return hooks.done(f"removed {path}: {counted}", **figures)
