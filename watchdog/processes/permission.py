"""Which processes a user may signal, by the kernel's own rule (kill(2), capabilities(7), user_namespaces(7)).

A host's daemon is root, which the kernel never refuses. So before each signal on a user's behalf it determines, through
the pidfd that gets the signal, whether the kernel would have let that user send it. A helper of theirs could try signal
0, but its answer would be that user's claim about a process of another uid, and older than the signal.

1. The user's uid is the target's real or saved uid.
2. Or the target is in a user namespace that the user created (rootless containers, sub-uids): its creator has CAP_KILL
   in it and in all below. Of the namespaces around the target the one directly below ours counts (cap_capable in the
   kernel).
"""

import errno
import fcntl
import os
import struct

from watchdog.core.ownership import ROOT
from watchdog.processes import identity, procfs

# include/uapi/linux/pidfd.h (kernel 6.11), nsfs.h (4.9, 4.11); ioctl_nsfs(2)
PIDFD_GET_USER_NAMESPACE = 0xFF09
_NS_GET_PARENT = 0xB702
_NS_GET_OWNER_UID = 0xB704
_LEVELS = 33  # user namespaces are nested 32 deep at most (user_namespaces(7))
_UID = struct.Struct("I")


def may_signal(uid: int, pidfd: int) -> bool:
    """Whether the kernel would let a process of that user signal the pidfd's process; True when it is reaped.

    A check that failed counts as no.
    """
    if uid == ROOT:
        return True
    try:
        uids = identity.uids(pidfd)
        if uids is None:
            return True  # the signal reaches no process
        return uid in (uids.real, uids.saved) or _made_above(pidfd) == uid
    except OSError:
        return False


def _made_above(pidfd: int) -> int | None:
    """The creator of the outermost user namespace below ours that contains the process; None: it is in ours.

    Raises OSError if it is reaped, or its namespaces are not below ours.
    """
    ours = os.stat(f"{procfs.PROC}/self/ns/user")
    fd = _user_namespace(pidfd)
    maker: int | None = None
    try:
        for _ in range(_LEVELS):
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino):
                return maker
            buffer = bytearray(_UID.size)
            fcntl.ioctl(fd, _NS_GET_OWNER_UID, buffer)
            (maker,) = _UID.unpack(buffer)
            above = fcntl.ioctl(fd, _NS_GET_PARENT)
            os.close(fd)
            fd = above
        raise OSError(errno.ELOOP, "user namespaces without end")
    finally:
        os.close(fd)


def _user_namespace(pidfd: int) -> int:
    """A descriptor of its user namespace. Raises OSError."""
    try:
        return fcntl.ioctl(pidfd, PIDFD_GET_USER_NAMESPACE)
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EINVAL):
            raise
    pid = identity.pid_of(pidfd)
    if pid is None:
        raise ProcessLookupError(errno.ESRCH, "it is reaped")
    fd = os.open(f"{procfs.PROC}/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    if identity.pid_of(pidfd) is None:  # its pid may have been reused before the open
        os.close(fd)
        raise ProcessLookupError(errno.ESRCH, "it is reaped")
    return fd
