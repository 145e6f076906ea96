"""Whom a user may signal, by the kernel's own rule (kill(2), capabilities(7), user_namespaces(7)).

The daemon of a host is root, which the kernel never refuses. So before each signal that it sends for a user's sake it
works out, through the pidfd that gets the signal, what the kernel would have answered that user. A helper of theirs
could try signal 0, but its answer would be that user's word about a process of another uid, and older than the signal.

1. The user's uid is the target's real or saved uid.
2. Or the target lives in a user namespace that the user made (rootless containers, sub-uids): its maker has CAP_KILL
   in it and in all below. Of those above the target the one right below our own counts (cap_capable in the kernel).
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
    """Whether the kernel would let a process of that user signal the one behind the pidfd; True when it is reaped.

    A look that failed is a refusal.
    """
    if uid == ROOT:
        return True
    try:
        uids = identity.uids(pidfd)
        if uids is None:
            return True  # nobody is reached
        return uid in (uids.real, uids.saved) or _made_above(pidfd) == uid
    except OSError:
        return False


def _made_above(pidfd: int) -> int | None:
    """The creator of the outermost user namespace, below our own, that the process lives in; None: it lives in ours.

    Raises OSError: it is reaped, or its namespaces are not below ours.
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
    if identity.pid_of(pidfd) is None:  # its number may have been reused before
        os.close(fd)
        raise ProcessLookupError(errno.ESRCH, "it is reaped")
    return fd
