"""Runs one piece of work in a child process, with a deadline at which its whole tree is killed.

This process is the subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): a process that double-forks or leaves its session
becomes its child, so "no child left" (waitpid(2): ECHILD) proves that nothing is left. Only own children are signalled,
and a child's pid cannot be reused before it has been waited for. The work is judged by the exit of its first process; a
grandchild that keeps the output open is not waited for. When the caller goes away, the tree is killed too.

Tests: tests/owner/test_command_hook.py, tests/owner/test_parsing.py, tests/owner/test_whereabouts.py.
"""

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TERM_GRACE = 1.0  # seconds between TERM and KILL at the deadline
END_LIMIT = 5.0  # seconds until a process is reported as unkillable (another uid's, D state)
LOOK = 0.005  # seconds between two checks for children

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Make orphans below this process its children. Raises OSError."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent() -> None:
    """Have this process get KILL when its parent dies; for a child right after fork."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclass(slots=True)
class ChildResult:
    """How the work went. `status` is the first process's wait status; None: it was killed at the deadline."""

    status: int | None = None
    output: dict[int, bytes] = field(default_factory=dict)
    late: bool = False
    abandoned: bool = False  # the caller is gone; the answer is not read
    leftovers: int = 0  # processes that the first one left behind and that were killed
    survivors: int = 0  # processes that could not be killed


def start(work: Callable[[], None], wired: dict[int, int]) -> int:
    """Fork a child that leads its own session, has only `wired` (number -> descriptor) open, and calls `work`.

    Returns its pid. `work` may exec; if it raises, the child exits with status 70.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        die_with_parent()
        # First up to high numbers, so that they do not overwrite each other, then down to their own.
        copies = {number: os.dup2(fd, 100 + number) for number, fd in wired.items()}
        for number, copy in copies.items():
            os.dup2(copy, number, inheritable=True)
        os.closerange(max(wired) + 1, os.sysconf("SC_OPEN_MAX"))
        for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        work()
    except BaseException:  # noqa: BLE001 a forked child must never continue in its parent's code
        os._exit(70)
    os._exit(0)


def end(pid: int) -> int:
    """KILL a child that was not waited for yet, and return its wait status; one that has exited keeps its own."""
    if not _exited(pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def end_strays(known: Collection[int]) -> None:
    """KILL children that this subreaper inherited from one that has exited, and reap them if possible."""
    for pid in set(_children()) - set(known):
        with contextlib.suppress(ProcessLookupError, PermissionError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)


def how(status: int) -> str:
    """A wait status as text."""
    code = os.waitstatus_to_exitcode(status)
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"


def supervise(
    pid: int, outputs: dict[int, int], seconds: float, caller: int | None, grace: float = TERM_GRACE
) -> ChildResult:
    """Wait for the child `pid`, collect from `outputs` (descriptor -> bytes kept), then kill what is left.

    `caller` is a descriptor whose hang-up means that the caller no longer waits. `grace`: seconds that a late child
    has between TERM and KILL.
    """
    ran = ChildResult(output=dict.fromkeys(outputs, b""))
    until = time.monotonic() + seconds
    poll = select.poll()
    for fd in outputs:
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    if caller is not None:
        poll.register(caller, select.POLLRDHUP | select.POLLHUP)
    exited = os.pidfd_open(pid)
    poll.register(exited, select.POLLIN)
    try:
        while not _exited(pid) and not ran.late and not ran.abandoned:
            left = until - time.monotonic()
            ran.late = left <= 0
            for fd, _ in poll.poll(max(0.0, left) * 1000):
                if fd == caller:
                    ran.abandoned = True
                elif fd in outputs and not _drain(fd, outputs[fd], ran):
                    poll.unregister(fd)
    finally:
        os.close(exited)
    for fd in outputs:
        _drain(fd, outputs[fd], ran)
    _end_all(pid, ran, grace)
    return ran


def _exited(pid: int) -> bool:
    """Whether it has exited. It stays a zombie, so its pid is not reused (waitid(2), WNOWAIT)."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _drain(fd: int, limit: int, ran: ChildResult) -> bool:
    """Read available data, keep up to `limit` bytes; False at end of file. At most 4 MiB, so a flood cannot
    block us.
    """
    for _ in range(64):
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        ran.output[fd] += data[: max(0, limit - len(ran.output[fd]))]
    return True


def _children() -> list[int]:
    """Our own children, including adopted orphans (proc(5), /proc/PID/task/TID/children; we have one thread)."""
    own = os.getpid()
    try:
        with open(f"/proc/self/task/{own}/children", encoding="ascii") as children:
            return [int(pid) for pid in children.read().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == own]


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _reap(first: int, ran: ChildResult) -> bool:
    """Reap children that have exited. False when there is no child left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        if pid == first and not ran.late and not ran.abandoned:
            ran.status = status


def _end_all(first: int, ran: ChildResult, patience: float) -> None:
    """TERM to the late first process, then KILL to every child until none is left."""
    began = time.monotonic()
    grace = patience if ran.late or ran.abandoned else 0.0
    if grace:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(first, signal.SIGTERM)
            os.kill(first, signal.SIGCONT)
    seen: set[int] = set()
    while _reap(first, ran):
        waited = time.monotonic() - began
        children = _children()
        if waited > END_LIMIT + grace:
            ran.survivors = len(children)
            return
        if waited >= grace or first not in children:
            for pid in children:
                seen.add(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK)
    ran.leftovers = len(seen - {first})


def pipe_pair() -> tuple[int, int]:
    """A pipe whose ends are not inherited by accident."""
    return os.pipe2(os.O_CLOEXEC)


def input_file(data: bytes) -> int:
    """A descriptor to read `data` from, without a writer: a hook that never reads cannot block us."""
    fd = os.memfd_create("input", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def close_all(descriptors: Sequence[int]) -> None:
    """Close those that are still open."""
    for fd in descriptors:
        with contextlib.suppress(OSError):
            os.close(fd)
