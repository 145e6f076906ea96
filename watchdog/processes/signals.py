"""The one guarded send. Nothing else in the daemon signals a process of an agent's tree.

1. The number and the signal must be what they claim (no bool, nothing <= 1, nothing over pid_max).
2. Same host, same boot; not ourselves, not our ancestors, not another agent's process.
3. A pidfd is opened, then the whole identity is verified, then what it is (kernel thread, spared program).
4. The signal goes through that pidfd, so a number that passed on in between hits nobody.

Never by number and never to a group: to signal group 1 is to signal every process of the machine.
"""

import os
import signal
from dataclasses import dataclass
from enum import StrEnum

from watchdog.core.model import Identity
from watchdog.errors import SignalRefused
from watchdog.processes import identity as identities
from watchdog.processes import procfs


class SendResult(StrEnum):
    """What became of one signal that the guard let through."""

    SENT = "sent"
    GONE = "gone"  # proved: no such process, another one of the same number, or nothing but a zombie
    NOT_PERMITTED = "not_permitted"  # the kernel's EPERM


@dataclass(frozen=True, slots=True)
class Guard:
    """Who must never be signalled.

    `protected`: (pid, start ticks) of the other agents' trees and of whatever else the caller spares. `spare`: names of
    programs (comm, the first 15 characters count).
    """

    host: str
    protected: frozenset[tuple[int, int]] = frozenset()
    spare: frozenset[str] = frozenset()


def pid_max() -> int:
    """The largest pid that the kernel may give out, or its compiled-in limit (proc(5)) where that cannot be read."""
    try:
        return int(procfs.read("/proc/sys/kernel/pid_max"))
    except (OSError, ValueError):
        return 1 << 22


def ancestors() -> frozenset[int]:
    """The pids above our own process, read anew. The walk ends at one that we may not see (another user's)."""
    found: set[int] = set()
    pid = os.getppid()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            pid = procfs.parse_stat(procfs.read(f"{procfs.PROC}/{pid}/stat")).parent_pid
        except (OSError, ValueError):
            break
    return frozenset(found)


def send(identity: Identity, sig: signal.Signals, guard: Guard) -> SendResult:
    """Send `sig` to exactly that process, or to nobody.

    Raises SignalRefused; its reasons: bad_signal bad_pid other_host other_boot self ancestor other_agent kernel_thread
    spared look_failed.
    """
    pid = identity.pid
    if not isinstance(sig, signal.Signals):
        raise SignalRefused("bad_signal", f"{sig!r} is not a signal")
    if type(pid) is not int or not 1 < pid <= pid_max():
        raise SignalRefused("bad_pid", f"{pid!r} is no pid that may be signalled (2 to pid_max)")
    if type(identity.start_ticks) is not int:
        raise SignalRefused("bad_pid", f"start ticks {identity.start_ticks!r} of pid {pid} are no number")
    if identity.host != guard.host:
        raise SignalRefused("other_host", f"pid {pid} was read on host {identity.host!r}, this is {guard.host!r}")
    if pid == os.getpid():
        raise SignalRefused("self", f"pid {pid} is the daemon itself")
    if pid in ancestors():
        raise SignalRefused("ancestor", f"pid {pid} is an ancestor of the daemon")
    if (pid, identity.start_ticks) in guard.protected:
        raise SignalRefused("other_agent", f"pid {pid} belongs to another agent, or is spared")
    fd: int | None = None
    try:
        if identity.boot_id != identities.boot_id():
            raise SignalRefused("other_boot", f"pid {pid} was read in another boot")
        fd = identities.open_pidfd(pid)
        if fd is None:
            return SendResult.GONE
        stat = identities.read_stat(pid, fd)
        if stat is None or not identities.matches(identity, fd, stat):
            return SendResult.GONE
        if stat.kernel_thread:
            raise SignalRefused("kernel_thread", f"pid {pid} is the kernel's thread {stat.name!r}")
        if stat.name in {name[:15] for name in guard.spare}:
            raise SignalRefused("spared", f"pid {pid} is {stat.name!r}, a spared program")
        if stat.dead:
            return SendResult.GONE
        signal.pidfd_send_signal(fd, sig)
    except ProcessLookupError:
        return SendResult.GONE
    except identities.LookFailed as error:
        raise SignalRefused("look_failed", f"pid {pid} could not be verified: {error.strerror}") from error
    except PermissionError:
        return SendResult.NOT_PERMITTED
    finally:
        if fd is not None:
            os.close(fd)
    return SendResult.SENT
