"""The only guarded send, and the only `cgroup.kill`: nothing else in the daemon signals a process of an agent's tree.

1. The pid and the signal must be valid (no bool, nothing <= 1, nothing over pid_max).
2. Same host, same boot; not ourselves, not our ancestors, not another agent's process.
3. A pidfd is opened, then the whole identity is verified, then its kind (kernel thread, spared program). If a read of
   its files hangs, the caller's own pidfd serves as proof: it was opened when the identity was verified.
4. If there is no pidfd inode to distinguish it from another process of the same start tick, the caller's pidfd must.
5. If it is sent with a user's rights, the kernel must let that user send it (`permission`).
6. The signal goes through that pidfd, so a pid that was reused in between hits no process.

Never by pid and never to a group: kill(-1) signals every process of the machine. A cgroup is killed as a whole only
while it is frozen, after each process in it has passed the same checks.
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
    """The result of one signal that the guard permitted."""

    SENT = "sent"
    GONE = "gone"  # proved: no such process, another one with the same pid, or only a zombie
    NOT_PERMITTED = "not_permitted"  # the kernel's EPERM, for us or for the user with whose rights it is sent


@dataclass(frozen=True, slots=True)
class Guard:
    """Which processes must not be signalled.

    `protected`: (pid, start ticks) of the other agents' trees and of anything else that the caller spares. `spare`:
    names of programs (comm; the first 15 characters count). `main`: the agent's main process, which is spared only if
    its program file has such a name too: a process can choose its comm (PR_SET_NAME, prctl(2)). `sender`: the user with
    whose rights signals are sent, so only to processes that the kernel would let that user signal; None: our own.
    `last_look`: called after all checks, right before each signal; if it raises, nothing is sent and the exception
    propagates.
    """

    host: str
    protected: frozenset[tuple[int, int]] = frozenset()
    spare: frozenset[str] = frozenset()
    main: Identity | None = None
    sender: int | None = None
    last_look: Callable[[], None] = lambda: None

    def permits(self, pidfd: int) -> bool:
        """Whether its `sender` may signal a pidfd's process now."""
        return self.sender is None or may_signal(self.sender, pidfd)


def pid_max() -> int:
    """The kernel's limit for pids (proc(5)), or its compiled-in maximum if that cannot be read."""
    try:
        return int(procfs.read("/proc/sys/kernel/pid_max"))
    except (OSError, ValueError):
        return 1 << 22


def ancestors() -> frozenset[int]:
    """The pids of our ancestors, read afresh. The walk ends at one that is not visible (another user's)."""
    return _above()[0]


def is_ancestor(pid: int) -> bool:
    """Whether that process is an ancestor of ours now.

    A process never gains new ancestors: an orphan passes to an existing one (PR_SET_CHILD_SUBREAPER, prctl(2)). So a
    pid that was not in this process's first complete walk needs no further walk, which takes 20 system calls.
    """
    first = _first_walks.get(os.getpid())
    if first is None:
        first, whole = _above()
        if whole:
            _first_walks[os.getpid()] = first
    return pid in first and pid in ancestors()


_first_walks: dict[int, frozenset[int]] = {}  # by our own pid, as a fork has other ancestors


def _above() -> tuple[frozenset[int], bool]:
    """Our ancestors, and whether the walk was complete."""
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
    """What the caller knows of a process whose pidfd it holds, so that nothing has to be read right before a signal.

    `stat`: its line, read after the pidfd was opened (None: `send` reads it). `name`: its last known name, in case it
    cannot be read now.
    """

    stat: procfs.Stat | None = None
    name: str = "?"


NO_LOOK = SignalTarget()


def send(
    identity: Identity, sig: signal.Signals, guard: Guard, pidfd: int | None = None, look: SignalTarget = NO_LOOK
) -> SendResult:
    """Send `sig` to exactly that process, or to none. `pidfd`: from `identity.pin`, if the caller holds one.

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
    """Send SIGCONT to a process that we have stopped, whichever agent it turned out to belong to.

    Raises SignalRefused as `send` does, but never other_agent or spared: those above all must not stay stopped. It
    needs no sender's rights either.
    """
    guard = replace(guard, protected=frozenset(), spare=frozenset(), sender=None)
    return send(identity, signal.SIGCONT, guard, pidfd, look)


def kill_cgroup(
    path: str, ours: Mapping[Identity, int | None], guard: Guard, looks: Mapping[Identity, SignalTarget] | None = None
) -> frozenset[int] | None:
    """SIGKILL all processes in a frozen v2 cgroup at once; return their pids, or None if impossible (kernel < 5.14).

    `ours`: the processes that may be in it, each with the caller's pidfd. Raises SignalRefused as `send` does for any
    process in it, and with not_frozen, foreign (another process is in it) or not_permitted (one may not be signalled).
    Then no process was signalled.
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
    """Whether it gave itself a comm that does not begin with its program's name.

    "tmux: server" does begin with it. False also if its program is unknown.
    """
    try:
        program = os.path.basename(procfs.program_file(stat.pid)).removesuffix(" (deleted)")
    except OSError:
        return False
    return not stat.name.startswith(program[:15])


@contextmanager
def _verified(identity: Identity, guard: Guard, pidfd: int | None, look: SignalTarget) -> Iterator[int | None]:
    """Yield a pidfd of exactly that process if the guard permits it; None when it is gone. Raises SignalRefused."""
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
                stat = None if fd is None else _stat_of(pid, fd, pidfd, look)
            except identities.Unreadable as error:
                if fd is None or not _is_held(identity, fd, pidfd):
                    raise SignalRefused("unreadable", f"pid {pid} could not be verified: {error.strerror}") from error
                if identity != guard.main:
                    _refuse_spared(pid, look.name, guard)
                yield None if identities.ended(fd) else fd
                return
            found = fd is not None and stat is not None and identities.matches(identity, fd, stat)
            if fd is not None and found and not identities.compared_by_inode(identity, fd):
                # Only pid and tick match: another process may have started in that tick.
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


def _stat_of(pid: int, fd: int, pidfd: int | None, look: SignalTarget) -> procfs.Stat | None:
    """The stat line of the process of `fd`; None when it is reaped. Raises LookFailed, Unreadable."""
    if look.stat is not None and pidfd is not None:
        return look.stat if identities.pid_of(pidfd) == identities.pid_of(fd) == pid else None
    return identities.read_stat(pid, fd)


def _is_held(identity: Identity, fd: int, pidfd: int | None) -> bool:
    """Whether `fd` is the process of the caller's `pidfd`, which was opened when the identity was verified."""
    if pidfd is None or identities.pid_of(pidfd) != identity.pid:
        return False
    return not identities.compared_by_inode(identity, fd) or identities.pidfd_inode(fd) == identity.pidfd_inode


def _refuse_spared(pid: int, name: str, guard: Guard) -> None:
    if name in {spared[:15] for spared in guard.spare}:
        raise SignalRefused("spared", f"pid {pid} is {name!r}, a spared program")
