"""Which process is this, and is it still there.

A pid alone identifies nothing: numbers come back (of 300 forced reuses 155 had even the same start tick). So a look
opens a pidfd first, reads through it or checks against it, and compares the whole identity. Without pidfd inodes
(kernel < 6.9) an identity is given out only when the tick in which its process started is over: whoever gets the number
later starts later.

- "Gone" is said only where it is proved. A look that failed (EPERM, hidepid, no descriptors left) raises `LookFailed`
  or gives `Presence.UNKNOWN`; a read that hangs is a failed look too (`Unreadable`).
- Where the inode is known no file is read: the pidfd alone tells which process it is, and whether it has ended.
- Sends no signal, not even signal 0.
"""

import errno
import os
import select
import socket
import time
from typing import NamedTuple

from watchdog.clock import Clock
from watchdog.core.ownership import Uids
from watchdog.core.process import Identity, Presence
from watchdog.processes import bounded as bounds
from watchdog.processes import pidfd_info, procfs
from watchdog.processes.bounded import LookFailed as LookFailed
from watchdog.processes.bounded import Unreadable as Unreadable
from watchdog.processes.bounded import bounded

_pidfs: bool | None = None  # None: not yet looked
_boot_id: str | None = None


def this_host(host: str | None) -> str:
    """The name under which this machine's processes are kept: as configured, else machine-id(5), else the hostname."""
    if host:
        return host
    try:
        machine = procfs.read("/etc/machine-id").decode("ascii", "replace").strip()
    except OSError:
        machine = ""
    return machine or socket.gethostname()


def boot_id() -> str:
    """The kernel's random id of this boot (random(4)). Raises LookFailed where /proc is not mounted."""
    global _boot_id
    if _boot_id is None:
        try:
            _boot_id = procfs.read("/proc/sys/kernel/random/boot_id").decode("ascii").strip()
        except OSError as error:
            raise LookFailed(error.errno, "cannot read the boot id; is /proc mounted?") from error
    return _boot_id


def open_pidfd(pid: int) -> int | None:
    """A pidfd, or None when there is provably no such process (a number that is only a thread's counts as none).

    Raises LookFailed where pidfds are refused or descriptors are out. The caller closes it.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        # A thread's number: EINVAL before 6.16, ENOENT since. EINVAL also comes for one that is just being reaped.
        if error.errno in (errno.ESRCH, errno.ENOENT, errno.EINVAL):
            return None
        raise LookFailed(error.errno, f"pidfd_open({pid}): {error.strerror}") from error
    except (OverflowError, ValueError):
        return None


def use_pidfd_inodes(on: bool | None) -> None:
    """Force pidfd inodes on or off; None: look again. For tests, and for a kernel found to be lying."""
    global _pidfs
    _pidfs = on


def pidfd_inodes_work() -> bool:
    """Whether each process has a pidfd inode of its own (pidfs, kernel >= 6.9; before, all share one)."""
    global _pidfs
    if _pidfs is None:
        mine = os.pidfd_open(os.getpid())
        try:
            for other in (os.getppid(), 1, *(int(name) for name in os.listdir(procfs.PROC) if name.isdigit())):
                if other in (0, os.getpid()):
                    continue
                fd = open_pidfd(other)
                if fd is None:
                    continue
                try:
                    _pidfs = os.fstat(fd).st_ino != os.fstat(mine).st_ino
                finally:
                    os.close(fd)
                break
        finally:
            os.close(mine)
    return bool(_pidfs)  # alone in a namespace: no, and look again later


def pidfd_inode(fd: int) -> int | None:
    """The process's own number for this boot, or None where the kernel has none."""
    return os.fstat(fd).st_ino if pidfd_inodes_work() else None


def pid_of(fd: int) -> int | None:
    """The pid behind a pidfd, in our namespace; None once it is reaped. Raises LookFailed."""
    try:
        for line in procfs.read(f"/proc/self/fdinfo/{fd}").splitlines():
            if line.startswith(b"Pid:"):
                number = int(line[4:])
                return number if number > 0 else None
    except OSError as error:
        raise LookFailed(error.errno, f"fdinfo of a pidfd: {error.strerror}") from error
    raise LookFailed(errno.EBADF, f"descriptor {fd} is not a pidfd")


def read_stat(pid: int, fd: int) -> procfs.Stat | None:
    """/proc/PID/stat of the very process that `fd` holds; None when it is reaped. Raises LookFailed.

    The number cannot pass to another process before ours is reaped, so a pidfd that still has a pid after the read
    proves whose line that was.
    """
    failure: OSError | None = None
    stat: procfs.Stat | None = None
    try:
        stat = procfs.stat(pid)
    except ValueError as error:
        failure = OSError(errno.EIO, str(error))
    except OSError as error:
        failure = error
    if pid_of(fd) is None:
        return None
    if isinstance(failure, Unreadable):
        raise failure
    if stat is None:
        assert failure is not None
        raise LookFailed(failure.errno, f"process {pid} exists, but cannot be examined: {failure.strerror}")
    return stat


def read_identity(pid: int, host: str) -> Identity | None:
    """The identity of a process, zombies included; None when there is provably none. Raises LookFailed."""
    fd = open_pidfd(pid)
    if fd is None:
        return None
    try:
        inode = pidfd_inode(fd)
        stat = read_stat(pid, fd)
        if stat is not None and inode is None:
            if not tick_is_over(stat.start_ticks):
                raise LookFailed(
                    errno.ETIME, f"process {pid} started at tick {stat.start_ticks}, which is in the future"
                )
            stat = stat if pid_of(fd) is not None else None
    finally:
        os.close(fd)
    return None if stat is None else Identity(host, boot_id(), pid, stat.start_ticks, inode)


def tick_is_over(tick: int) -> bool:
    """Wait, 10 ms at most, until that tick of the boot clock is over; False when it is yet to come.

    From then on (pid, that tick) is one process of this boot: no other starts in that tick.
    """
    clock = Clock()
    for _ in range(20):
        if clock.now().boot * procfs.TICKS_PER_SECOND >= tick + 1:
            return True
        time.sleep(0.2 / procfs.TICKS_PER_SECOND)
    return False


def names_one(identity: Identity, fd: int) -> bool:
    """Whether more than number and tick were compared when `fd` matched: the inode, which no two processes share."""
    return identity.pidfd_inode is not None and pidfd_inode(fd) is not None


def matches(identity: Identity, fd: int, stat: procfs.Stat) -> bool:
    """Whether `fd` and its stat line are that identity. Raises LookFailed for a look that contradicts itself."""
    inode = pidfd_inode(fd)
    same_inode = identity.pidfd_inode is None or inode is None or identity.pidfd_inode == inode
    same_ticks = identity.start_ticks == stat.start_ticks
    if same_inode and not same_ticks and identity.pidfd_inode is not None and inode is not None:
        # One inode is one process; only a time namespace shifts the ticks (time_namespaces(7)).
        raise LookFailed(errno.ESTALE, f"process {identity.pid}: the pidfd's inode fits, the start time does not")
    return same_inode and same_ticks and identity.boot_id == boot_id()


def pin(identity: Identity) -> int | None:
    """A pidfd of exactly that process (perhaps a zombie), or None when it is provably gone. Raises LookFailed.

    By the inode alone where it is known, as no two processes of a boot share one; else by its stat line. The caller has
    made sure that the identity is of this host, and closes the pidfd.
    """
    if identity.boot_id != boot_id():
        return None
    fd = open_pidfd(identity.pid)
    if fd is None:
        return None
    keep = False
    try:
        if names_one(identity, fd):
            keep = pidfd_inode(fd) == identity.pidfd_inode
        else:
            stat = read_stat(identity.pid, fd)
            keep = stat is not None and matches(identity, fd, stat)
        return fd if keep else None
    finally:
        if not keep:
            os.close(fd)


def passed_on(identity: Identity) -> bool:
    """Whether its number is another process's by now; False where that cannot be seen."""
    fd = open_pidfd(identity.pid)
    if fd is None:
        return False
    try:
        if names_one(identity, fd):
            return pidfd_inode(fd) != identity.pidfd_inode and pid_of(fd) is not None
        stat = read_stat(identity.pid, fd)
        return stat is not None and not matches(identity, fd, stat)
    except LookFailed:
        return False
    finally:
        os.close(fd)


def complete(identity: Identity) -> Identity | None:
    """The same identity with the pidfd's inode where there is one; None when provably gone. Raises LookFailed."""
    fd = pin(identity)
    if fd is None:
        return None
    try:
        return Identity(
            identity.host, identity.boot_id, identity.pid, identity.start_ticks, identity.pidfd_inode or pidfd_inode(fd)
        )
    finally:
        os.close(fd)


def ended(fd: int) -> bool:
    """Whether the kernel calls the whole thread group ended.

    A pidfd becomes readable only with the last thread (pidfd_open(2); seen on 6.18: a dead leader with a living
    thread is not). We still ask /proc, for a kernel that says it too early.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(0):
        return False
    pid = pid_of(fd)
    return pid is None or not _has_living_thread(pid, fd)


def _has_living_thread(pid: int, fd: int) -> bool:
    try:
        return procfs.living_thread(pid) and pid_of(fd) is not None
    except OSError as error:
        if pid_of(fd) is None:
            return False
        if error.errno == errno.ENOENT or isinstance(error, Unreadable):  # hidepid, or it hangs: poll's word alone
            return False
        raise LookFailed(error.errno, f"threads of {pid}: {error.strerror}") from error


def presence(identity: Identity, pidfd: int | None, *, host: str | None = None) -> Presence:
    """ALIVE, ABSENT (proved), or UNKNOWN (the look failed). `pidfd`: from `pin`, when the caller holds one.

    With `host` (our own) an identity of another host is UNKNOWN; without, the caller has made sure of it: another
    host's boot id would read as a boot that is gone.
    """
    if host is not None and identity.host != host:
        return Presence.UNKNOWN
    own: int | None = None
    try:
        if identity.boot_id != boot_id():
            return Presence.ABSENT
        fd = pidfd
        if fd is None:
            fd = own = pin(identity)
        return Presence.ABSENT if fd is None or ended(fd) else Presence.ALIVE
    except OSError:
        return Presence.UNKNOWN
    finally:
        if own is not None:
            os.close(own)


def uids(pidfd: int) -> Uids | None:
    """The four uids of the process behind a pidfd (zombies included), of one instant; None once it is reaped.

    By the pidfd alone (kernel >= 6.13: 1 µs, and no file of a process that hangs in execve is read), before that from
    /proc/PID/status. Raises LookFailed.
    """
    known = pidfd_info.info(pidfd)
    if known is not None and known.uids is not None:
        return known.uids
    pid = pid_of(pidfd)
    if pid is None:
        return None
    failure: Exception | None = None
    found: Uids | None = None
    try:
        found = Uids(*map(int, procfs.status_value(pid, "Uid").split()))
    except (OSError, ValueError, TypeError) as error:
        failure = error
    if pid_of(pidfd) is None:  # its number cannot have been reused before: the line was its own
        return None
    if found is None:
        raise LookFailed(getattr(failure, "errno", None) or errno.EIO, f"the uids of process {pid}: {failure}")
    return found


class Seen(NamedTuple):
    """One process at one look: the pidfd still had a pid after the last read."""

    identity: Identity
    stat: procfs.Stat
    uids: Uids


class ThreadSeen(NamedTuple):
    """A number that is a thread's: /proc has it, and never lists it (proc(5))."""

    start_ticks: int


@bounded
def look_at(pids: tuple[int, ...], host: str) -> dict[int, Seen | ThreadSeen | OSError]:
    """Identity, stat line and uids of each; ProcessLookupError where there is provably no such process.

    In one question to the reader: each read may take as long as its process's owner likes, and the loop must not wait.
    """
    return bounds.each(pids, lambda pid: _seen(pid, host))


def _seen(pid: int, host: str) -> Seen | ThreadSeen:
    found = read_identity(pid, host)
    pidfd = pin(found) if found is not None else None
    if found is None or pidfd is None:
        return _thread(pid)
    try:
        stat, its = read_stat(pid, pidfd), uids(pidfd)
        if stat is None or its is None or pid_of(pidfd) is None:
            raise ProcessLookupError(errno.ESRCH, f"no process {pid}")
        return Seen(found, stat, its)
    finally:
        os.close(pidfd)


def _thread(pid: int) -> ThreadSeen:
    try:
        if procfs.status_value(pid, "Tgid") != str(pid):
            return ThreadSeen(procfs.stat(pid).start_ticks)
    except Unreadable:
        raise
    except (OSError, ValueError):
        pass  # not even that
    raise ProcessLookupError(errno.ESRCH, f"no process {pid}")


def is_kernel_thread(pid: int) -> bool:
    """Whether that number is a thread of the kernel. Raises LookFailed, ProcessLookupError when there is none."""
    try:
        return procfs.stat(pid).kernel_thread
    except (OSError, ValueError) as error:
        raise _gone_or_failed(pid, error) from error


def pid_namespace(pid: int) -> int:
    """The inode of its pid namespace (pid_namespaces(7)). Raises LookFailed, ProcessLookupError when there is none."""
    try:
        return os.stat(f"{procfs.PROC}/{pid}/ns/pid").st_ino  # takes no lock: stat(2) of a link in ns/
    except OSError as error:
        raise _gone_or_failed(pid, error) from error


def _gone_or_failed(pid: int, error: Exception) -> OSError:
    """ENOENT from /proc is no proof (hidepid); pidfd_open decides."""
    if isinstance(error, Unreadable):
        return error
    fd = open_pidfd(pid)
    if fd is None:
        return ProcessLookupError(errno.ESRCH, f"no process {pid}")
    os.close(fd)
    return LookFailed(
        getattr(error, "errno", None) or errno.EIO, f"process {pid} exists, but cannot be examined: {error}"
    )
