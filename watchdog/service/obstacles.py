"""What would prevent a start at the directories and files that it needs: tested without changes, each with a remedy.

One line for each path, `path: what; do: command`: `--check` prints it, and `doctor` gets it from there.
"""

import fcntl
import json
import os
import shlex
import sqlite3
import stat
import struct
import urllib.parse
from collections.abc import Iterator
from contextlib import closing, suppress

from watchdog.concurrency.threads import noted
from watchdog.config.settings import Settings, sqlite_file
from watchdog.host.instance_lock import LOCK, registry_lock

DO = "; do: "  # before the command
_GETFLAGS = 0x80086601  # FS_IOC_GETFLAGS (ioctl_iflags(2)) where a long has eight bytes
_FLAGS = ((0x10, "i", "immutable"), (0x20, "a", "append-only"))
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
}


def obstacles(settings: Settings) -> Iterator[str]:
    """One line for each path; nothing about the content of an unusable directory."""
    registry = sqlite_file(settings.registry_url)
    files = {
        settings.state_dir: [f"{settings.state_dir}/{LOCK}"],
        settings.runtime_dir: [f"{settings.runtime_dir}/{LOCK}"],
    }
    own = {
        settings.runtime_dir: (0o755 if os.geteuid() == 0 else 0o700, "daemon.runtime_dir"),
        settings.state_dir: (0o700, "daemon.state_dir"),
    }
    if registry:
        beside = [registry_lock(settings) or "", registry, f"{registry}-wal", f"{registry}-shm"]
        files.setdefault(os.path.dirname(registry), []).extend(beside)
    for directory, within in files.items():
        with noted(directory):
            fault = _directory(directory, *own.get(directory, (None, "")))
        if fault is not None:
            yield fault
        elif os.path.isdir(directory):
            for file in dict.fromkeys(within):
                with noted(file):
                    fault = _file(file, registry)
                    if fault is None and file == registry:
                        fault = _newer(file)
                yield from [fault] if fault is not None else []


def _directory(path: str, mode: int | None, key: str) -> str | None:
    """Our own directory with that mode, or (None) any user's, in which the registry is."""
    try:
        found = os.lstat(path) if mode is not None else os.stat(path)
    except OSError:
        return None  # made by a start; if that fails, `check` says why
    if not stat.S_ISDIR(found.st_mode):
        return _other(path, found, "a directory", key) if mode is not None else None
    if mode is not None and found.st_uid != os.geteuid():
        return _owner(path, found, "-R ")
    if mode is not None and found.st_mode & 0o022:
        words = f"mode {stat.S_IMODE(found.st_mode):04o}, others may write there"
        return f"{path}: {words}{DO}chmod {mode:o} {shlex.quote(path)}"
    if os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return None
    return _refused(path, found, f"chmod {mode or 0o700:o}")


def _file(path: str, registry: str) -> str | None:
    """Why we cannot write to it; a missing file is made. The mode of SQLite's own two files is corrected."""
    beside = path in (f"{registry}-wal", f"{registry}-shm")
    try:
        found = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return _other(path, found, "a file", "registry.url" if path == registry else "")
    if found.st_uid != os.geteuid() and not (beside and os.geteuid() == 0):
        return _owner(path, found, "")
    if path.endswith(".lock") and path != registry and found.st_nlink > 1:
        return f"{path}: has other names, too (hard links){DO}rm {shlex.quote(path)}"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
    except PermissionError:
        if beside and found.st_mode & 0o600 != 0o600 and _flag(path) is None:
            return None
        return _refused(path, found, "chmod 600")
    except OSError as error:
        return _refused(path, found, "chmod 600", error.strerror)
    return None


def _newer(registry: str) -> str | None:
    """A newer version's registry. Read without its `-wal`, or SQLite would make one."""
    from watchdog.registry.schema import REVISION  # 0.2 s, which nothing else here needs

    if not os.path.isfile(registry) or os.path.getsize(registry) == 0:
        return None
    stored = None
    with suppress(sqlite3.Error):  # damaged: a start moves it aside; no such table: the same
        uri = f"file:{urllib.parse.quote(registry)}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            (stored,) = database.execute("SELECT version_num FROM alembic_version").fetchone() or (None,)
    if stored is None or str(stored) == REVISION or _known(str(stored)):
        return None
    aside = _aside(registry, "newer")
    return (
        f"{registry}: has revision {stored!r}: a newer agent-watchdogd wrote it; install that one again, or begin"
        f" another{DO}mv {shlex.quote(registry)} {shlex.quote(aside)}"
    )


def _known(revision: str) -> bool:
    """Whether one of our migrations made it: then a start upgrades it."""
    from watchdog.registry.engines import known_revisions

    return revision in known_revisions()


def _other(path: str, found: os.stat_result, right: str, key: str = "") -> str:
    """Something else is at that path. A link is never followed; one that leads to the right kind need not be moved."""
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "another thing")
    if stat.S_ISLNK(found.st_mode):
        real = os.path.realpath(path)
        kind = f"a link to {real}"
        if key and (os.path.isfile(real) if right == "a file" else os.path.isdir(real)):
            value = f"sqlite:///{real}" if key == "registry.url" else real
            return f"{path}: is {kind}, and no link is followed{DO}set {key} = {json.dumps(value)} in the configuration"
    if os.path.ismount(path):
        return f"{path}: is a mount point, not {right}{DO}{_as_root()}umount {shlex.quote(path)}"
    return f"{path}: is {kind}, not {right}{DO}mv -T {shlex.quote(path)} {shlex.quote(_aside(path))}"


def _as_root() -> str:
    return "" if os.geteuid() == 0 else "as root: "


def _owner(path: str, found: os.stat_result, option: str) -> str:
    owner = f"belongs to uid {found.st_uid}, not to uid {os.geteuid()}"
    return f"{path}: {owner}{DO}{_as_root()}chown {option}{os.geteuid()} {shlex.quote(path)}"


def _refused(path: str, found: os.stat_result, mode: str, why: str | None = "Permission denied") -> str:
    """The kernel refuses its owner, or root."""
    if (flag := _flag(path)) is not None:
        letter, word = flag
        return f"{path}: is {word} (lsattr){DO}{_as_root()}chattr -{letter} {shlex.quote(path)}"
    with suppress(OSError):
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            mount = path
            while not os.path.ismount(mount):
                mount = os.path.dirname(mount)
            return f"{path}: its file system can only be read{DO}{_as_root()}mount -o remount,rw {shlex.quote(mount)}"
    if found.st_uid != os.geteuid():
        return _owner(path, found, "")
    words = f"cannot be written by uid {os.geteuid()} (mode {stat.S_IMODE(found.st_mode):04o}): {why}"
    return f"{path}: {words}{DO}{mode} {shlex.quote(path)}"


def _flag(path: str) -> tuple[str, str] | None:
    """The flag that keeps even root from writing to it: chattr(1)'s letter, and its name. None: unknown."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            (flags,) = struct.unpack("l", fcntl.ioctl(descriptor, _GETFLAGS, struct.pack("l", 0)))
        finally:
            os.close(descriptor)
        return next(((letter, word) for bit, letter, word in _FLAGS if flags & bit), None)
    return None


def _aside(path: str, word: str = "aside") -> str:
    """A free name beside it."""
    free = f"{path}.{word}"
    while os.path.lexists(free):
        free += "+"
    return free
