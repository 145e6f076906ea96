"""Disk space that is kept for the day on which there is none: for kill intents, and for the log that tells of it.

A file of 8 MiB in the state directory, one more beside a log file on another file system, allocated by
posix_fallocate(3). A write that meets a full disk is given a slice of it and done again; so a program that takes
whatever is freed has to be faster eight times. (The registry's write-ahead log has room of its own besides, which no
other program can take: `registry.sqlite`.) It is made again when so much is free that it would be free once more
afterwards: a disk that is filled and emptied in turn is reported once.

Copy-on-write file systems (Btrfs, ZFS) need space to free space; there the room in the write-ahead log is no promise.
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
SLICE = MIB  # what one write that failed is given
LOW = MIB  # bytes; with fewer free the disk counts as full
PART = 4  # no more than such a part of a small file system
EVERY = timedelta(seconds=10)
PATIENCE = 5.0  # seconds for one look


@dataclass(slots=True)
class _Ballast:
    """One file, and what is wrong with its file system."""

    path: str
    bytes: int = 0  # at the last look
    full: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Reserve:
    """Owns the files. `give` may be called by any thread; `round` looks whether they can be made again."""

    def __init__(self, state_dir: str, log_file: str, log: EventLogger) -> None:
        """Nothing is made yet. `log_file`: "" where the log is no file."""
        self._log = log
        self._state = _Ballast(os.path.join(state_dir, "reserve"))
        self._beside_log: _Ballast | None = None
        self._follow_log(log_file)

    def apply(self, settings: Settings) -> None:
        """Where the log is from now on; the file beside a former one is removed."""
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
        """Whether the disk of the registry is full: what nothing depends on is not written."""
        return self._state.full

    def facts(self) -> dict[str, object]:
        """What `status` tells: for each file its bytes, and whether its disk is full."""
        return {one.path: {"bytes": one.bytes, "disk_full": one.full} for one in self._all()}

    def give(self) -> bool:
        """Free a slice for the registry. False: there is none left."""
        return self._give(self._state)

    def give_log(self, target: str) -> bool:
        """Free a slice for the log that is written to `target`. False: there is none left, or it is no file."""
        if not target.startswith("/"):
            return False
        return self._give(self._beside_log or self._state)

    async def round(self) -> None:
        """Look at the disks, and make what is missing when there is room again.

        A disk that hangs is waited for `PATIENCE` seconds, is named in `status` (`threads`) and delays no agent's kill.
        """
        with suppress(threads.Unanswered):
            await threads.call(f"the disk of {self._state.path}", self.look, PATIENCE)

    def look(self) -> None:
        """The same, in the caller's thread: it may wait for the disk."""
        for one in self._all():
            with suppress(OSError), one.lock:  # a missing directory is reported by the part that needs it
                self._look(one)

    def _all(self) -> list[_Ballast]:
        return [self._state] if self._beside_log is None else [self._state, self._beside_log]

    def _look(self, one: _Ballast) -> None:
        found = os.statvfs(os.path.dirname(one.path))
        # Only root may use what a file system keeps for it (ext4: 5 %).
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
    """Whether the log is on another file system than that path; False where that cannot be seen."""
    try:
        return os.stat(os.path.dirname(log_file)).st_dev != os.stat(os.path.dirname(path)).st_dev
    except OSError:
        return False


def _size(path: str) -> int:
    """Bytes of a file of ours; 0 for any other thing that lies there."""
    try:
        found = os.lstat(path)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() else 0


def _allocate(path: str, size: int) -> None:
    """Make the file, or what is missing of it. Raises OSError; then what was there before is there."""
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
