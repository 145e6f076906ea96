"""Raw reads below /proc, and the fields of /proc/PID/stat.

This module parses formats and judges nothing. A failed read raises the kernel's OSError: what ENOENT means (gone, or
hidden from us) is decided in `identity`. A hanging read of a process's file is Unreadable (`bounded`): other packages
read such files only through the functions marked `bounded`.

Tests: tests/processes/test_identity.py, tests/processes/test_snapshot.py.
"""

import ctypes
import errno
import os
from functools import cache
from typing import NamedTuple

from watchdog.processes import bounded as bounds
from watchdog.processes.bounded import bounded

PROC = "/proc"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PF_KTHREAD = 0x00200000  # include/linux/sched.h; field 9 of stat
PF_EXITING = 0x00000004


class Stat(NamedTuple):
    """The fields of stat (proc(5)) that are used. Ticks are 1/`TICKS_PER_SECOND` s; start counts from boot."""

    pid: int
    name: str
    state: str
    parent_pid: int
    group: int
    session: int
    kernel_thread: bool
    cpu_ticks: int  # utime + stime of the whole thread group
    threads: int
    start_ticks: int
    rss_pages: int
    reaped_ticks: int = 0  # the same for its reaped children and theirs
    faults: int = 0  # page faults so far, across exec: no program starts without one. 0: not reported
    exiting: bool = False  # it is exiting, and may already have no memory, hence no environment

    @property
    def dead(self) -> bool:
        """Whether it is a zombie without a living thread. `threads` includes a dead leader until it is reaped
        (6.18).
        """
        return self.state in "ZX" and self.threads <= 1


def parse_stat(data: bytes) -> Stat:
    """The fields of one stat line. comm may contain spaces, parentheses and newlines: it ends at the last ")".

    Raises ValueError for a truncated line.
    """
    head, _, tail = data.rpartition(b")")
    pid, _, comm = head.partition(b" (")
    fields = tail.split()
    if len(fields) < 22:
        raise ValueError(f"stat line has {len(fields)} fields after the name, expected at least 22")
    return Stat(
        pid=int(pid),
        name=comm.decode("utf-8", "replace"),
        state=chr(fields[0][0]),
        parent_pid=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        kernel_thread=bool(int(fields[6]) & PF_KTHREAD),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        rss_pages=int(fields[21]),
        reaped_ticks=int(fields[13]) + int(fields[14]),
        faults=int(fields[7]) + int(fields[9]),
        exiting=bool(int(fields[6]) & PF_EXITING),
    )


def read_of(pid: int, file: str, *, limit: int = 1 << 20) -> bytes:
    """At most `limit` bytes of /proc/PID/`file`. Raises OSError, Unreadable."""
    with bounds.Reading(pid, file.partition("/")[0]):
        return read(f"{PROC}/{pid}/{file}", limit=limit)


def read(path: str, *, dir_fd: int | None = None, limit: int = 1 << 20) -> bytes:
    """At most `limit` bytes of a system-wide file or one of our own process; of another process only in
    `bounds.Reading`.

    `path` is relative to `dir_fd`, or absolute. Raises OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        data = os.read(fd, 4096)
        if len(data) < 1024:  # the first read returns stat, status, cgroup and fdinfo as a whole
            return data
        parts = [data]
        size = len(data)
        while data and size < limit:
            data = os.read(fd, 65536)
            parts.append(data)
            size += len(data)
        return b"".join(parts)[:limit]
    finally:
        os.close(fd)


@bounded
def stat(pid: int) -> Stat:
    """The current /proc/PID/stat of whichever process has that pid. Raises OSError, Unreadable, ValueError."""
    return parse_stat(read_of(pid, "stat"))


@bounded
def stats(pids: tuple[int, ...]) -> dict[int, Stat | OSError]:
    """The same for many, with the error of each that cannot be read."""
    return bounds.each(pids, _whole_stat)


def _whole_stat(pid: int) -> Stat:
    try:
        return parse_stat(read_of(pid, "stat"))
    except ValueError as error:
        raise OSError(errno.EIO, str(error)) from error


@bounded
def terminal(pid: int) -> tuple[int, int]:
    """The device of its controlling terminal (0: none) and its start ticks. Raises OSError, Unreadable, ValueError."""
    fields = read_of(pid, "stat").rpartition(b")")[2].split()
    try:
        return int(fields[4]), int(fields[19])
    except IndexError:
        raise ValueError(f"stat line has {len(fields)} fields after the name, expected at least 20") from None


@bounded
def exit_status(pid: int) -> int:
    """Field 52 of a zombie's stat line. Raises OSError, Unreadable, ValueError."""
    return int(read_of(pid, "stat").split()[-1])


@bounded
def living_thread(pid: int) -> bool:
    """Whether one of its threads is not a zombie. Raises OSError, Unreadable."""
    with bounds.Reading(pid, "task"):
        for thread in os.listdir(f"{PROC}/{pid}/task"):
            try:
                if parse_stat(read(f"{PROC}/{pid}/task/{thread}/stat")).state not in "ZX":
                    return True
            except (OSError, ValueError):
                continue  # it exited during the read
    return False


@bounded
def cgroup_lines(pid: int) -> bytes:
    """/proc/PID/cgroup. Raises OSError, Unreadable."""
    return read_of(pid, "cgroup")


@bounded
def program_file(pid: int) -> str:
    """The target of /proc/PID/exe. Raises OSError, Unreadable."""
    with bounds.Reading(pid, "exe"):
        return os.readlink(f"{PROC}/{pid}/exe")


def environ(pid: int, *, dir_fd: int, limit: int) -> bytes:
    """At most `limit` bytes of the environment that a process was started with. Raises OSError.

    /proc/PID/environ is 0400: root without CAP_DAC_OVERRIDE, as in our unit, may not open another uid's. It may read
    the memory at the address in stat (CAP_SYS_PTRACE, process_vm_readv(2)).
    """
    with bounds.Reading(pid, "environ"):
        try:
            return read(f"{pid}/environ", dir_fd=dir_fd, limit=limit)
        except PermissionError:
            fields = read(f"{pid}/stat", dir_fd=dir_fd).rpartition(b")")[2].split()
            start, end = int(fields[47]), int(fields[48])  # env_start, env_end; 0 for a reader without permission
            if not 0 < start < end:
                raise
            return _memory(pid, start, min(end - start, limit))


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _memory(pid: int, start: int, length: int) -> bytes:
    buffer = ctypes.create_string_buffer(length)
    here, there = _Span(ctypes.addressof(buffer), length), _Span(start, length)
    call = _libc().process_vm_readv
    call.restype = ctypes.c_ssize_t
    none, one = ctypes.c_ulong(0), ctypes.c_ulong(1)
    got = int(call(ctypes.c_int(pid), ctypes.byref(here), one, ctypes.byref(there), one, none))
    if got < 0:
        raise OSError(ctypes.get_errno(), f"memory of {pid}: {os.strerror(ctypes.get_errno())}")
    return buffer.raw[:got]


@bounded
def status_value(pid: int, key: str) -> str:
    """The text after `key:` in /proc/PID/status. Raises OSError, Unreadable, ValueError when it has no such key."""
    for line in read_of(pid, "status").splitlines():
        name, _, value = line.partition(b":")
        if name == key.encode():
            return value.strip().decode("utf-8", "replace")
    raise ValueError(f"/proc/{pid}/status has no {key}")


def cgroup_path(data: bytes) -> str | None:
    """One path from /proc/PID/cgroup: v2, or systemd's own in a hybrid hierarchy that does not use v2 (cgroups(7))."""
    found: str | None = None
    for line in data.splitlines():
        number, _, rest = line.partition(b":")
        controllers, _, path = rest.partition(b":")
        if number == b"0" and path != b"/":
            return path.decode("utf-8", "surrogateescape")
        if number == b"0" or controllers == b"name=systemd":
            found = path.decode("utf-8", "surrogateescape") if found in (None, "/") else found
    return found


@bounded
def waited_seconds(pids: tuple[int, ...]) -> dict[int, float]:
    """For how long the first thread of each was runnable but had to wait, for other threads or its cgroup's quota.

    This is sched_info.run_delay in Linux' kernel/sched/stats.h (tried with 6.18: a spinning process with a quota of 2 %
    gets 0.98 s of it per second). 0 if the kernel does not report it.
    """
    return {
        pid: 0.0 if isinstance(found, OSError) else found for pid, found in bounds.each(pids, _waited_seconds).items()
    }


def _waited_seconds(pid: int) -> float:
    try:
        return int(read_of(pid, "schedstat").split()[1]) / 1e9
    except (ValueError, IndexError):
        return 0.0
