"""Trash: a private directory next to the file, on the same file system, and deletion from it.

Everything is done relative to descriptors. Deleting never descends more than one level: a subdirectory is first renamed
up next to its parent, so depth costs neither recursion nor descriptors, and a killed run can simply be continued.
This module must be used only on trash that `open_trash` opened.

Tests: tests/owner/hooks/test_temp_dir.py, tests/owner/hooks/test_worktree.py.
"""

import contextlib
import errno
import itertools
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from watchdog import file_identity
from watchdog.errors import PathRefused
from watchdog.owner import occupancy, os_errors, paths

PRIVATE = 0o700
TREE = "tree"
Result = TypeVar("Result")


def beside_name(parent: int | str) -> str:
    """The name of this uid's trash in `parent`, which may be a directory that others can write to, such as /tmp.

    Another user may take the usual name there first; then one with a random suffix is made instead, and found again by
    what no other user can make: a directory of this uid's own with mode 0700. If there is no trash, the name to make.
    """
    usual = f".agent-watchdog-trash-{os.geteuid()}"
    try:
        top = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if isinstance(parent, str) else os.dup(parent)
    except OSError:
        return usual
    try:
        if _is_own(top, usual):
            return usual
        with contextlib.suppress(OSError):  # unreadable
            names = sorted(name for name in _all_names(top) if name.startswith(f"{usual}-"))
            if made := next((name for name in names if _is_own(top, name)), None):
                return made
        # Checked once: another run of ours may make or remove the usual one right now.
        return f"{usual}-{os.urandom(8).hex()}" if _is_taken(top, usual) else usual
    finally:
        os.close(top)


def squatted(parent: int, name: str) -> str | None:
    """Describe who has taken the usual name of this uid's trash, if `name` had to be used instead."""
    usual = f".agent-watchdog-trash-{os.geteuid()}"
    if name == usual:
        return None
    try:
        uid = os.stat(usual, dir_fd=parent, follow_symlinks=False).st_uid
    except OSError:
        return None  # it is gone by now
    return f"its trash is {name}, since {usual} there, uid {uid}'s, is no private directory of uid {os.geteuid()}"


def _all_names(directory: int) -> list[str]:
    fd = paths.readable(directory)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


def _is_taken(parent: int, name: str) -> bool:
    """Whether another user has taken that name, or that cannot be determined."""
    try:
        return not _is_private(os.stat(name, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _is_own(parent: int, name: str) -> bool:
    try:
        return _is_private(os.stat(name, dir_fd=parent, follow_symlinks=False))
    except OSError:
        return False


def _is_private(found: os.stat_result) -> bool:
    """Whether it is a directory of this uid's own, closed to others."""
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def open_trash(parent: int, name: str, *, create: bool = True) -> int:
    """A private directory of this uid in `parent`. Raises FileNotFoundError (`create` False), PathRefused, OSError.

    In /tmp another user may have taken that name first: a link, or a directory that is not ours or open to others, is
    refused.
    """
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, PRIVATE, dir_fd=parent)
    fd = paths.step(parent, name)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(fd)
        raise PathRefused("trash", f"the trash {name} is not this uid's own, or others may enter it")
    return fd


def use_trash(parent: int, act: Callable[[int], Result]) -> Result:
    """Call `act` on this uid's trash in `parent`, making it if needed. Raises as `open_trash`, and what `act` raises.

    Retries, because another run of the same uid removes the trash as soon as it is empty, maybe between our making and
    using it, and another user may take its name between our choosing and making it.
    """
    for left in reversed(range(50)):
        try:
            fd = open_trash(parent, beside_name(parent))
        except (FileNotFoundError, PathRefused):
            if not left:
                raise
            continue
        try:
            return act(fd)
        except FileNotFoundError:
            if not left:
                raise
        finally:
            os.close(fd)
    raise AssertionError


def write_json(directory: int, name: str, value: object) -> None:
    """Write a small file so that it is complete or absent, even after a power cut."""
    temporary = name + ".new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        data = memoryview(json.dumps(value, indent=1).encode())
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    except OSError:  # a full disk leaves a partial file
        os.unlink(temporary, dir_fd=directory)
        raise
    finally:
        os.close(fd)
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    sync(directory)


def read_json(directory: int, name: str) -> dict[str, object] | None:
    """The content of a file that `write_json` wrote, or None when there is none of this uid's own."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size > 65536:
            return None
        value = json.loads(os.read(fd, 65536))
    except (ValueError, RecursionError):
        return None
    finally:
        os.close(fd)
    return value if isinstance(value, dict) else None


def take(parent: int, name: str, container: int, directory: int) -> str | None:
    """Rename the checked directory into the trash. If a process now uses it, put it back and return its description."""
    os.rename(name, TREE, src_dir_fd=parent, dst_dir_fd=container)
    sync(parent)
    # The name may mean another directory since the check; the inode cannot.
    moved = os.stat(TREE, dir_fd=container, follow_symlinks=False)
    same = (moved.st_dev, moved.st_ino) == file_identity.file_id(directory)
    user = occupancy.occupant(paths.real_path(directory)) if same else None
    if same and user is None:
        return None
    os.rename(TREE, name, src_dir_fd=container, dst_dir_fd=parent)
    if not same:
        raise PathRefused("exchanged", f"{name} was replaced while it was examined")
    return user


def sync(directory: int) -> None:
    """Make renames in a directory durable, if it is readable."""
    try:
        fd = paths.readable(directory)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@dataclass(slots=True)
class Freed:
    """What a deletion freed, and what it could not delete. `more`: it stopped at its limit and can be continued."""

    bytes: int = 0
    entries: int = 0
    inodes: int = 0
    more: bool = False
    problems: list[str] = field(default_factory=list)
    reason: str | None = None  # of the first problem, one word

    def count(self, status: os.stat_result) -> None:
        """Count one deleted entry; a file that still has another name frees nothing."""
        self.entries += 1
        if status.st_nlink == 1 or stat.S_ISDIR(status.st_mode):
            self.inodes += 1
            self.bytes += status.st_blocks * 512

    def problem(self, name: str, why: OSError | PathRefused, parent: int) -> None:
        """Remember the first few problems: many undeletable files must not fill a log."""
        if len(self.problems) >= 5:
            return
        word, words = (why.reason, str(why)) if isinstance(why, PathRefused) else os_errors.explain(why, parent, name)
        self.reason = self.reason or word
        self.problems.append(f"{name}: {words}")


def _names(directory: int, without: set[str]) -> list[str]:
    """At most 10,000 names at a time, so that a directory of a million files costs no memory."""
    fd = paths.readable(directory)
    try:
        with os.scandir(fd) as entries:
            return list(itertools.islice((entry.name for entry in entries if entry.name not in without), 10_000))
    finally:
        os.close(fd)


class _Enough(Exception):
    """The limit of this round is reached."""


class Emptying:
    """Deletes the content of `container`, a directory in the trash; what cannot be deleted stays and is reported.

    `limit`: after that many entries it stops and sets `freed.more`, for a later round to continue.
    """

    def __init__(self, container: int, freed: Freed, limit: int | None = None) -> None:
        self._container = container
        self._freed = freed
        self._left = limit
        self._number = 0

    def run(self) -> None:
        """Run until nothing is left, only undeletable entries are left, or the limit is reached."""
        self._freed.more = False
        stuck: set[str] = set()
        try:
            while names := _names(self._container, stuck):
                for name in names:
                    if not self._delete(self._container, name):
                        stuck.add(name)
        except _Enough:
            self._freed.more = True

    def _delete(self, parent: int, name: str) -> bool:
        """Delete one entry; a directory that is not directly in the container is renamed up into it."""
        if self._left is not None:
            if self._left == 0:
                raise _Enough
            self._left -= 1
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                os.unlink(name, dir_fd=parent)
            elif parent == self._container:
                if not self._delete_directory(name):
                    return False
            else:
                self._raise_up(parent, name)
                return True
        except FileNotFoundError:
            return True
        except (OSError, PathRefused) as error:
            self._freed.problem(name, error, parent)
            return False
        self._freed.count(status)
        return True

    def _delete_directory(self, name: str) -> bool:
        directory = self._writable(self._container, name)
        stuck: set[str] = set()
        try:
            while names := _names(directory, stuck):
                stuck.update(inner for inner in names if not self._delete(directory, inner))
        finally:
            os.close(directory)
        if not stuck:
            os.rmdir(name, dir_fd=self._container)
        return not stuck

    def _writable(self, parent: int, name: str) -> int:
        """Open the directory, on the trash's own mount; a read-only one (module caches) is made writable first."""
        directory = paths.step_inside(parent, name)
        try:
            mode = os.fstat(directory).st_mode
            if mode & PRIVATE != PRIVATE:
                # An O_PATH descriptor takes no fchmod; its /proc name does (open(2)).
                os.chmod(f"/proc/self/fd/{directory}", PRIVATE)
        except BaseException:
            os.close(directory)
            raise
        return directory

    def _raise_up(self, parent: int, name: str) -> None:
        os.close(self._writable(parent, name))
        while True:
            self._number += 1
            try:
                os.rename(name, f"d{self._number}", src_dir_fd=parent, dst_dir_fd=self._container)
            except OSError as error:
                # Left by a killed run: take the next number.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                return


def remove_container(trash: int, name: str, freed: Freed, limit: int | None = None) -> bool:
    """Delete one container of the trash. True when it is gone or did not exist; `limit` as in `Emptying`."""
    try:
        container = paths.step_inside(trash, name)
    except FileNotFoundError:
        return True
    try:
        Emptying(container, freed, limit).run()
    finally:
        os.close(container)
    if freed.problems or freed.more:
        return False
    os.rmdir(name, dir_fd=trash)
    return True


def drop_if_empty(parent: int, name: str) -> None:
    """Remove the trash directory if it is empty."""
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
