"""What the kernel says of a process by its pidfd alone, without any file of it (PIDFD_GET_INFO, kernel >= 6.13).

It never hangs: the call takes no lock that an execve holds.
"""

import fcntl
import struct
from typing import NamedTuple

# include/uapi/linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info), first published size 64 (kernel 6.13); the exit status
# came with 6.15 as a bit of its own, answered once the process is reaped.
_GET_INFO = 0xC040FF0B
_EXIT = 1 << 3
_INFO = struct.Struct("QQ11Ii")


class Info(NamedTuple):
    """The fields of `struct pidfd_info` that matter here. `exit_status` as wait(2) gives it; None: not told."""

    parent_pid: int
    uid: int
    exit_status: int | None


def info(pidfd: int) -> Info | None:
    """As of now; None where the kernel cannot say (older, or reaped before 6.15 could keep the exit status)."""
    buffer = bytearray(_INFO.size)
    _INFO.pack_into(buffer, 0, _EXIT, *([0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, buffer)
    except OSError:
        return None  # EINVAL, ENOTTY: an older kernel; ESRCH: reaped
    mask, _, _, _, parent, uid, *_, status = _INFO.unpack(buffer)
    return Info(parent, uid, status if mask & _EXIT else None)
