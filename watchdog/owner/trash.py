"""Trash: a private directory beside the thing, on the same file system, and deletion out of it.

Everything is done relative to descriptors. Deleting never goes deeper than one level: a subdirectory is first renamed
up beside its parent, so that depth costs neither recursion nor descriptors, and a killed run is simply gone on with.
This module must not be pointed at anything but trash that `open_trash` opened.
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

from watchdog.errors import PathRefused
from watchdog.owner import occupancy, paths

PRIVATE = 0o700
TREE = "tree"
Result = TypeVar("Result")


def beside_name() -> str:
    """The name of this uid's trash in a directory that others may write to, such as /tmp."""
    return f".agent-watchdog-trash-{os.geteuid()}"


def open_trash(parent: int, name: str, *, create: bool = True) -> int:
    """A private directory of this uid in `parent`. Raises FileNotFoundError (`create` False), PathRefused, OSError.

    In /tmp anybody may have made that name before us: a link, or a directory that is not ours or open to others, is
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
    """`act` on this uid's trash in `parent`, made when there is none. Raises as `open_trash`, and what `act` raises.

    Another run of the same uid takes the trash away as soon as it is empty, perhaps between our making and using it.
    """
    for left in reversed(range(50)):
        try:
            fd = open_trash(parent, beside_name())
            try:
                return act(fd)
            finally:
                os.close(fd)
        except FileNotFoundError:
            if not left:
                raise
    raise AssertionError


def write_json(directory: int, name: str, value: object) -> None:
    """Write a small file so that it is whole or absent, also after a power cut."""
    temporary = name + ".new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        data = memoryview(json.dumps(value, indent=1).encode())
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    sync(directory)


def read_json(directory: int, name: str) -> dict[str, object] | None:
    """A file that `write_json` wrote, or None when there is none of this uid's own."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size > 65536:
            return None
        value = json.loads(os.read(fd, 65536))
    except ValueError:
        return None
    finally:
        os.close(fd)
    return value if isinstance(value, dict) else None


def take(parent: int, name: str, container: int, directory: int) -> str | None:
    """Rename the checked directory into the trash. Who came in meanwhile gets it back, and is returned in words."""
    os.rename(name, TREE, src_dir_fd=parent, dst_dir_fd=container)
    sync(parent)
    # By its name it could have been exchanged since it was checked; by its inode it cannot.
    moved = os.stat(TREE, dir_fd=container, follow_symlinks=False)
    same = (moved.st_dev, moved.st_ino) == paths.file_id(directory)
    user = occupancy.occupant(paths.real_path(directory)) if same else None
    if same and user is None:
        return None
    os.rename(TREE, name, src_dir_fd=container, dst_dir_fd=parent)
    if not same:
        raise PathRefused("exchanged", f"{name} was exchanged while it was looked at")
    return user


def sync(directory: int) -> None:
    """Make renames in a directory durable, where it may be read."""
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
    """What a deletion gave back, and what it could not delete."""

    bytes: int = 0
    entries: int = 0
    problems: list[str] = field(default_factory=list)

    def problem(self, name: str, why: OSError | PathRefused) -> None:
        """Remember the first few; one unremovable file must not fill a log."""
        if len(self.problems) < 5:
            self.problems.append(f"{name}: {why.strerror if isinstance(why, OSError) else why}")


def _names(directory: int, without: set[str]) -> list[str]:
    """At most 10,000 names at a time, so that a directory of a million files costs no memory."""
    fd = paths.readable(directory)
    try:
        with os.scandir(fd) as entries:
            return [entry.name for entry in itertools.islice(entries, 10_000) if entry.name not in without]
    finally:
        os.close(fd)


class Emptying:
    """Deletes all that lies in `container`, a directory in the trash; what cannot be deleted stays and is told."""

    def __init__(self, container: int, freed: Freed) -> None:
        self._container = container
        self._mount = paths.mount_id(container)
        self._freed = freed
        self._number = 0

    def run(self) -> None:
        """Until nothing is left, or only what cannot be deleted."""
        stuck: set[str] = set()
        while names := _names(self._container, stuck):
            for name in names:
                if not self._delete(self._container, name):
                    stuck.add(name)

    def _delete(self, parent: int, name: str) -> bool:
        """Delete one entry, or rename a directory that is not in the container itself up into it."""
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
            self._freed.problem(name, error)
            return False
        self._freed.entries += 1
        self._freed.bytes += status.st_blocks * 512 if status.st_nlink == 1 or stat.S_ISDIR(status.st_mode) else 0
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
        """The directory, ours and on the trash's own mount; a read-only one (module caches) is made writable first."""
        directory = paths.step(parent, name)
        try:
            if paths.mount_id(directory) != self._mount:
                raise PathRefused("mount_inside", "another file system is mounted there")
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
                # Left by a run that was killed: take the next number.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                return


def remove_container(trash: int, name: str, freed: Freed) -> bool:
    """Delete one container of the trash with all in it. True when it is gone (or was not there)."""
    try:
        container = paths.step(trash, name)
    except FileNotFoundError:
        return True
    try:
        Emptying(container, freed).run()
    finally:
        os.close(container)
    if freed.problems:
        return False
    os.rmdir(name, dir_fd=trash)
    return True


def copy_tree(source: str, container: int, name: str) -> None:
    """Copy a small tree of plain files and links (a worktree's entry) to a new directory of the container, durably."""
    top = os.path.join(paths.real_path(container), name)
    for directory, names, files in os.walk(source, onerror=_raise):
        target = os.path.normpath(os.path.join(top, os.path.relpath(directory, source)))
        os.mkdir(target, PRIVATE)
        links = [entry for entry in names if os.path.islink(os.path.join(directory, entry))]
        for file in [*files, *links]:
            _copy_file(os.path.join(directory, file), os.path.join(target, file))


def _raise(error: OSError) -> None:
    raise error


def _copy_file(source: str, target: str) -> None:
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    # O_NONBLOCK: a FIFO would hold us for ever; it is refused instead.
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(reader).st_mode):
            raise PathRefused("not_regular", f"{source} is no regular file")
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while data := os.read(reader, 1 << 20):
                view = memoryview(data)
                while view:
                    view = view[os.write(writer, view) :]
            os.fsync(writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def drop_if_empty(parent: int, name: str) -> None:
    """Take the trash directory away when nothing is in it any more."""
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
