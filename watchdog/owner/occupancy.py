"""Who still uses a directory: a process's cwd, root, program or open file below it, a bound socket, a held lock.

Only what this uid may see in /proc can be seen: processes of other uids are not (proc(5), ptrace access). It signals
nobody and changes nothing.
"""

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Sequence


def _below(target: str, path: str) -> bool:
    target = target.removesuffix(" (deleted)")
    return target == path or target.startswith(path + "/")


def _links(pid: str) -> list[tuple[str, str]]:
    links = [(kind, f"/proc/{pid}/{kind}") for kind in ("cwd", "root", "exe")]
    with contextlib.suppress(OSError):  # another uid's, or gone
        links += [("open file", f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    found = []
    for kind, link in links:
        try:
            found.append((kind, os.readlink(link)))
        except OSError:
            continue
    return found


def occupant(path: str) -> str | None:
    """Who has something below `path` (the kernel's name, see `paths.real_path`), in words; None when nobody is seen.

    Our own process is not counted: it holds the directory open on purpose. Raises OSError when /proc cannot be read.
    """
    own = str(os.getpid())
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if pid == own:
            continue
        for kind, target in _links(pid):
            if _below(target, path):
                return f"process {pid} has its {kind} at {target}"
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            _, slash, bound = line.rstrip("\n").partition(" /")
            if slash and _below("/" + bound, path):
                return f"a socket is in use at /{bound}"
    return None


def served(directory: int, name: str) -> bool:
    """Whether a process serves the socket `name` in an open directory, whatever name it was bound by (unix(7)).

    /proc/net/unix says that only of absolute names in our own network namespace; a connection asks the file itself.
    Nobody there is ECONNREFUSED; every other answer may mean somebody. False for what is no socket.
    """
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return False
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
            return asking.connect_ex(f"/proc/self/fd/{fd}") not in (errno.ECONNREFUSED, errno.ENOENT)
    finally:
        os.close(fd)


def neighbour(path: str, in_use: Sequence[tuple[str, str]]) -> str | None:
    """Which other living agent has `path` (the kernel's name) or something inside it, in words; None without one.

    `in_use` is `HookContext.in_use`; those names may lead through links.
    """
    for place, who in in_use:
        if _below(place, path) or _below(os.path.realpath(place), path):
            return f"another living agent, {who}, works there: {place}"
    return None


def lock(directory: int) -> bool:
    """Take the exclusive BSD lock of a readable directory descriptor; False when somebody holds one.

    systemd-tmpfiles asks the same way (systemd-tmpfiles(8)): whoever holds a lock keeps the directory.
    """
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
