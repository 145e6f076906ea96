"""Opens an owner's directories without trusting their names.

A path is split and opened component by component, each relative to the one before and never through a link; what was
checked is then used by descriptor, never again by name. This module must not create or remove anything.
"""

import ctypes
import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence

from watchdog import file_identity
from watchdog.core.mounts import Mount, is_below, mounts_of
from watchdog.errors import PathRefused
from watchdog.owner import proc_files, whereabouts

# O_PATH needs only search permission, so /home with mode 0711 can be traversed (open(2)).
STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
AGENT_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")

# openat2(2), Linux 5.6: the same number on every architecture. Python has no call for it before 3.15.
OPENAT2 = 437
RESOLVE_INSIDE = 0x01 | 0x02 | 0x04 | 0x08  # NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH
# No such call, or a seccomp filter that does not know it; or a link or a file, for which `step` gives the error.
STEP_SAYS = frozenset({errno.ENOSYS, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EAGAIN})

_libc = ctypes.CDLL(None, use_errno=True)


def components(path: str | None) -> list[str]:
    """The names in an absolute path. Raises PathRefused for anything that is not a plain absolute path to something."""
    if not path:
        raise PathRefused("empty", "the path is empty")
    if not path.startswith("/"):
        raise PathRefused("relative", f"{path!r} is not absolute")
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise PathRefused("control_character", f"{path!r} holds a control character")
    names = [name for name in path.split("/") if name]
    if not names:
        raise PathRefused("root", "the root directory is never touched")
    if "." in names or ".." in names:
        raise PathRefused("dots", f"{path!r} has . or .. in it")
    return names


def checked_agent_id(agent_id: str) -> str:
    """Return the id if it can be the name of a directory. Raises PathRefused."""
    if not AGENT_ID.fullmatch(agent_id):
        raise PathRefused("agent_id", f"{agent_id!r} cannot name a directory")
    return agent_id


def step(parent: int, name: str) -> int:
    """An O_PATH descriptor of the directory `name` in `parent`. Raises FileNotFoundError; PathRefused for a link."""
    try:
        return os.open(name, STEP, dir_fd=parent)
    except NotADirectoryError:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            raise PathRefused("link", f"{name!r} is a symbolic link") from None
        raise PathRefused("not_a_directory", f"{name!r} is not a directory") from None


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _openat2(parent: int, name: str) -> int:
    how = _OpenHow(STEP, 0, RESOLVE_INSIDE)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    fd = _libc.syscall(ctypes.c_long(OPENAT2), parent, os.fsencode(name), ctypes.byref(how), size)
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
    return int(fd)


def step_inside(parent: int, name: str) -> int:
    """As `step`, but never onto another mount, including bind mounts of the same device: PathRefused `mount_inside`.

    One call if the kernel has openat2; otherwise the mounts of both are compared.
    """
    try:
        return _openat2(parent, name)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise PathRefused("mount_inside", f"another file system is mounted at {name!r}") from None
        if error.errno not in STEP_SAYS:
            raise
    directory = step(parent, name)
    try:
        if file_identity.mount_id(directory) != file_identity.mount_id(parent):
            raise PathRefused("mount_inside", f"another file system is mounted at {name!r}")
    except BaseException:
        os.close(directory)
        raise
    return directory


def walk(base: int, names: Sequence[str]) -> int:
    """A descriptor of `base`/`names[0]`/…, which may be `base` itself. The caller closes it. Raises as `step` does."""
    current = os.dup(base)
    for name in names:
        try:
            following = step(current, name)
        finally:
            os.close(current)
        current = following
    return current


def open_parent(path: str, base: str = "/") -> tuple[int, str]:
    """The directory that holds `path`, and the last name. `base` is trusted and may be a link; nothing below is."""
    names = components(path)
    whereabouts.at(path)
    skip = len([name for name in base.split("/") if name])
    start = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return walk(start, names[skip:-1]), names[-1]
    finally:
        os.close(start)


def open_private_parent(path: str) -> tuple[int, str]:
    """As `open_parent`, but only if no other user can change what the path leads to: each directory on the way,
    including the root, belongs to this uid or to root, and is not writable for group or others, or is sticky
    (inode(7)).

    Raises FileNotFoundError, PermissionError; PathRefused, `writable` for a directory that others may change.
    """
    names = components(path)
    current = os.open("/", STEP)
    try:
        _refuse_writable(current, "/")
        for name in names[:-1]:
            following = step(current, name)
            os.close(current)
            current = following
            _refuse_writable(current, name)
    except BaseException:
        os.close(current)
        raise
    return current, names[-1]


def _refuse_writable(directory: int, name: str) -> None:
    status = os.fstat(directory)
    if status.st_uid not in (0, os.geteuid()):
        raise PathRefused("writable", f"the directory {name!r} on its path belongs to uid {status.st_uid}")
    # With an ACL the group bits are its mask, so its grants show here too (acl(5)).
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
        raise PathRefused("writable", f"other users may write to the directory {name!r} on its path")


def open_directory(path: str) -> int:
    """The directory itself, opened component by component through no link. Raises FileNotFoundError, PathRefused."""
    parent, name = open_parent(path)
    try:
        return step(parent, name)
    finally:
        os.close(parent)


def readable(directory: int) -> int:
    """The same directory as a descriptor that can be listed and locked."""
    return os.open(".", READ, dir_fd=directory)


def real_path(fd: int) -> str:
    """The kernel's name for an open directory (proc(5), /proc/PID/fd)."""
    return os.readlink(f"/proc/self/fd/{fd}")


def below(
    top: str, onerror: Callable[[OSError], object] = lambda _: None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Like `os.walk(top)`, but to any depth: before Python 3.12 that recurses, and fails at 1,000 levels.

    Links to directories are listed as directories, as there, and are not followed.
    """
    todo = [top]
    while todo:
        place = todo.pop()
        names: list[str] = []
        files: list[str] = []
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    (names if _leads_to_directory(entry) else files).append(entry.name)
        except OSError as error:
            onerror(error)
            continue
        yield place, names, files
        todo += (path for name in reversed(names) if not os.path.islink(path := os.path.join(place, name)))


def _leads_to_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link cycle
        return False


def file_system(fd: int) -> str:
    """The type of a descriptor's file system, as in mountinfo."""
    return mount_of(fd).kind


def mounts(process: str = "self") -> Iterator[Mount]:
    """The mounts in a process's mountinfo (proc(5): octal escapes). Raises OSError."""
    return mounts_of(proc_files.read(process, "mountinfo"))


def mount_of(fd: int) -> Mount:
    """The mount of a descriptor. Raises PathRefused if it is not visible (a chroot)."""
    number = file_identity.mount_id(fd)
    for mount in mounts():
        if mount.number == number:
            return mount
    raise PathRefused("mount_unknown", "the kernel does not say on which mount this lies")


def mounts_at_or_below(path: str) -> list[str]:
    """Mount points at `path` or below it."""
    return [mount.point for mount in mounts() if is_below(mount.point, path)]


def ancestors(paths: Iterable[str]) -> set[file_identity.FileId]:
    """The ids of all existing directories in `paths` and of all their parents up to the root."""
    found = set()
    for path in paths:
        current = os.path.realpath(path)
        while True:
            try:
                status = os.stat(current)
                found.add((status.st_dev, status.st_ino))
            except OSError:
                pass
            if current == "/":
                break
            current = os.path.dirname(current)
    return found


def refuse_unless_plain(directory: int, parent: int, path: str) -> None:
    """Raise PathRefused unless `directory` is this uid's own, is not a mount point, and has no mount inside."""
    if os.fstat(directory).st_uid != os.geteuid():
        raise PathRefused("not_yours", f"{path} belongs to uid {os.fstat(directory).st_uid}, not {os.geteuid()}")
    if file_identity.mount_id(directory) != file_identity.mount_id(parent):
        raise PathRefused("mount_point", f"{path} is a mount point")
    inside = mounts_at_or_below(real_path(directory))
    if inside:
        raise PathRefused("mount_inside", f"{inside[0]} is mounted inside {path}")
