"""Finds the holder of an SQLite database's write lock with the kernel (fcntl(2), F_GETLK).

SQLite's locks are POSIX record locks on bytes fixed by its file format: RESERVED on the file itself, or, in WAL mode,
the write lock in its `-shm` file (sqlite.org/lockingv3.html, walformat.html 2.3.2). A process that closes any
descriptor of a file drops its own locks on it: so check before the file is opened as a database, never while it is
open.
"""

import fcntl
import os
import stat
import struct
import time

from watchdog.owner import proc_files

RESERVED = 0x40000001
WAL_WRITE = 120
STAYS = 0.3  # seconds: a process that holds it before and after this time is not just writing
MOST_ABOVE = 64  # parents of a process

_FLOCK = struct.Struct("hhqqi4x")  # short type, whence; off_t start, len; pid_t


def holder(path: str) -> int | None:
    """The process that holds the write lock for longer than a transaction takes; None: none, or not visible."""
    first = _holder(path)
    if first is None:
        return None
    time.sleep(STAYS)
    return first if _holder(path) == first else None


def above(pid: int) -> list[int]:
    """That process and its ancestors: a child may hold the lock on behalf of its agent."""
    found: list[int] = []
    while pid > 1 and pid not in found and len(found) < MOST_ABOVE:
        found.append(pid)
        try:
            pid = int(proc_files.read(pid, "stat").rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


def stands_still(pid: int) -> bool:
    """Whether it was stopped by a signal, so that it does nothing until it is continued."""
    try:
        return proc_files.read(pid, "stat").rpartition(b")")[2].split()[0] == b"T"
    except (OSError, IndexError):
        return False


def _holder(path: str) -> int | None:
    return _locked(f"{path}-shm", WAL_WRITE) or _locked(path, RESERVED)


def _locked(path: str, byte: int) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK or pid <= 0 else pid  # 0, -1: another pid namespace, or no process's
