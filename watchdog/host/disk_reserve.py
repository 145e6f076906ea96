"""Disk space that is reserved for the time when the disk is full: for kill intents, and for the log about it.

A file of 8 MiB in the state directory, one more beside a log file on another file system, allocated by
posix_fallocate(3). A write that meets a full disk gets a slice of it and is repeated; so a program that takes whatever
is freed has to be faster eight times. (The registry's write-ahead log also has room of its own, which no other program
can take: `registry.sqlite`.) The file is made again when its size is free and would be free once more afterwards: a
disk that fills and empties in turn is reported once.

Copy-on-write file systems (Btrfs, ZFS) need space to free space; there the room in the write-ahead log is no guarantee.
"""

import os
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from watchdog.concurrency import threads
from watchdog.config.settings import Settings
from watchdog.telemetry.logger import EventLogger

MIB = 1 << 20
SIZE = 8 * MIB
SLICE = MIB  # for one failed write
LOW = MIB  # bytes; the disk counts as full with less free space
PART = 4  # at most this fraction of a small file system
EVERY = timedelta(seconds=10)
PATIENCE = 5.0  # seconds for one check


@dataclass(slots=True)
class _Ballast:
    """One reserve file, and the state of its file system."""

    path: str
    bytes: int = 0  # as of the last check
    full: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Reserve:
    """Owns the files. `give` may be called by any thread; `round` makes the files again."""

    def __init__(self, state_dir: str, log_file: str, log: EventLogger) -> None:
        """Makes no file yet. `log_file`: "" if the log is not a file."""
        self._log = log
        self._state = _Ballast(os.path.join(state_dir, "reserve"))
        self._beside_log: _Ballast | None = None
        self._follow_log(log_file)

    def apply(self, settings: Settings) -> None:
        """Use this log file from now on; the reserve beside a former one is removed."""
        self._follow_log(settings.log.file)

    def _follow_log(self, log_file: str) -> None:
        path = f"{log_file}.reserve" if log_file and _elsewhere(log_file, self._state.path) else None
        former = self._beside_log
        if former is not None and former.path != path:
            with suppress(OSError):
                os.unlink(former.path)
        if path is None:
            self._beside_log = None
        elif former is None or former.path != path:
            self._beside_log = _Ballast(path)

    @property
    def in_use(self) -> bool:
        """Whether the disk of the registry is full: then only essential data is written."""
        return self._state.full

    def facts(self) -> dict[str, object]:
        """The facts for `status`: for each file its bytes, and whether its disk is full."""
        return {one.path: {"bytes": one.bytes, "disk_full": one.full} for one in self._all()}

    def give(self) -> bool:
        """Free a slice for the registry. False: none is left."""
        return self._give(self._state)

    def give_log(self, target: str) -> bool:
        """Free a slice for the log that is written to `target`. False: none is left, or the log is not a file."""
        if not target.startswith("/"):
            return False
        return self._give(self._beside_log or self._state)

    async def round(self) -> None:
        """Check the disks, and make missing files when there is room again.

        A disk that hangs is waited for `PATIENCE` seconds, is named in `status` (`threads`) and delays no agent's kill.
        """
        with suppress(threads.Unanswered):
            await threads.call(f"the disk of {self._state.path}", self.look, PATIENCE)

    def look(self) -> None:
        """The same in the caller's thread, which may have to wait for the disk."""
        for one in self._all():
            with suppress(OSError), one.lock:  # the part that needs a missing directory reports it
                self._look(one)

    def _all(self) -> list[_Ballast]:
        return [self._state] if self._beside_log is None else [self._state, self._beside_log]

    def _look(self, one: _Ballast) -> None:
        found = os.statvfs(os.path.dirname(one.path))
        # Only root may use the space that a file system reserves for it (ext4: 5 %).
        free = found.f_frsize * (found.f_bavail if os.geteuid() else found.f_bfree)
        want = min(SIZE, found.f_frsize * found.f_blocks // PART)
        one.bytes = _size(one.path)
        missing = want - one.bytes
        if missing > 0 and free >= missing + want:
            _allocate(one.path, want)
            one.bytes, missing, free = want, 0, free - missing
        if free < LOW or missing > 0:
            self._full(one, f"{free >> 10} KiB are free")
        elif one.full and free >= want:
            one.full = False
            self._log.event("disk.reserve_restored", path=one.path, bytes=want)

    def _give(self, one: _Ballast) -> bool:
        with one.lock:
            size = _size(one.path)
            left = max(0, size - SLICE)
            if size:
                try:
                    os.truncate(one.path, left)
                except OSError:
                    return False
            one.bytes = left
            self._full(one, f"a write met a full disk; {left >> 20} MiB of the reserve are left")
            return size > 0

    def _full(self, one: _Ballast, why: str) -> None:
        if not one.full:
            one.full = True
            self._log.event("disk.reserve_used", path=one.path, why=why)


def _elsewhere(log_file: str, path: str) -> bool:
    """Whether the log is on another file system than that path; False where that is unknown."""
    try:
        return os.stat(os.path.dirname(log_file)).st_dev != os.stat(os.path.dirname(path)).st_dev
    except OSError:
        return False


def _size(path: str) -> int:
    """Bytes of our file; 0 for anything else at that path."""
    try:
        found = os.lstat(path)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() else 0


def _allocate(path: str, size: int) -> None:
    """Make the file, or enlarge it. Raises OSError; then the file is as before."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
            raise FileExistsError(f"{path}: not a file of ours")
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            os.ftruncate(fd, found.st_size)
            raise
    finally:
        os.close(fd)
