"""What the kernel says of a process by its pidfd alone, without any file of it (PIDFD_GET_INFO, kernel >= 6.13).

It never hangs: the call takes no lock that an execve holds.
"""

import fcntl
import struct
from typing import NamedTuple

from watchdog.core.ownership import Uids

# include/uapi/linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info), first published size 64 (kernel 6.13); the exit status
# came with 6.15 as a bit of its own, answered once the process is reaped.
_GET_INFO = 0xC040FF0B
_CREDENTIALS = 1 << 1
_EXIT = 1 << 3
_INFO = struct.Struct("QQ11Ii")


class Info(NamedTuple):
    """The fields of `struct pidfd_info` that matter here. `uids` are of one instant, and None once it is reaped.

    `exit_status` as wait(2) gives it; None: not told.
    """

    parent_pid: int
    uids: Uids | None
    exit_status: int | None


def info(pidfd: int) -> Info | None:
    """As of now; None where the kernel cannot say (older, or reaped before 6.15 could keep the exit status)."""
    buffer = bytearray(_INFO.size)
    _INFO.pack_into(buffer, 0, _EXIT | _CREDENTIALS, *([0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, buffer)
    except OSError:
        return None  # EINVAL, ENOTTY: an older kernel; ESRCH: reaped
    mask, _, _, _, parent, real, _, effective, _, saved, _, filesystem, _, status = _INFO.unpack(buffer)
    uids = Uids(real, effective, saved, filesystem) if mask & _CREDENTIALS else None
    return Info(parent, uids, status if mask & _EXIT else None)
