"""The one guarded send, and the one `cgroup.kill`. Nothing else in the daemon signals a process of an agent's tree.

1. The number and the signal must be what they claim (no bool, nothing <= 1, nothing over pid_max).
2. Same host, same boot; not ourselves, not our ancestors, not another agent's process.
3. A pidfd is opened, then the whole identity is verified, then what it is (kernel thread, spared program). Where a read
   of its files hangs, the caller's own pidfd stands for that: it was opened when the identity was verified.
4. Where no pidfd inode tells the process from another of the same start tick, the caller's own pidfd must.
5. Where it is sent by a user's right, the kernel would let that user send it (`permission`).
6. The signal goes through that pidfd, so a pid that was reused in between hits no process.

Never by number and never to a group: to signal group 1 is to signal every process of the machine. A cgroup is killed as
a whole only while it is frozen, when each process in it has passed the same checks.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

from watchdog.core.process import Identity
from watchdog.errors import SignalRefused
from watchdog.processes import cgroups, pidfd_info, procfs
from watchdog.processes import identity as identities
from watchdog.processes.permission import may_signal


class SendResult(StrEnum):
    """What became of one signal that the guard let through."""

    SENT = "sent"
    GONE = "gone"  # proved: no such process, another one of the same number, or nothing but a zombie
    NOT_PERMITTED = "not_permitted"  # the kernel's EPERM, to us or to the user by whose right it is sent


@dataclass(frozen=True, slots=True)
class Guard:
    """The processes that must never be signalled.

    `protected`: (pid, start ticks) of the other agents' trees and of whatever else the caller spares. `spare`: names of
    programs (comm, the first 15 characters count). `main`: the agent's main process, which is spared only where its
    program's file has such a name too: comm is what a process calls itself (PR_SET_NAME, prctl(2)). `sender`: the user
    with whose rights signals are sent: no process that the kernel would not let that user signal; None: by our own.
    `last_look`: asked when all else is verified, right before each signal; what it raises stops it, and leaves `send`.
    """

    host: str
    protected: frozenset[tuple[int, int]] = frozenset()
    spare: frozenset[str] = frozenset()
    main: Identity | None = None
    sender: int | None = None
    last_look: Callable[[], None] = lambda: None

    def permits(self, pidfd: int) -> bool:
        """Whether its `sender` may signal the process behind a pidfd, as of now."""
        return self.sender is None or may_signal(self.sender, pidfd)


def pid_max() -> int:
    """The largest pid that the kernel may give out, or its compiled-in limit (proc(5)) where that cannot be read."""
    try:
        return int(procfs.read("/proc/sys/kernel/pid_max"))
    except (OSError, ValueError):
        return 1 << 22


def ancestors() -> frozenset[int]:
    """The pids above our own process, read again. The walk ends at one that we may not see (another user's)."""
    return _above()[0]


def is_ancestor(pid: int) -> bool:
    """Whether that process stands above ours now.

    Nobody ever comes to: an orphan passes to one who stands above it already (PR_SET_CHILD_SUBREAPER, prctl(2)). So who
    was not in the first whole walk of this process is not looked for again: a walk takes 20 system calls.
    """
    first = _first_walks.get(os.getpid())
    if first is None:
        first, whole = _above()
        if whole:
            _first_walks[os.getpid()] = first
    return pid in first and pid in ancestors()


_first_walks: dict[int, frozenset[int]] = {}  # by our own pid: a fork has other ancestors


def _above() -> tuple[frozenset[int], bool]:
    """The walk, and whether it came to its end."""
    found: set[int] = set()
    pid = os.getppid()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            pid = _parent_of(pid)
        except (OSError, ValueError):
            return frozenset(found), False
    return frozenset(found), True


def _parent_of(pid: int) -> int:
    fd = identities.open_pidfd(pid)
    try:
        known = None if fd is None else pidfd_info.info(fd)
    finally:
        if fd is not None:
            os.close(fd)
    return procfs.stat(pid).parent_pid if known is None else known.parent_pid


@dataclass(frozen=True, slots=True)
class SignalTarget:
    """What the caller knows of a process for which it holds a pidfd, so that nothing is read right before a signal.

    `stat`: its line, read since the pidfd was opened (None: it is read by `send`). `name`: as it was called when it was
    read last, for where it cannot be read now.
    """

    stat: procfs.Stat | None = None
    name: str = "?"


NO_LOOK = SignalTarget()


def send(
    identity: Identity, sig: signal.Signals, guard: Guard, pidfd: int | None = None, look: SignalTarget = NO_LOOK
) -> SendResult:
    """Send `sig` to exactly that process, or to none. `pidfd`: from `identity.pin`, while the caller holds one.

    Raises SignalRefused; its reasons: bad_signal bad_pid other_host other_boot self ancestor other_agent kernel_thread
    spared unpinned unreadable look_failed.
    """
    if not isinstance(sig, signal.Signals):
        raise SignalRefused("bad_signal", f"{sig!r} is not a signal")
    try:
        with _verified(identity, guard, pidfd, look) as fd:
            if fd is None:
                return SendResult.GONE
            if not guard.permits(fd):
                return SendResult.NOT_PERMITTED
            guard.last_look()
            signal.pidfd_send_signal(fd, sig)
    except ProcessLookupError:
        return SendResult.GONE
    except PermissionError:
        return SendResult.NOT_PERMITTED
    return SendResult.SENT


def carry_on(identity: Identity, guard: Guard, pidfd: int | None = None, look: SignalTarget = NO_LOOK) -> SendResult:
    """SIGCONT to a process that we have stopped, whosoever it turned out to be.

    Raises SignalRefused as `send` does, but never other_agent or spared: those above all must not stay stopped. Nor
    does it need the right of any sender.
    """
    guard = replace(guard, protected=frozenset(), spare=frozenset(), sender=None)
    return send(identity, signal.SIGCONT, guard, pidfd, look)


def kill_cgroup(
    path: str, ours: Mapping[Identity, int | None], guard: Guard, looks: Mapping[Identity, SignalTarget] | None = None
) -> frozenset[int] | None:
    """SIGKILL to all in a frozen v2 cgroup at once; their pids, or None where this cannot be done (kernel before 5.14).

    `ours`: the processes that may be in it, each with the caller's pidfd. Raises SignalRefused as `send` does, for any
    process in it; and not_frozen, foreign when another process is in it, or not_permitted when one may not be
    signalled. Then no process was signalled.
    """
    try:
        if not cgroups.events(path).frozen:  # while it is, no process in it can fork
            raise SignalRefused("not_frozen", f"cgroup {path} is not frozen")
        inside = cgroups.members(path)
        known = {identity.pid: (identity, pidfd) for identity, pidfd in ours.items()}
        for pid in inside:
            if pid not in known:
                raise SignalRefused("foreign", f"pid {pid} in cgroup {path} does not belong to the agent")
            identity, pidfd = known[pid]
            with _verified(identity, guard, pidfd, (looks or {}).get(identity, NO_LOOK)) as verified:
                if verified is not None and not guard.permits(verified):
                    raise SignalRefused("not_permitted", f"uid {guard.sender} may not signal pid {pid} in {path}")
        directory = cgroups.directory_of(path)
        if directory is None or not inside:
            return frozenset()
        fd = os.open(f"{directory}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        guard.last_look()
        os.write(fd, b"1")
    except OSError:
        return None
    finally:
        os.close(fd)
    return inside


def _renamed(stat: procfs.Stat) -> bool:
    """Whether its name is its own invention: "tmux: server" begins with its program's, tmux. False: not to be seen."""
    try:
        program = os.path.basename(procfs.program_file(stat.pid)).removesuffix(" (deleted)")
    except OSError:
        return False
    return not stat.name.startswith(program[:15])


@contextmanager
def _verified(identity: Identity, guard: Guard, pidfd: int | None, look: SignalTarget) -> Iterator[int | None]:
    """A pidfd of exactly that process, which the guard lets through; None when it is gone. Raises SignalRefused."""
    pid = identity.pid
    if type(pid) is not int or not 1 < pid <= pid_max():
        raise SignalRefused("bad_pid", f"{pid!r} is not a pid that may be signalled (2 to pid_max)")
    if type(identity.start_ticks) is not int:
        raise SignalRefused("bad_pid", f"start ticks {identity.start_ticks!r} of pid {pid} are no number")
    if identity.host != guard.host:
        raise SignalRefused("other_host", f"pid {pid} was read on host {identity.host!r}, this is {guard.host!r}")
    if pid == os.getpid():
        raise SignalRefused("self", f"pid {pid} is the daemon itself")
    if is_ancestor(pid):
        raise SignalRefused("ancestor", f"pid {pid} is an ancestor of the daemon")
    if (pid, identity.start_ticks) in guard.protected:
        raise SignalRefused("other_agent", f"pid {pid} belongs to another agent, or is spared")
    fd: int | None = None
    try:
        try:
            if identity.boot_id != identities.boot_id():
                raise SignalRefused("other_boot", f"pid {pid} was read in another boot")
            fd = identities.open_pidfd(pid)
            try:
                stat = None if fd is None else _line(pid, fd, pidfd, look)
            except identities.Unreadable as error:
                if fd is None or not _is_held(identity, fd, pidfd):
                    raise SignalRefused("unreadable", f"pid {pid} could not be verified: {error.strerror}") from error
                if identity != guard.main:
                    _refuse_spared(pid, look.name, guard)
                yield None if identities.ended(fd) else fd
                return
            found = fd is not None and stat is not None and identities.matches(identity, fd, stat)
            if fd is not None and found and not identities.names_one(identity, fd):
                # Number and tick fit, and that is all there is: another process may have started in that tick.
                held = 0 if pidfd is None else identities.pid_of(pidfd)
                if held not in (pid, None):
                    raise SignalRefused("unpinned", f"pid {pid} may have been reused in the tick in which it started")
                found = held == pid
        except identities.LookFailed as error:
            raise SignalRefused("look_failed", f"pid {pid} could not be verified: {error.strerror}") from error
        if stat is None or not found:
            yield None
            return
        if stat.kernel_thread:
            raise SignalRefused("kernel_thread", f"pid {pid} is the kernel thread {stat.name!r}")
        if identity != guard.main or not _renamed(stat):
            _refuse_spared(pid, stat.name, guard)
        yield None if stat.dead else fd
    finally:
        if fd is not None:
            os.close(fd)


def _line(pid: int, fd: int, pidfd: int | None, look: SignalTarget) -> procfs.Stat | None:
    """The stat line of what `fd` holds; None when it is reaped. Raises LookFailed, Unreadable."""
    if look.stat is not None and pidfd is not None:
        return look.stat if identities.pid_of(pidfd) == identities.pid_of(fd) == pid else None
    return identities.read_stat(pid, fd)


def _is_held(identity: Identity, fd: int, pidfd: int | None) -> bool:
    """Whether `fd` is of the process that the caller has pinned when its identity was verified."""
    if pidfd is None or identities.pid_of(pidfd) != identity.pid:
        return False
    return not identities.names_one(identity, fd) or identities.pidfd_inode(fd) == identity.pidfd_inode


def _refuse_spared(pid: int, name: str, guard: Guard) -> None:
    if name in {spared[:15] for spared in guard.spare}:
        raise SignalRefused("spared", f"pid {pid} is {name!r}, a spared program")
