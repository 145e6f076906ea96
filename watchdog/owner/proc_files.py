"""Reads files of single processes below /proc, each of which may hang: an execve of that process that waits for a
user-space file system holds the locks that the read takes, even before the kernel checks whether we may read it.

So each read runs in a thread that can be abandoned. `ReadHung` means that nothing is known of that process, never
"not in use". A file that hung is not read again before that read has returned.
"""

import ctypes
import errno
import os
import stat
import sys
import threading
import time
from queue import SimpleQueue

PATIENCE = 0.5  # seconds for a read; one that does not hang takes 10 to 100 µs
LESS = 0.02  # seconds for each further read once `FEW` hang: 200 take 6 s, once
FEW = 4
TURNS = 100  # how often that time is extended while threads do not get to run on a busy machine
OF_ONE_USER = 256  # threads that may be abandoned in reads of one uid's processes,
OF_ALL = 512  # and of all uids'; beyond, only processes of root and of our own uid are read
STACK = 256 * 1024  # bytes; with the default of 8 MiB, 300 threads exceed a helper's memory limit

# statx(2); Python has no call for it before 3.15.
AT_FDCWD, AT_STATX_DONT_SYNC, STATX_MODE = -100, 0x4000, 0x2

_libc = ctypes.CDLL(None, use_errno=True)
_Answer = tuple[bytes | None, OSError | None]


class ReadHung(OSError):
    """A read of that process's file does not return."""

    def __init__(self, pid: int | str, file: str) -> None:
        super().__init__(errno.ETIMEDOUT, f"process {pid} cannot be read now: /proc/{pid}/{file} hangs")


class _ReadWorker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.asked: SimpleQueue[tuple[str, int]] = SimpleQueue()
        self.answer: _Answer = (None, None)
        self.done = threading.Event()
        self.left: tuple[str, str] | None = None  # the pid and file in whose read it was abandoned
        self.uid: int | None = None  # the uid of that process

    def run(self) -> None:
        while True:
            path, limit = self.asked.get()
            try:
                self.answer = _read(path, limit), None
            except OSError as error:
                self.answer = None, error
            with _lock:
                if self.left is not None:
                    _hung.pop(self.left, None)
                    return
                self.done.set()

    def wants_to_run(self) -> bool:
        """Whether it is runnable and only waits for a CPU. A read that hangs sleeps in the kernel (proc(5), state)."""
        try:
            line = _read(f"/proc/self/task/{self.native_id}/stat", 4096)
        except OSError:
            return False
        return line.rpartition(b") ")[2][:1] == b"R"


_lock = threading.Lock()
_idle: list[_ReadWorker] = []
_hung: dict[tuple[str, str], _ReadWorker] = {}


def _after_fork() -> None:
    """Reset the state: a forked child has none of its parent's threads."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()
    _hung.clear()


os.register_at_fork(after_in_child=_after_fork)


def read(pid: int | str, file: str, limit: int = 1 << 24) -> bytes:
    """At most `limit` bytes of /proc/PID/`file`. Raises the kernel's OSError, ReadHung."""
    key = str(pid), file
    with _lock:
        if key in _hung or (len(_hung) >= OF_ONE_USER and _is_too_many(uid_of(pid))):
            raise ReadHung(pid, file)
        worker = _idle.pop() if _idle else None
        patience = LESS if len(_hung) >= FEW else PATIENCE
    if worker is None:
        try:
            worker = _started()
        except RuntimeError as failure:  # no thread could be started: nothing is known of it either
            raise ReadHung(pid, file) from failure
    worker.done.clear()
    worker.asked.put((f"/proc/{pid}/{file}", limit))
    for _ in range(TURNS):
        began = time.monotonic()
        if worker.done.wait(patience):
            break
        late = time.monotonic() - began > 1.5 * patience  # this thread did not get to run either
        if not late and not worker.wants_to_run():
            break
    with _lock:
        if not worker.done.is_set():
            worker.left, worker.uid = key, uid_of(pid)
            _hung[key] = worker
            raise ReadHung(pid, file)
    data, error = worker.answer
    with _lock:
        _idle.append(worker)
    if error is not None:
        raise error
    assert data is not None
    return data


def _started() -> _ReadWorker:
    worker, former = _ReadWorker(), threading.stack_size(STACK)
    try:
        worker.start()
    finally:
        threading.stack_size(former)
    return worker


def _is_too_many(uid: int | None) -> bool:
    """Whether so many reads hang that no process of that uid is read: one user's many only block that user's."""
    if sum(worker.uid == uid for worker in _hung.values()) >= OF_ONE_USER:
        return True
    return len(_hung) >= OF_ALL and uid not in (0, os.geteuid())


def uid_of(pid: int | str) -> int | None:
    """The owner of /proc/PID; None when it is gone. stat(2) of the directory takes no lock of the process."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def is_ours(pid: int | str) -> bool:
    """Whether we may read that process's memory map, environment and links (ptrace access, proc(5)).

    Tested with a link, which follows the same rule and takes no lock of the process; opening a file may hang even if we
    may not read it.
    """
    try:
        os.readlink(f"/proc/{pid}/cwd")
    except OSError:  # another uid's, or gone
        return False
    return True


def speaks_for_us(pid: int | str) -> bool:
    """Whether our user chose a process's name, arguments and environment: not if it is another user's, nor if it is a
    set-uid program, which has our uid, but whose name and arguments its caller chose.
    """
    try:
        return uid_of(pid) == os.geteuid() and not _mode(f"/proc/{pid}/exe") & (stat.S_ISUID | stat.S_ISGID)
    except OSError:  # gone, or a thread of the kernel
        return False


def _mode(path: str) -> int:
    """The mode as in stat(2), but without contacting the file system: a program may be on one that hangs."""
    found = ctypes.create_string_buffer(256)
    if not hasattr(_libc, "statx"):
        return os.stat(path).st_mode
    if _libc.statx(AT_FDCWD, os.fsencode(path), AT_STATX_DONT_SYNC, STATX_MODE, found):
        raise OSError(ctypes.get_errno(), "statx")
    return int.from_bytes(found.raw[28:30], sys.byteorder)  # after mask, blksize, attributes, nlink, uid and gid


def _read(path: str, limit: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts, size = [], 0
        while size < limit and (data := os.read(fd, min(65536, limit - size))):
            parts.append(data)
            size += len(data)
        return b"".join(parts)
    finally:
        os.close(fd)
