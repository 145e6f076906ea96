"""What the kernel reports about a process through its pidfd alone, without its files (PIDFD_GET_INFO, kernel >= 6.13).

It never hangs: the call takes no lock that an execve holds.
"""

import fcntl
import struct
from typing import NamedTuple

from watchdog.core.ownership import Uids

# include/uapi/linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info), first published size 64 (kernel 6.13); the exit status
# came with 6.15 as a bit of its own, and is set once the process is reaped.
_GET_INFO = 0xC040FF0B
_CREDENTIALS = 1 << 1
_EXIT = 1 << 3
_INFO = struct.Struct("QQ11Ii")


class Info(NamedTuple):
    """The fields of `struct pidfd_info` that matter here. `uids` are from one instant; None once it is reaped.

    `exit_status` is in the format of wait(2); None: not reported.
    """

    parent_pid: int
    uids: Uids | None
    exit_status: int | None


def info(pidfd: int) -> Info | None:
    """The current info; None if the kernel cannot say (an older one, or a reaped process before 6.15)."""
    buffer = bytearray(_INFO.size)
    _INFO.pack_into(buffer, 0, _EXIT | _CREDENTIALS, *([0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, buffer)
    except OSError:
        return None  # EINVAL, ENOTTY: an older kernel; ESRCH: reaped
    mask, _, _, _, parent, real, _, effective, _, saved, _, filesystem, _, status = _INFO.unpack(buffer)
    uids = Uids(real, effective, saved, filesystem) if mask & _CREDENTIALS else None
    return Info(parent, uids, status if mask & _EXIT else None)
