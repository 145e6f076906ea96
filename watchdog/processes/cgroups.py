"""Control groups at the lowest level: mounts, members, freeze and thaw.

The contract:
- A path is that of the line `0::` in /proc/PID/cgroup (cgroups(7)): absolute, in our cgroup namespace. The root, a path
  outside our namespace (`/../x`) and a removed one (`x (deleted)`) must not be acted on: None.
- Nothing here signals; only `signals` writes `cgroup.kill`. Nothing here decides which agent a cgroup belongs to.
- A cgroup that is gone has provably no members and is neither populated nor frozen. Any other failure raises the
  kernel's OSError (EROFS in a unit with ProtectControlGroups=, EACCES for a user that does not own it).
- Only `freeze` waits, at most `timeout` seconds. The caller that freezes must thaw, in `finally`: `thaw` may be called
  at any time and repeatedly, and a missing cgroup counts as thawed.
- Mount points are looked up once per process.
"""

import errno
import os
import re
import select
import shlex
import time
from dataclasses import dataclass
from functools import cache

from watchdog.processes import bounded as bounds
from watchdog.processes import cgroup_walk, procfs
from watchdog.processes.bounded import bounded
from watchdog.processes.cgroup_walk import GONE

_DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class Events:
    """`cgroup.events`: whether a living process is in it or below, and whether the freezer has stopped all of them."""

    populated: bool
    frozen: bool


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """One mounted hierarchy: `directory` shows the cgroup `root` and those below."""

    directory: str
    root: str

    def directory_of(self, path: str) -> str | None:
        """The directory of a cgroup; None if this mount does not show it, or it must not be acted on."""
        if path in ("", "/") or not path.startswith("/") or path.endswith(_DELETED) or ".." in path.split("/"):
            return None
        if self.root == "/":
            return self.directory + path
        return self.directory + path.removeprefix(self.root) if path.startswith(f"{self.root}/") else None


def version_2() -> CgroupMount | None:
    """Where cgroup v2 is mounted: alone (/sys/fs/cgroup), or beside v1 (/sys/fs/cgroup/unified); None: nowhere."""
    return _mounts().get("")


def version_1(controller: str) -> CgroupMount | None:
    """Where the v1 hierarchy of a controller ("freezer", "memory") is mounted; None: it is not a v1 one here."""
    return _mounts().get(controller)


def directory_of(path: str) -> str | None:
    """The v2 directory of a cgroup; None if there is no v2 or `path` must not be acted on."""
    mount = version_2()
    return None if mount is None else mount.directory_of(path)


def path_of(pid: int, controller: str = "") -> str | None:
    """The cgroup of a process: v2, or in the v1 hierarchy of `controller`; may be the root ("/").

    None: there is none of that kind (not mounted). Raises FileNotFoundError or ProcessLookupError when the process is
    gone, OSError when the read failed, Unreadable.
    """
    wanted = controller.encode()
    for line in procfs.cgroup_lines(pid).splitlines():
        number, _, rest = line.partition(b":")
        names, _, path = rest.partition(b":")
        if wanted in names.split(b",") and (wanted or number == b"0"):
            return os.fsdecode(path)
    return None


def owner_of(path: str) -> int | None:
    """The owner (uid) of a v2 cgroup; None if it does not exist. Raises OSError when the check failed."""
    directory = directory_of(path)
    try:
        return None if directory is None else os.stat(directory).st_uid
    except OSError as error:
        if error.errno in GONE:
            return None
        raise


def below(path: str) -> list[str]:
    """The names of the v2 cgroups directly below one, or below the root ("" or "/"). Raises OSError."""
    mount = version_2()
    directory = None if mount is None else mount.directory if path in ("", "/") else mount.directory_of(path)
    try:
        return [] if directory is None else [os.path.basename(each) for each in _below(directory)]
    except OSError as error:
        if error.errno in GONE:
            return []
        raise


def members(path: str) -> frozenset[int]:
    """The pids in a cgroup and in all below it; 0 stands for processes that our pid namespace does not show.

    A zombie is not a member. Only a frozen cgroup cannot change during the read. Raises OSError when the read failed.
    """
    directory = directory_of(path)
    found: set[int] = set()
    for here in () if directory is None else cgroup_walk.each(directory):
        try:
            found.update(int(pid) for pid in procfs.read("cgroup.procs", dir_fd=here, limit=1 << 24).split())
        except OSError as error:
            # EOPNOTSUPP: a threaded cgroup, whose processes its domain above lists (cgroup-v2.rst, Threads).
            if error.errno not in GONE | {errno.EOPNOTSUPP}:
                raise
    return frozenset(found)


def events(path: str) -> Events:
    """The current `cgroup.events`. Raises OSError when the read failed."""
    try:
        numbers = numbers_in(_file(path, "cgroup.events"))
    except OSError as error:
        if error.errno in GONE:
            return Events(populated=False, frozen=False)
        raise
    return Events(populated=numbers.get("populated", 0) > 0, frozen=numbers.get("frozen", 0) > 0)


def value_of(path: str, name: str) -> str:
    """The first line of a file of a v2 cgroup; empty if it does not exist. Raises OSError when the read failed."""
    try:
        return (procfs.read(_file(path, name)).splitlines() or [b""])[0].decode("ascii", "replace").strip()
    except OSError as error:
        if error.errno in GONE:
            return ""
        raise


def freeze(path: str, timeout: float) -> bool:
    """Freeze all processes in the cgroup and below; True when all are stopped within `timeout` seconds.

    False: one of them does not reach a point where it can be stopped (state D), or the cgroup is gone. The kernel
    continues freezing until `thaw`. Raises OSError if the file may not be written.
    """
    try:
        with open(_file(path, "cgroup.events"), "rb", buffering=0) as told:
            _write(_file(path, "cgroup.freeze"), "1")
            poll = select.poll()
            poll.register(told, select.POLLPRI)  # each change of the file (cgroup-v2.rst, cgroup.events)
            end = time.monotonic() + timeout
            while True:
                if b"frozen 1" in os.pread(told.fileno(), 4096, 0):
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    return False
                poll.poll(left * 1000)
    except OSError as error:
        if error.errno in GONE:
            return False
        raise


def thaw(path: str) -> None:
    """Resume all processes in the cgroup; a no-op if it is not frozen or does not exist. Raises OSError."""
    try:
        _write(_file(path, "cgroup.freeze"), "0")
    except OSError as error:
        if error.errno not in GONE:
            raise


def thaw_if_ours(path: str | None) -> None:
    """Thaw a cgroup that this or an earlier daemon may have frozen."""
    if path is None:
        return
    try:
        thaw(path)
    except OSError:
        return  # we may not write it, so we have not frozen it


@bounded
def frozen_among(pids: tuple[int, ...]) -> dict[int, str]:
    """The frozen processes among these, each with the directory of the freezing cgroup: KILL waits for the thaw."""
    found = bounds.each(pids, frozen_by)
    return {pid: where for pid in pids if isinstance(where := found[pid], str)}


def thaw_command(directory: str) -> str:
    """The shell command that thaws a cgroup named by `frozen_by`. A user may have chosen its name, so it is quoted."""
    old = os.path.exists(os.path.join(directory, "freezer.state"))
    word, file = ("THAWED", "freezer.state") if old else ("0", "cgroup.freeze")
    return f"echo {word} > {shlex.quote(f'{directory}/{file}')}"


def thawed_by_root(directory: str) -> bool:
    """Whether only root may write the file of `thaw_command`, by its owner and mode; True also if that is not
    visible.
    """
    name = "freezer.state" if os.path.exists(os.path.join(directory, "freezer.state")) else "cgroup.freeze"
    try:
        found = os.stat(os.path.join(directory, name))
    except OSError:
        return True
    return found.st_uid == 0 and not found.st_mode & 0o022


def frozen_by(pid: int) -> str | None:
    """The directory of the v1 or v2 cgroup whose freezer has frozen a process; None: none that is visible.

    v1 delays even SIGKILL until the thaw; v2 does not. Raises as `path_of`.
    """
    for controller in ("freezer", ""):
        mount = _mounts().get(controller)
        path = None if mount is None else path_of(pid, controller)
        while mount is not None and path is not None and (here := mount.directory_of(path)) is not None:
            if _holds_still(here, controller):
                return here
            path = os.path.dirname(path)
    return None


def create(path: str) -> None:
    """Make a v2 cgroup and its parents; an existing one stays as it is. Raises OSError."""
    directory = directory_of(path)
    if directory is None:
        raise FileNotFoundError(errno.ENOENT, f"no place for a cgroup: {path}")
    os.makedirs(directory, 0o755, exist_ok=True)


def remove(path: str) -> bool:
    """Remove a v2 cgroup and the empty ones below it; True: it is gone, False: it is in use.

    Raises OSError if it may not be removed.
    """
    directory = directory_of(path)
    return True if directory is None else cgroup_walk.remove(directory)


def move(pid: int, path: str) -> None:
    """Move one process (all its threads, none of its children) into a v2 cgroup. Raises OSError.

    EACCES: a user may do so only between cgroups below one of their own (cgroup-v2.rst, Delegation Containment).
    """
    _write(_file(path, "cgroup.procs"), str(pid))


@cache
def _mounts() -> dict[str, CgroupMount]:
    """Mounts by v1 controller, v2 under "". Of several the one that shows most; of equals the last, which
    covers them.
    """
    found: dict[str, CgroupMount] = {}
    for line in procfs.read("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(b" - ")
        fields, kind = before.split(b" "), after.split(b" ")
        if kind[0] not in (b"cgroup", b"cgroup2"):
            continue
        mount = CgroupMount(_unescaped(fields[4]), _unescaped(fields[3]))
        names = [""] if kind[0] == b"cgroup2" else kind[2].decode("ascii", "replace").split(",")
        for name in names:
            if name not in found or len(mount.root) <= len(found[name].root):
                found[name] = mount
    return found


def _unescaped(field: bytes) -> str:
    """A path from mountinfo, with space, tab, newline and backslash unescaped from octal (proc(5))."""
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), field))


def _file(path: str, name: str) -> str:
    directory = directory_of(path)
    if directory is None:
        raise FileNotFoundError(errno.ENOENT, f"no cgroup to act on: {path}")
    return f"{directory}/{name}"


def numbers_in(file: str) -> dict[str, int]:
    """The lines "key number" of a file. Raises OSError."""
    words = [line.split() for line in procfs.read(file).splitlines()]
    return {pair[0].decode("ascii", "replace"): int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}


def _below(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _write(file: str, text: str) -> None:
    """Write in one write(2), without creating the file: cgroupfs takes a value as a whole."""
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _holds_still(directory: str, controller: str) -> bool:
    """Whether this cgroup's own freezer is on: those below it are frozen too, and thawing one of them does not help."""
    name = "freezer.self_freezing" if controller else "cgroup.freeze"  # not freezer.state, which includes the ancestors
    try:
        return procfs.read(f"{directory}/{name}").startswith(b"1")
    except OSError:
        return False  # the root has no such file; another user's may be unreadable
