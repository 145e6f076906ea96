"""Control groups, raw: where they are mounted, their members, freeze and thaw.

The contract:
- A path is what /proc/PID/cgroup tells in the line `0::` (cgroups(7)): absolute, seen from our cgroup namespace. The
  root, a path that leaves our namespace (`/../x`) and a removed one (`x (deleted)`) are no place to act on: None.
- Nothing here signals; `cgroup.kill` is written in `signals` alone. Nothing here judges whose a cgroup is.
- A cgroup that is gone has no members, is not populated and not frozen: that is proved. Whatever else fails raises the
  kernel's OSError (EROFS in a unit with ProtectControlGroups=, EACCES for a user that does not own it).
- `freeze` is the one call that waits, `timeout` seconds at most. Whoever froze it thaws it, in `finally`: `thaw` may
  be called at any time, any number of times, and a missing cgroup is thawed.
- Mount points are looked up once for each process.
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
    """`cgroup.events`: a living process is in it or below; all of those are stopped by the freezer."""

    populated: bool
    frozen: bool


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """One mounted hierarchy: `directory` shows the cgroup `root` and what is below."""

    directory: str
    root: str

    def directory_of(self, path: str) -> str | None:
        """The directory of a cgroup; None where this mount does not show it, or it is no place to act on."""
        if path in ("", "/") or not path.startswith("/") or path.endswith(_DELETED) or ".." in path.split("/"):
            return None
        if self.root == "/":
            return self.directory + path
        return self.directory + path.removeprefix(self.root) if path.startswith(f"{self.root}/") else None


def version_2() -> CgroupMount | None:
    """Where cgroup v2 is mounted: alone (/sys/fs/cgroup), or beside v1 (/sys/fs/cgroup/unified); None: nowhere."""
    return _mounts().get("")


def version_1(controller: str) -> CgroupMount | None:
    """Where the v1 hierarchy of a controller ("freezer", "memory") is mounted; None: it is not one of v1 here."""
    return _mounts().get(controller)


def directory_of(path: str) -> str | None:
    """The v2 directory of a cgroup; None where there is no v2 or `path` is no place to act on."""
    mount = version_2()
    return None if mount is None else mount.directory_of(path)


def path_of(pid: int, controller: str = "") -> str | None:
    """The cgroup that a process is in: v2, or the v1 hierarchy of `controller`. The root too ("/").

    None: it is in none of that kind (not mounted). Raises FileNotFoundError or ProcessLookupError when it is gone,
    OSError when the look failed, Unreadable.
    """
    wanted = controller.encode()
    for line in procfs.cgroup_lines(pid).splitlines():
        number, _, rest = line.partition(b":")
        names, _, path = rest.partition(b":")
        if wanted in names.split(b",") and (wanted or number == b"0"):
            return os.fsdecode(path)
    return None


def owner_of(path: str) -> int | None:
    """Whose a v2 cgroup is (uid); None when there is no such. Raises OSError when the look failed."""
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
    """The pids in a cgroup and in all below it, however deep; 0 stands for those that our pid namespace does not show.

    A zombie is no member. Only a frozen cgroup keeps still while it is read. Raises OSError when the look failed.
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
    """What the kernel says of a cgroup now. Raises OSError when the look failed."""
    try:
        numbers = numbers_in(_file(path, "cgroup.events"))
    except OSError as error:
        if error.errno in GONE:
            return Events(populated=False, frozen=False)
        raise
    return Events(populated=numbers.get("populated", 0) > 0, frozen=numbers.get("frozen", 0) > 0)


def value_of(path: str, name: str) -> str:
    """The first line of a file of a v2 cgroup; empty where there is none. Raises OSError when the look failed."""
    try:
        return (procfs.read(_file(path, name)).splitlines() or [b""])[0].decode("ascii", "replace").strip()
    except OSError as error:
        if error.errno in GONE:
            return ""
        raise


def freeze(path: str, timeout: float) -> bool:
    """Stop all in the cgroup and below, and wait until they are; True when they are, within `timeout` seconds.

    False: one of them does not come to a point where it can be stopped (state D), or the cgroup is gone. It goes on
    freezing until `thaw`. Raises OSError where it may not be written.
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
    """Let all in the cgroup go on; nothing to do where it is not frozen or not there. Raises OSError."""
    try:
        _write(_file(path, "cgroup.freeze"), "0")
    except OSError as error:
        if error.errno not in GONE:
            raise


def thaw_if_ours(path: str | None) -> None:
    """Let a cgroup go on that we, or a daemon before us, may have frozen."""
    if path is None:
        return
    try:
        thaw(path)
    except OSError:
        return  # not ours to write: then we have not frozen it


@bounded
def frozen_among(pids: tuple[int, ...]) -> dict[int, str]:
    """Those that a freezer holds still, as far as can be seen, each with its directory: KILL waits for the thaw."""
    found = bounds.each(pids, frozen_by)
    return {pid: where for pid in pids if isinstance(where := found[pid], str)}


def thaw_command(directory: str) -> str:
    """What an operator types to have a cgroup go on that `frozen_by` named; its name may be a user's choice."""
    old = os.path.exists(os.path.join(directory, "freezer.state"))
    word, file = ("THAWED", "freezer.state") if old else ("0", "cgroup.freeze")
    return f"echo {word} > {shlex.quote(f'{directory}/{file}')}"


def thawed_by_root(directory: str) -> bool:
    """Whether root alone may write what `thaw_command` writes to, by whose it is; also where that cannot be seen."""
    name = "freezer.state" if os.path.exists(os.path.join(directory, "freezer.state")) else "cgroup.freeze"
    try:
        found = os.stat(os.path.join(directory, name))
    except OSError:
        return True
    return found.st_uid == 0 and not found.st_mode & 0o022


def frozen_by(pid: int) -> str | None:
    """The directory of the cgroup whose freezer holds a process still, of v1 or v2; None: none that we can see.

    v1 swallows even SIGKILL until it is thawed; v2 lets it through. Raises as `path_of`.
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
    """Make a v2 cgroup, and what is above it. One that is there stays as it is. Raises OSError."""
    directory = directory_of(path)
    if directory is None:
        raise FileNotFoundError(errno.ENOENT, f"no place for a cgroup: {path}")
    os.makedirs(directory, 0o755, exist_ok=True)


def remove(path: str) -> bool:
    """Remove a v2 cgroup and the empty ones below it; True when it is gone, False when it is in use.

    Raises OSError where it may not be removed.
    """
    directory = directory_of(path)
    return True if directory is None else cgroup_walk.remove(directory)


def move(pid: int, path: str) -> None:
    """Put one process (all its threads, none of its children) into a v2 cgroup. Raises OSError.

    EACCES: a user may do so only between cgroups below one of their own (cgroup-v2.rst, Delegation Containment).
    """
    _write(_file(path, "cgroup.procs"), str(pid))


@cache
def _mounts() -> dict[str, CgroupMount]:
    """By v1 controller, and v2 under "". Of several mounts the one that shows most, of equals the last (it covers)."""
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
    """A path of mountinfo: space, tab, newline and backslash are written in octal (proc(5))."""
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
    """One write(2), never creating: cgroupfs takes a value as a whole."""
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _holds_still(directory: str, controller: str) -> bool:
    """Whether its own freezer does: one below it is frozen as well, and thawing that one does not help."""
    name = "freezer.self_freezing" if controller else "cgroup.freeze"  # not freezer.state, which tells of those above
    try:
        return procfs.read(f"{directory}/{name}").startswith(b"1")
    except OSError:
        return False  # the root has no such file; another's is not ours to see
