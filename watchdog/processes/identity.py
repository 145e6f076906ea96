"""Which process a pid means, and whether it is still there.

A pid alone identifies nothing: pids are reused (of 300 forced reuses 155 even had the same start tick). So each check
first opens a pidfd, reads through it or verifies against it, and compares the whole identity. Without pidfd inodes
(kernel < 6.9) an identity is returned only once the tick in which its process started is over: a process that gets the
pid later starts later.

- A process is reported as gone only if that is proved. A check that failed (EPERM, hidepid, no descriptors left) raises
  `LookFailed` or gives `Presence.UNKNOWN`; a read that hangs is a failed check too (`Unreadable`).
- If the inode is known, no file is read: the pidfd alone shows which process it is and whether it has exited.
- No signal is sent, not even signal 0.
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

_pidfs: bool | None = None  # None: not yet checked
_boot_id: str | None = None


def this_host(host: str | None) -> str:
    """The host name in identities: as configured, else machine-id(5), else the hostname."""
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
    """A pidfd, or None when there is provably no such process (a number that is only a thread's is not a process).

    Raises LookFailed if pidfds are refused or no descriptors are left. The caller closes it.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        # A thread's number: EINVAL before 6.16, ENOENT since. EINVAL also for a process that is just being reaped.
        if error.errno in (errno.ESRCH, errno.ENOENT, errno.EINVAL):
            return None
        raise LookFailed(error.errno, f"pidfd_open({pid}): {error.strerror}") from error
    except (OverflowError, ValueError):
        return None


def use_pidfd_inodes(on: bool | None) -> None:
    """Force pidfd inodes on or off; None: detect again. For tests, and for a kernel whose inodes turn out to be
    wrong.
    """
    global _pidfs
    _pidfs = on


def pidfd_inodes_work() -> bool:
    """Whether each process has a pidfd inode of its own (pidfs, kernel >= 6.9; before that all share one)."""
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
    return bool(_pidfs)  # alone in a namespace: no, and detect again later


def pidfd_inode(fd: int) -> int | None:
    """The process's number that is unique in this boot, or None if the kernel has none."""
    return os.fstat(fd).st_ino if pidfd_inodes_work() else None


def pid_of(fd: int) -> int | None:
    """The pid of a pidfd's process, in our namespace; None once it is reaped. Raises LookFailed."""
    try:
        for line in procfs.read(f"/proc/self/fdinfo/{fd}").splitlines():
            if line.startswith(b"Pid:"):
                number = int(line[4:])
                return number if number > 0 else None
    except OSError as error:
        raise LookFailed(error.errno, f"fdinfo of a pidfd: {error.strerror}") from error
    raise LookFailed(errno.EBADF, f"descriptor {fd} is not a pidfd")


def read_stat(pid: int, fd: int) -> procfs.Stat | None:
    """/proc/PID/stat of exactly the process of `fd`; None when it is reaped. Raises LookFailed.

    The pid cannot be reused before ours is reaped, so a pidfd that still has a pid after the read proves that the line
    was this process's.
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
    """Wait, 10 ms at most, until that tick of the boot clock is over; False if it is in the future.

    From then on (pid, that tick) identifies one process of this boot: no other can start in that tick.
    """
    clock = Clock()
    for _ in range(20):
        if clock.now().boot * procfs.TICKS_PER_SECOND >= tick + 1:
            return True
        time.sleep(0.2 / procfs.TICKS_PER_SECOND)
    return False


def compared_by_inode(identity: Identity, fd: int) -> bool:
    """Whether `matches` could compare inodes, which no two processes share, and not only pid and start tick."""
    return identity.pidfd_inode is not None and pidfd_inode(fd) is not None


def matches(identity: Identity, fd: int, stat: procfs.Stat) -> bool:
    """Whether `fd` and its stat line match that identity. Raises LookFailed if they contradict each other."""
    inode = pidfd_inode(fd)
    same_inode = identity.pidfd_inode is None or inode is None or identity.pidfd_inode == inode
    same_ticks = identity.start_ticks == stat.start_ticks
    if same_inode and not same_ticks and identity.pidfd_inode is not None and inode is not None:
        # One inode is one process; only a time namespace can shift the ticks (time_namespaces(7)).
        raise LookFailed(errno.ESTALE, f"process {identity.pid}: the pidfd's inode fits, the start time does not")
    return same_inode and same_ticks and identity.boot_id == boot_id()


def pin(identity: Identity) -> int | None:
    """A pidfd of exactly that process, maybe a zombie, or None when it is provably gone. Raises LookFailed.

    Compares only the inode if it is known, as no two processes of a boot share one; otherwise the stat line. The caller
    must have checked that the identity is of this host, and closes the pidfd.
    """
    if identity.boot_id != boot_id():
        return None
    fd = open_pidfd(identity.pid)
    if fd is None:
        return None
    keep = False
    try:
        if compared_by_inode(identity, fd):
            keep = pidfd_inode(fd) == identity.pidfd_inode
        else:
            stat = read_stat(identity.pid, fd)
            keep = stat is not None and matches(identity, fd, stat)
        return fd if keep else None
    finally:
        if not keep:
            os.close(fd)


def passed_on(identity: Identity) -> bool:
    """Whether its pid has been reused by another process; False if that cannot be determined."""
    fd = open_pidfd(identity.pid)
    if fd is None:
        return False
    try:
        if compared_by_inode(identity, fd):
            return pidfd_inode(fd) != identity.pidfd_inode and pid_of(fd) is not None
        stat = read_stat(identity.pid, fd)
        return stat is not None and not matches(identity, fd, stat)
    except LookFailed:
        return False
    finally:
        os.close(fd)


def complete(identity: Identity) -> Identity | None:
    """The same identity with the pidfd's inode if there is one; None when provably gone. Raises LookFailed."""
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
    """Whether the whole thread group has exited, according to the kernel.

    A pidfd becomes readable only when the last thread exits (pidfd_open(2); seen on 6.18: a dead leader with a living
    thread is not readable). /proc is checked too, for kernels that report it too early.
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
        if error.errno == errno.ENOENT or isinstance(error, Unreadable):  # hidepid, or it hangs: rely on poll alone
            return False
        raise LookFailed(error.errno, f"threads of {pid}: {error.strerror}") from error


def presence(identity: Identity, pidfd: int | None, *, host: str | None = None) -> Presence:
    """ALIVE, ABSENT (proved), or UNKNOWN (the check failed). `pidfd`: from `pin`, if the caller holds one.

    With `host` (our own) an identity of another host is UNKNOWN. Without it the caller must have checked the host:
    another host's boot id would look like an earlier boot.
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
    """The four uids of a pidfd's process (zombies included) at one instant; None once it is reaped.

    From the pidfd alone (kernel >= 6.13: 1 µs, and no file of a process that hangs in execve is read), on older kernels
    from /proc/PID/status. Raises LookFailed.
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
    if pid_of(pidfd) is None:  # otherwise its pid was not reused before this, and the line was its own
        return None
    if found is None:
        raise LookFailed(getattr(failure, "errno", None) or errno.EIO, f"the uids of process {pid}: {failure}")
    return found


class Seen(NamedTuple):
    """One process at one instant: the pidfd still had a pid after the last read."""

    identity: Identity
    stat: procfs.Stat
    uids: Uids


class ThreadSeen(NamedTuple):
    """A number that belongs to a thread: /proc/NUMBER exists but is not listed (proc(5))."""

    start_ticks: int


@bounded
def look_at(pids: tuple[int, ...], host: str) -> dict[int, Seen | ThreadSeen | OSError]:
    """Identity, stat line and uids of each; ProcessLookupError if there is provably no such process.

    One request to the reader for all: each read may take as long as the process's owner likes, and the event loop must
    not wait.
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
        pass  # no thread either
    raise ProcessLookupError(errno.ESRCH, f"no process {pid}")


def is_kernel_thread(pid: int) -> bool:
    """Whether that pid is a kernel thread. Raises LookFailed, ProcessLookupError when there is none."""
    try:
        return procfs.stat(pid).kernel_thread
    except (OSError, ValueError) as error:
        raise _gone_or_failed(pid, error) from error


def pid_namespace(pid: int) -> int:
    """The inode of its pid namespace (pid_namespaces(7)). Raises LookFailed, ProcessLookupError when there is none."""
    try:
        return os.stat(f"{procfs.PROC}/{pid}/ns/pid").st_ino  # stat(2) of a link in ns/ takes no lock
    except OSError as error:
        raise _gone_or_failed(pid, error) from error


def _gone_or_failed(pid: int, error: Exception) -> OSError:
    """The error to raise: ENOENT from /proc proves nothing (hidepid), so pidfd_open decides."""
    if isinstance(error, Unreadable):
        return error
    fd = open_pidfd(pid)
    if fd is None:
        return ProcessLookupError(errno.ESRCH, f"no process {pid}")
    os.close(fd)
    return LookFailed(
        getattr(error, "errno", None) or errno.EIO, f"process {pid} exists, but cannot be examined: {error}"
    )
