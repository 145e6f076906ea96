"""Finds what still uses a directory: a process's cwd, root, program, open or mapped file, a bound socket, a held lock;
or the kernel itself: a mount of it or on it, a loop device or swap space whose file lies in it.

A process in a container has other names for it, derived from the mounts there. Another user's process (root's helper
sees those) is not trusted: a file of that name must lie on the directory's own mount, and a name in its environment
counts only if others may create files in the directory. Processes of other uids are invisible in /proc (proc(5), ptrace
access), and their files are not even opened, as that may hang. A process whose files hang counts as an occupant if its
user can reach the directory. This module signals no process and changes nothing.
"""

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace

from watchdog import file_identity
from watchdog.core.mounts import (
    DELETED,
    Mount,
    is_below,
    joined,
    lies_in,
    mapped_files,
    names_by,
    seen_at,
    unescaped,
    use_by_mounts,
    variable_naming,
)
from watchdog.owner import paths, proc_files

ENVIRON_LIMIT = 4 << 20
_WRITES = re.compile(r"\S+ .w.s .* /")  # proc(5), maps: shared and writable, so writes reach the file


class _Names:
    """The names of one directory or file: ours is `path` (the kernel's name); in other namespaces the mounts decide."""

    def __init__(self, path: str) -> None:
        self._path = path
        directory = os.open(path, paths.STEP & ~os.O_DIRECTORY)  # it may be a file
        try:
            self._mount = paths.mount_of(directory)
        finally:
            os.close(directory)
        self.inside = joined(self._mount.root, path[len(self._mount.point.rstrip("/")) :])
        self._known: dict[
            tuple[str, str], list[Mount]
        ] = {}  # by mount namespace and root, which limits what mountinfo shows
        self._looked: set[tuple[str, str]] = set()  # those whose mounts were already checked
        self.writable = _is_writable(path)

    def of(self, pid: str) -> set[str]:
        """Its names in that process's mount namespace."""
        mounts = self._mounts(pid)
        return set(names_by(mounts, self.device, self.inside)) if mounts else {self._path}

    def mounted(self, pid: str) -> str | None:
        """Describe a mount in that process's namespace that uses it; once per list of mounts.

        Mounts of root and of our user count. Other users may mount anything that they can name; that counts only if
        they can enter the directory.
        """
        try:
            where = _lives_at(pid)
            if where in self._looked:
                return None
            owner = _namespace_owner(pid)
        except OSError:  # gone, or another uid's; our own is there
            if pid == "self":
                raise
            return None
        if not (mounts := self._mounts(pid)):
            return None
        self._looked.add(where)
        if owner not in (0, os.geteuid()) and not _passes(owner, joined(self._path, "/.")):
            return None
        names = set(names_by(mounts, self.device, self.inside))
        if pid == "self":
            mounts = [_resolved(mount) for mount in mounts]
        return use_by_mounts(mounts, self._path, self.device, self.inside, names, os.geteuid())

    def holds(self, name: str) -> bool:
        """Whether the file with that kernel name, in our namespace, lies in it."""
        if is_below(name, self._path):
            return True
        mounts = self._mounts("self")
        return lies_in(name, seen_at(mounts, name), self.device, self.inside)

    def has(self, pid: str, link: str, name: str) -> bool:
        """Whether the link's target lies in it, by its mount: one of the process's namespace or of ours."""
        try:
            fd = os.open(link, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return False  # gone
        try:
            number = file_identity.mount_id(fd)
        finally:
            os.close(fd)
        mount = next((one for who in (pid, "self") for one in self._mounts(who) if one.number == number), None)
        return lies_in(name, mount, self.device, self.inside)

    def _mounts(self, pid: str) -> list[Mount]:
        try:
            namespace = _lives_at(pid)
            if namespace not in self._known:
                self._known[namespace] = list(paths.mounts(pid))
        except OSError:  # if it hangs, reading its maps will show that
            return []
        return self._known[namespace]

    @property
    def device(self) -> str:
        """Its device, as in mountinfo."""
        return self._mount.device


def _lives_at(pid: str) -> tuple[str, str]:
    """Its mount namespace and its root; its mountinfo shows nothing outside the root. Raises OSError."""
    return os.readlink(f"/proc/{pid}/ns/mnt"), os.readlink(f"/proc/{pid}/root")


def _namespace_owner(pid: str) -> int:
    """The uid that owns its mount namespace; -1: the kernel does not say."""
    fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return file_identity.namespace_owner(fd)
    except OSError:
        return -1
    finally:
        os.close(fd)


def place(path: str) -> dict[str, object] | None:
    """A helper call: what root's daemon needs to find other users' processes that use a directory or file; None: it
    does not exist.

    `processes.occupants.OccupiedPlace` explains the fields. Raises OSError, PathRefused.
    """
    try:
        directory = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        real, born = paths.real_path(directory), file_identity.born(directory)
    finally:
        os.close(directory)
    names = _Names(real)
    where = {"path": real, "device": names.device, "inside": names.inside}
    rights = {"open": _is_open(real), "enter": _is_enterable(real), "writable": names.writable}
    return {**where, "born": born, **rights}


def _is_writable(path: str) -> bool:
    """Whether users other than its owner may create files in it. With an ACL the group bits are its mask (acl(5))."""
    return bool(os.stat(path).st_mode & (stat.S_IWGRP | stat.S_IWOTH)) and _is_open(path)


def _is_enterable(path: str) -> bool:
    """Whether users other than its owner may reach what is in it, or read it if it is a file."""
    mode = os.stat(path).st_mode
    bits = stat.S_IXGRP | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IRGRP | stat.S_IROTH
    return bool(mode & bits) and _is_open(path)


def _is_open(path: str) -> bool:
    """Whether users other than its owner can reach it."""
    while path != "/":
        path = os.path.dirname(path)
        if not os.stat(path).st_mode & (stat.S_IXGRP | stat.S_IXOTH):
            return False
    return True


def _links(pid: str) -> list[tuple[str, str, str]]:
    """What a process uses: the kind, the link below /proc/PID ("" for a mapped file), the name."""
    links = [(kind, f"/proc/{pid}/{kind}") for kind in ("cwd", "root", "exe")]
    with contextlib.suppress(OSError):  # gone
        links += [("open file", f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    found = []
    for kind, link in links:
        try:
            found.append((kind, link, os.readlink(link)))
        except OSError:
            continue
    return found + [("mapped file", "", name) for name in _mapped(pid)]


def _is_former(link: str, target: str, names: set[str], made: int | None, former: set[str]) -> bool:
    """Whether a deleted file was in an earlier directory of the same name, because it is older than this one.

    The directory itself exists, so a deleted cwd of its name is an earlier one. A file deleted in this one counts as in
    use. A mapped file is judged by the program or an open file of the same name.
    """
    if not link:
        return target in former
    if target.removesuffix(DELETED) in names and link.endswith("/cwd"):
        return True
    try:
        fd = os.open(link, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        when = file_identity.born(fd)
        return not os.fstat(fd).st_nlink and when is not None and made is not None and when < made
    finally:
        os.close(fd)


def _mapped(pid: str) -> set[str]:
    """Files mapped into its memory (proc(5), maps): a library, or a closed file that is still written to.

    Raises ReadHung.
    """
    return mapped_files("\n".join(_maps(pid)))


def _maps(pid: str) -> list[str]:
    try:
        return os.fsdecode(proc_files.read(pid, "maps")).split("\n")
    except proc_files.ReadHung:
        raise
    except OSError:  # another uid's, or gone
        return []


def _visible() -> Iterator[str]:
    return (pid for pid in os.listdir("/proc") if pid.isdigit() and proc_files.is_ours(pid))


def _can_reach(pid: str, path: str) -> bool:
    """Whether the user of a process can reach that directory; True if unknown."""
    uid = proc_files.uid_of(pid)
    return uid is None or _passes(uid, path)


def _passes(uid: int, path: str) -> bool:
    """Whether a user can reach that directory; True if unknown."""
    try:
        if uid in (0, os.geteuid()):
            return True
        while path != "/":
            path = os.path.dirname(path)
            status = os.stat(path)
            if status.st_uid != uid and not status.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
                return False
    except OSError:
        return True
    return True


def is_mapped_to_write(path: str) -> bool:
    """Whether a process has a shared writable mapping of a file below `path`. Otherwise like `occupant`."""
    names = _Names(path)
    for pid in _visible():
        try:
            found = [line.partition(" /")[2] for line in _maps(pid) if _WRITES.match(line)]
        except proc_files.ReadHung:
            if _can_reach(pid, path):
                return True
            continue
        known = names.of(pid) if found else ()
        if any(is_below("/" + file.removesuffix(DELETED), name) for file in found for name in known):
            return True
    return False


def occupant(path: str, *, by_name: bool = False) -> str | None:
    """Describe what uses something below `path` (the kernel's name, see `paths.real_path`); None: nothing visible.

    `by_name`: also a process that names it in its environment, such as TMPDIR: it may create a file there at any time.
    Our own process does not count: it holds the directory open on purpose. Raises OSError when /proc cannot be read.
    """
    own, names, made = str(os.getpid()), _Names(path), _born(path)
    if use := names.mounted("self") or _kernel_file(names):
        return use
    for pid in _visible():
        if pid == own:
            continue
        known = names.of(pid)
        try:
            links = _links(pid)
            variable = _variable(pid, known) if by_name else None
            if variable is not None and not names.writable and not proc_files.speaks_for_us(pid):
                variable = None
        except proc_files.ReadHung as error:
            if _can_reach(pid, path):
                return f"{error.strerror}; what it uses is not known"
            continue
        former: set[str] = set()
        for kind, link, target in links:
            called = {*known, path} if link else known
            if any(is_below(target.removesuffix(DELETED), name) for name in called) and (
                not link or names.has(pid, link, target.removesuffix(DELETED))
            ):
                if target.endswith(DELETED) and _is_former(link, target, known, made, former):
                    former.add(target)
                    continue
                return f"process {pid} has its {kind} at {target}"
        if use := names.mounted(pid):
            return f"{use}, where process {pid} lives"
        if variable is not None:
            return f"process {pid} names it in its environment: {variable}"
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            _, slash, bound = line.rstrip("\n").partition(" /")
            if slash and is_below("/" + bound, path) and _is_socket_in(path, "/" + bound):
                return f"a socket is in use at /{bound}"
    return None


def _resolved(mount: Mount) -> Mount:
    """An overlay in our namespace with its options' paths resolved: they are as typed by the user who mounted it."""
    if mount.kind != "overlay":
        return mount
    options = []
    for option in mount.options:
        key, _, value = option.partition("=")
        if key == "lowerdir" and "/" in value:
            option = ":".join([option, *(os.path.realpath(part) for part in value.split(":") if part.startswith("/"))])
        elif value.startswith("/"):
            option = f"{key}={os.path.realpath(value)}"
        options.append(option)
    return replace(mount, options=tuple(options))


def _kernel_file(names: _Names) -> str | None:
    """Describe a loop device or swap space whose file lies there. A deleted file does not count: nothing is lost."""
    for device in sorted(name for name in _listed("/sys/block") if name.startswith("loop")):
        with contextlib.suppress(OSError):  # it has none
            with open(f"/sys/block/{device}/loop/backing_file", encoding="utf-8", errors="surrogateescape") as file:
                backing = file.read().removesuffix("\n")
            if not backing.endswith(DELETED) and names.holds(backing):
                return f"the loop device {device} has its file at {backing}"
    try:
        with open("/proc/swaps", "rb") as lines:
            swaps = [unescaped(line.split()[0]) for line in lines.read().splitlines()[1:] if line.strip()]
    except FileNotFoundError:  # a kernel without swap
        return None
    found = next((name for name in swaps if not name.endswith(DELETED) and names.holds(name)), None)
    return found and f"the kernel swaps to {found}"


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _is_socket_in(path: str, name: str) -> bool:
    """Whether that socket exists there. A name bound in another mount namespace, or with `..`, may mean another
    place.
    """
    try:
        real = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
        return is_below(real, path) and stat.S_ISSOCK(os.lstat(real).st_mode)
    except OSError:
        return False


def _born(path: str) -> int | None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return file_identity.born(fd)
    finally:
        os.close(fd)


def _variable(pid: str, names: set[str]) -> str | None:
    try:
        return variable_naming(proc_files.read(pid, "environ", ENVIRON_LIMIT), names)
    except proc_files.ReadHung:
        raise
    except OSError:  # gone
        return None


def served(directory: int, name: str) -> bool:
    """Whether a process serves the socket `name` in an open directory, by whatever name it was bound (unix(7)).

    /proc/net/unix shows only absolute names in our own network namespace; a connection attempt tests the file itself.
    ECONNREFUSED means no listener; any other answer may mean one. False if it is not a socket.
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
    """Describe another living agent that has `path` (the kernel's name) or something inside it; None: there is none.

    `in_use` is `HookContext.in_use`; its names may contain links.
    """
    for place, who in in_use:
        if is_below(place, path) or is_below(os.path.realpath(place), path):
            return f"another living agent, {who}, works there: {place}"
    return None


def lock(directory: int) -> bool:
    """Take the exclusive BSD lock of a readable directory descriptor; False when another process holds one.

    systemd-tmpfiles has the same convention (systemd-tmpfiles(8)): a lock protects the directory.
    """
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
