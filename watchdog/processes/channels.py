"""Whether a process still holds a datagram socket, by which it may be talking to a daemon that is gone."""

import os
from contextlib import suppress

from watchdog.processes import bounded as bounds
from watchdog.processes import procfs
from watchdog.processes.bounded import bounded

DGRAM = b"0002"  # the type in /proc/net/unix (proc(5))


@bounded
def holds_datagram_socket(pid: int) -> bool:
    """Whether one of its descriptors is a unix datagram socket. Yes where that cannot be seen; no where it is gone.

    Who makes a socket for each word, as a shell's `systemd-notify` or three lines of Python do, holds none between.
    """
    try:
        sockets = _datagram_sockets(pid)
        with bounds.Reading(pid, "fd"):
            names = os.listdir(f"{procfs.PROC}/{pid}/fd")
            for name in names:
                with suppress(FileNotFoundError):
                    target = os.readlink(f"{procfs.PROC}/{pid}/fd/{name}")
                    if target.startswith("socket:[") and target[8:-1].encode() in sockets:
                        return True
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True
    return False


def _datagram_sockets(pid: int) -> frozenset[bytes]:
    """Inodes of all in its network namespace. Raises OSError."""
    lines = procfs.read_of(pid, "net/unix", limit=1 << 24).splitlines()[1:]
    fields = (line.split(maxsplit=7) for line in lines)
    return frozenset(one[6] for one in fields if len(one) > 6 and one[4] == DGRAM)
