"""Which process is this, is it still there, how did it end.

A pid alone identifies nothing: numbers come back (of 300 forced reuses 155 had even the same start tick). So a look
opens a pidfd first, reads through it or checks against it, and compares the whole identity.

- "Gone" is said only where it is proved. A look that failed (EPERM, hidepid, no descriptors left) raises `LookFailed`
  or gives `Presence.UNKNOWN`.
- Sends no signal, not even signal 0.
"""

import errno
import fcntl
import os
import select
import socket
import struct

from watchdog.core.model import Identity, Presence
from watchdog.processes import procfs

# include/uapi/linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info), first published size 64 (kernel 6.13); the exit status
# came with 6.15 as a bit of its own, answered once the process is reaped.
PIDFD_GET_INFO = 0xC040FF0B
PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO = struct.Struct("QQ11Ii")

_pidfs: bool | None = None  # None: not yet looked
_boot_id: str | None = None


class LookFailed(OSError):
    """The kernel did not let us look (or could not): nothing is known of that process, least of all that it is gone."""


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
    raise LookFailed(errno.EBADF, f"descriptor {fd} is no pidfd")


def read_stat(pid: int, fd: int) -> procfs.Stat | None:
    """/proc/PID/stat of the very process that `fd` holds; None when it is reaped. Raises LookFailed.

    The number cannot pass to another process before ours is reaped, so a pidfd that still has a pid after the read
    proves whose line that was.
    """
    failure: OSError | None = None
    stat: procfs.Stat | None = None
    try:
        stat = procfs.parse_stat(procfs.read(f"{procfs.PROC}/{pid}/stat"))
    except ValueError as error:
        failure = OSError(errno.EIO, str(error))
    except OSError as error:
        failure = error
    if pid_of(fd) is None:
        return None
    if stat is None:
        assert failure is not None
        raise LookFailed(failure.errno, f"process {pid} is there, but not for us to see: {failure.strerror}")
    return stat


def read_identity(pid: int, host: str) -> Identity | None:
    """The identity of a process, zombies included; None when there is provably none. Raises LookFailed."""
    fd = open_pidfd(pid)
    if fd is None:
        return None
    try:
        inode = pidfd_inode(fd)
        stat = read_stat(pid, fd)
    finally:
        os.close(fd)
    return None if stat is None else Identity(host, boot_id(), pid, stat.start_ticks, inode)


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

    The caller has made sure that the identity is of this host, and closes the pidfd.
    """
    if identity.boot_id != boot_id():
        return None
    fd = open_pidfd(identity.pid)
    if fd is None:
        return None
    keep = False
    try:
        stat = read_stat(identity.pid, fd)
        keep = stat is not None and matches(identity, fd, stat)
        return fd if keep else None
    finally:
        if not keep:
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


def _ended(fd: int) -> bool:
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
        threads = os.listdir(f"{procfs.PROC}/{pid}/task")
    except OSError as error:
        if pid_of(fd) is None:
            return False
        if error.errno == errno.ENOENT:  # hidepid: poll's word alone
            return False
        raise LookFailed(error.errno, f"threads of {pid}: {error.strerror}") from error
    for thread in threads:
        try:
            if procfs.parse_stat(procfs.read(f"{procfs.PROC}/{pid}/task/{thread}/stat")).state not in "ZX":
                return pid_of(fd) is not None
        except (OSError, ValueError):
            continue  # ended while we looked
    return False


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
        return Presence.ABSENT if fd is None or _ended(fd) else Presence.ALIVE
    except OSError:
        return Presence.UNKNOWN
    finally:
        if own is not None:
            os.close(own)


def exit_status(pidfd: int) -> tuple[int | None, int | None] | None:
    """(exit code, None) or (None, signal) of an ended process, whoever's child it was; None when the kernel cannot say.

    Reaped: PIDFD_GET_INFO (kernel >= 6.15). A zombie: field 52 of its stat, which reads 0 where we have no right to it
    (proc(5)), so there a 0 is believed only of our own uid's processes, or as root.
    """
    status: int | None = None
    buffer = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(buffer, 0, PIDFD_INFO_EXIT, *([0] * 13))
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, buffer)
        info = _PIDFD_INFO.unpack(buffer)
        if info[0] & PIDFD_INFO_EXIT:
            status = info[-1]
    except OSError:
        pass  # EINVAL, ENOTTY: an older kernel; ESRCH: reaped before 6.15 could keep it
    if status is None:
        status = _zombie_status(pidfd)
    if status is None:
        return None
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def _zombie_status(pidfd: int) -> int | None:
    try:
        pid = pid_of(pidfd)
        if pid is None or not _ended(pidfd):
            return None
        status = int(procfs.read(f"{procfs.PROC}/{pid}/stat").split()[-1])
        entitled = status != 0 or os.geteuid() == 0 or set(_uids(pid)[:3]) == {os.geteuid()}
        return status if entitled and pid_of(pidfd) == pid else None
    except (OSError, ValueError):
        return None


def _uids(pid: int) -> list[int]:
    return [int(uid) for uid in procfs.status_value(pid, "Uid").split()]


def owner_uid(pid: int) -> int:
    """The real uid of a process, as the kernel says now. Raises LookFailed, ProcessLookupError when there is none."""
    try:
        return _uids(pid)[0]
    except (OSError, ValueError) as error:
        raise _gone_or_failed(pid, error) from error


def is_kernel_thread(pid: int) -> bool:
    """Whether that number is a thread of the kernel. Raises LookFailed, ProcessLookupError when there is none."""
    try:
        return procfs.parse_stat(procfs.read(f"{procfs.PROC}/{pid}/stat")).kernel_thread
    except (OSError, ValueError) as error:
        raise _gone_or_failed(pid, error) from error


def pid_namespace(pid: int) -> int:
    """The inode of its pid namespace (pid_namespaces(7)). Raises LookFailed, ProcessLookupError when there is none."""
    try:
        return os.stat(f"{procfs.PROC}/{pid}/ns/pid").st_ino
    except OSError as error:
        raise _gone_or_failed(pid, error) from error


def _gone_or_failed(pid: int, error: Exception) -> OSError:
    """ENOENT from /proc is no proof (hidepid); pidfd_open is asked who is right."""
    fd = open_pidfd(pid)
    if fd is None:
        return ProcessLookupError(errno.ESRCH, f"no process {pid}")
    os.close(fd)
    return LookFailed(
        getattr(error, "errno", None) or errno.EIO, f"process {pid} is there, but not for us to see: {error}"
    )
