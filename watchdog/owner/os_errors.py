"""Explains OSErrors: the errno as a word for logs and a sentence for people.

Each of these errors is reported and retried later, and never worked around: nothing that was made unwritable on purpose
is made writable, and nothing is copied that cannot be renamed. This module changes nothing.
"""

import array
import errno
import fcntl
import os
import stat

FS_IOC_GETFLAGS = 0x80086601  # ioctl_iflags(2)
FLAGS = {0x10: "immutable", 0x20: "append_only"}  # FS_IMMUTABLE_FL, FS_APPEND_FL

WORDS = {
    errno.ENOSPC: ("disk_full", "no space is left on the disk"),
    errno.EDQUOT: ("quota", "the owner's disk quota is used up"),
    errno.EROFS: ("read_only", "the file system is mounted read-only"),
    errno.EPERM: ("not_permitted", "the system does not permit it"),
    errno.EACCES: ("no_access", "the owner has no access to it"),
    errno.EXDEV: ("other_file_system", "it lies on another file system, and is not copied"),
    errno.EBUSY: ("busy", "it is a mount point, or the kernel uses it"),
    errno.EIO: ("io_error", "the disk reports a fault"),
    errno.ESTALE: ("stale_handle", "its network file system has lost it"),
    errno.ENOTCONN: ("not_connected", "the program behind its file system has gone"),
}
ROOM = (
    1 << 15
)  # bytes: the journal of one row's change in an SQLite file is five pages or so (sqlite.org/fileformat.html)
PROTECTED = {
    "immutable": "it, or its directory, was made immutable (chattr +i)",
    "append_only": "it, or its directory, was made append-only (chattr +a)",
}


def explain(error: OSError, parent: int | None = None, name: str | None = None) -> tuple[str, str]:
    """The word and the sentence, which ends with the system's own message and the errno's name.

    With `parent` and `name` (the file to be removed) also checks whether a chattr flag forbids it.
    """
    number = error.errno or 0
    code = errno.errorcode.get(number, "OSError")
    word, words = WORDS.get(number, (code, ""))
    if number == errno.EPERM and parent is not None and name is not None:
        flag = _flag(parent, name) or _flag(parent, ".")
        if flag is not None:
            word, words = flag, PROTECTED[flag]
    said = f"{error.strerror or error} ({code})"
    return word, f"{words}: {said}" if words else said


def unwritable(path: str, *, rights: bool) -> str:
    """Why this uid can write no beat there now; "": it can, as far as is known without trying (quotas are not checked).

    `rights`: also check the file's mode and chattr flags; `touch` works without write permission. Raises OSError.
    """
    disk = os.statvfs(path)
    if disk.f_flag & os.ST_RDONLY:
        return "its file system is mounted read-only"
    free = disk.f_bavail if os.geteuid() else disk.f_bfree
    if disk.f_blocks > 0 and free * disk.f_frsize < ROOM:
        return "its file system is full"
    if disk.f_files > 0 and (disk.f_favail if os.geteuid() else disk.f_ffree) == 0:
        return "its file system has no inode left"
    if rights and not os.access(path, os.W_OK):
        return (
            f"{os.path.basename(path)} may not be written by its owner (mode {stat.S_IMODE(os.stat(path).st_mode):04o})"
        )
    return ""


def _flag(parent: int, name: str) -> str | None:
    """The chattr flag of a file or directory; None if it has none, or none can be read (a link, a device)."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return None
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return None
    flags = array.array("l", [0])
    try:
        fcntl.ioctl(fd, FS_IOC_GETFLAGS, flags)
    except OSError:  # a file system without such flags
        return None
    finally:
        os.close(fd)
    return next((word for bit, word in FLAGS.items() if flags[0] & bit), None)
