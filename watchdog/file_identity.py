"""The identity of an open file, whatever its name: inode, time of creation, mount, namespace owner."""

import ctypes
import fcntl
import os
import sys

from watchdog.errors import PathRefused

FileId = tuple[int, int]  # st_dev, st_ino

# statx(2); Python has no call for it before 3.15.
AT_EMPTY_PATH, STATX_BTIME = 0x1000, 0x800

NS_GET_USERNS, NS_GET_OWNER_UID = 0xB701, 0xB704  # ioctl_ns(2)

_libc = ctypes.CDLL(None, use_errno=True)


def file_id(fd: int) -> FileId:
    """The identity of a directory, whatever its name."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class _Statx(ctypes.Structure):
    """The beginning of statx(2)'s result, up to the time of creation; the whole has 256 bytes."""

    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("before", ctypes.c_byte * 76),  # blksize to atime
        ("born_sec", ctypes.c_int64),
        ("born_nsec", ctypes.c_uint32),
        ("rest", ctypes.c_byte * 164),
    )


def born(fd: int) -> int | None:
    """When the file was made, in ns since the epoch; None if the file system or the C library does not say."""
    found = _Statx()
    call = getattr(_libc, "statx", None)
    if call is None or call(fd, b"", AT_EMPTY_PATH, STATX_BTIME, ctypes.byref(found)) != 0:
        return None
    return found.born_sec * 1_000_000_000 + found.born_nsec if found.mask & STATX_BTIME else None


def mount_id(fd: int) -> int:
    """The mount of a descriptor. A bind mount of the same device has its own id, and the same st_dev."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("mnt_id:"):
                return int(line.split(":", 1)[1])
    raise PathRefused("mount_unknown", "the kernel does not say on which mount this lies")


def namespace_owner(fd: int) -> int:
    """The uid that made the user namespace of this namespace: only that user mounts in it. Raises OSError.

    0 for those that root has made, including root's containers.
    """
    user, uid = fcntl.ioctl(fd, NS_GET_USERNS), bytearray(4)
    try:
        fcntl.ioctl(user, NS_GET_OWNER_UID, uid)
    finally:
        os.close(user)
    return int.from_bytes(uid, sys.byteorder)
