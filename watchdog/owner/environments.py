"""The environment that a process was started with, where it was this uid that started it.

A set-uid program runs with the environment of the user who started it: read for a moment, it would be another user's
words in the mouth of this one. What counts is what the kernel noted at the exec (getauxval(3)): no later setuid(2)
changes that.
"""

import os
import struct

from watchdog.owner import proc_files

AT_PAGESZ, AT_UID, AT_EUID, AT_SECURE = 6, 11, 12, 23  # getauxval(3)
AUXV = 4096  # bytes that are read of it; it has about 400
ENVIRONMENT = 1 << 20  # bytes that are read


def of(pid: int) -> dict[str, str]:
    """Its variables; none when they cannot be read, or when another uid or a set-uid program's user chose them."""
    try:
        before = _auxiliary(pid)
        if not _is_ours(before):
            return {}
        text = os.fsdecode(proc_files.read(pid, "environ", ENVIRONMENT))
        if _auxiliary(pid) != before:  # it has executed something meanwhile: addresses in there are random (ASLR)
            return {}
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in text.split("\0") if "=" in word)


def _auxiliary(pid: int) -> bytes:
    return proc_files.read(pid, "auxv", AUXV)


def _is_ours(auxiliary: bytes) -> bool:
    uid = os.geteuid()
    for pair in ("=QQ", "=II"):  # a 32-bit program has numbers of 32 bits in it
        size = struct.calcsize(pair)
        told = dict(struct.iter_unpack(pair, auxiliary[: len(auxiliary) // size * size]))
        if AT_PAGESZ in told:
            return (told.get(AT_UID), told.get(AT_EUID), told.get(AT_SECURE)) == (uid, uid, 0)
    return False
