"""Which processes of any uid use a directory: checked by root's daemon before anything of an owner's is moved or
deleted.

The owner's helper sees only its own uid's processes (`owner.occupancy`). Root sees the cwd, root, program and mapped
files of all processes, and the open files of root's own; those of other users only if nothing keeps root from listing
them (the unit lacks CAP_DAC_READ_SEARCH, which opens every file of the host). No path of an owner's is opened: names
are compared, and the mount on which the named file lies, because in a mount namespace of its own any user can have any
file at any name, and can pass it on. What a process with hanging files uses is unknown.

A mount of the directory, or one that is built from it, uses it in any mount namespace. Mounts in our own, loop devices
and swap space are left to the owner's helper, which sees all of them.

A name in an environment is only text. It counts as use if its user may create files there, or if the process is root's.

A descriptor that no process has received yet (SCM_RIGHTS) is not seen: the kernel reports that there are some, but not
of which files, and a process that never receives its own would block the removal of every tree of the host.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from watchdog.core.mounts import (
    DELETED,
    Mount,
    is_below,
    lies_in,
    mapped_files,
    mounts_of,
    names_by,
    text,
    use_by_mounts,
    variable_naming,
)
from watchdog.file_identity import born, mount_id, namespace_owner
from watchdog.processes import bounded as bounds
from watchdog.processes import procfs
from watchdog.processes.bounded import Reading, Unreadable, bounded
from watchdog.processes.procfs import PROC

ENVIRON_LIMIT = 4 << 20
# Bytes of a list of mounts. Any user can make thousands of namespaces with thousands of mounts each: their lists are
# truncated, and only a limited number of short lists is cached for further processes in the same namespace.
MOUNTS_OF_ROOT, MOUNTS_OF_ANY = 1 << 24, 1 << 20
SHORT, SPARE = 200, 256
NAMES = 16  # of a directory that are compared with mount sources


class OccupiedPlace(NamedTuple):
    """A directory as named by its owner's helper: `device` and `inside` locate it, `born` is when it was made.

    `open`: users other than its owner can reach it; `enter`: and what is in it; `writable`: and create files there.
    `by_name`: a process that names it in its environment counts as using it.
    """

    path: str
    owner: int
    device: str
    inside: str
    born: int | None = None
    open: bool = True
    by_name: bool = False
    writable: bool = False
    enter: bool = True


@bounded
def users_of(places: tuple[OccupiedPlace, ...], without: frozenset[int]) -> dict[str, str]:
    """By path, a description of what uses it. Ignores processes of the directory's owner and the pids `without`.

    Raises LookFailed when /proc cannot be read at all.
    """
    try:
        pids = [int(name) for name in os.listdir(PROC) if name.isdigit()]
        here = os.readlink(f"{PROC}/self/ns/mnt")
    except OSError as error:
        raise bounds.LookFailed(error.errno, f"{PROC} cannot be read: {error.strerror}") from error
    by_name = any(place.by_name for place in places)
    found: dict[str, str] = {}
    known = _Mounted(here)

    def look(pid: int) -> dict[str, str]:
        return _used_by(pid, places, known, by_name=by_name)

    for pid, seen in bounds.each((pid for pid in pids if pid not in without), look).items():
        if isinstance(seen, Unreadable):
            for place in places:
                uid = _uid(pid)
                if place.path not in found and uid is not None and uid != place.owner and (place.open or uid == 0):
                    found[place.path] = f"{seen.strerror}; what it uses is not known"
        elif not isinstance(seen, OSError):  # gone
            found = seen | found
    return found


def _uid(pid: int) -> int | None:
    try:
        return os.stat(f"{PROC}/{pid}").st_uid
    except OSError:
        return None


class _Living(NamedTuple):
    """A process's mount namespace: the mounts in it, and the uid that owns it; -1: the kernel does not say."""

    where: tuple[str, str]  # mount namespace and root
    mounts: list[Mount]
    owner: int


class _Mounted:
    """The mount namespaces other than ours (`here`); used by several threads.

    A process's mountinfo lacks what lies outside its root.
    """

    def __init__(self, here: str) -> None:
        self._here = here
        self._known: dict[tuple[str, str], _Living] = {}
        self._asked: set[tuple[tuple[str, str], str]] = set()

    def of(self, pid: int) -> _Living | None:
        """That process's mount namespace; None if it is ours."""
        with Reading(pid, "ns"):
            there = os.readlink(f"{PROC}/{pid}/ns/mnt")
        if there == self._here:
            return None
        with Reading(pid, "root"):
            where = there, os.readlink(f"{PROC}/{pid}/root")
        if (known := self._known.get(where)) is not None:
            return known
        with Reading(pid, "ns"):
            fd = os.open(f"{PROC}/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            owner = namespace_owner(fd)
        except OSError:
            owner = -1
        finally:
            os.close(fd)
        limit = MOUNTS_OF_ROOT if owner == 0 else MOUNTS_OF_ANY
        living = _Living(where, list(mounts_of(procfs.read_of(pid, "mountinfo", limit=limit))), owner)
        if len(living.mounts) <= SHORT and len(self._known) < SPARE:
            self._known[where] = living
        return living

    def use(self, there: _Living, place: OccupiedPlace, names: set[str]) -> str | None:
        """Describe a mount there that uses the directory; once per namespace and directory.

        Mounts of root and of the directory's owner count. Other users may mount anything that they can name; that
        counts only if they can enter the directory.
        """
        asked = there.where, place.path
        if asked in self._asked or not (there.owner in (0, place.owner) or place.enter):
            return None
        self._asked.add(asked)
        called = sorted(names, key=len)[:NAMES]
        return use_by_mounts(there.mounts, place.path, place.device, place.inside, called, place.owner)


def _used_by(pid: int, places: tuple[OccupiedPlace, ...], known: _Mounted, *, by_name: bool) -> dict[str, str]:
    uid = _uid(pid)
    others = [place for place in places if uid is not None and place.owner != uid]
    if uid is None or not others:
        return {}
    names, there = _names(pid, others, known)
    mounted = there.mounts if there else []
    found: dict[str, str] = {}
    former: set[tuple[str, str]] = set()
    for kind, link, target in _uses(pid):
        for place in others:
            if place.path in found:
                continue
            called = {*names[place], place.path} if link else names[place]
            if any(is_below(target.removesuffix(DELETED), name) for name in called) and (
                not link or _lies_in(pid, link, target.removesuffix(DELETED), place, mounted)
            ):
                if target.endswith(DELETED) and _is_former(pid, link, target, names[place], place.born, former):
                    former.add((place.path, target))
                elif (place.path, target) not in former:
                    found[place.path] = f"process {pid} of uid {uid} has its {kind} at {target}"
    if there is not None:
        for place in others:
            if use := known.use(there, place, names[place]):
                found.setdefault(place.path, f"{use}, where process {pid} of uid {uid} lives")
    if by_name:
        with suppress(PermissionError):  # raised for a kernel thread
            environ = _environ(pid)
            for place in others:
                variable = variable_naming(environ, names[place]) if place.by_name else None
                if variable is not None and (place.writable or (uid == 0 and not _is_set_id(pid))):
                    found.setdefault(place.path, f"process {pid} of uid {uid} names it in its environment: {variable}")
    return found


def _names(
    pid: int, places: list[OccupiedPlace], known: _Mounted
) -> tuple[dict[OccupiedPlace, set[str]], _Living | None]:
    """The names of the directories in that process's mount namespace, and the namespace if it is not ours."""
    try:
        there = known.of(pid)
    except Unreadable:
        raise
    except (OSError, ValueError):
        there = None
    if there is None:
        return {place: {place.path} for place in places}, None
    return {place: set(names_by(there.mounts, place.device, place.inside)) for place in places}, there


def _lies_in(pid: int, link: str, name: str, place: OccupiedPlace, mounted: list[Mount]) -> bool:
    """Whether the target of that link is in the directory, by its mount: one of the process's namespace or ours."""
    fd = _led_to(pid, link)
    if fd is None:
        return False
    try:
        number = mount_id(fd)
    finally:
        os.close(fd)
    mount = next(
        (mount for mount in [*mounted, *mounts_of(procfs.read(f"{PROC}/self/mountinfo"))] if mount.number == number),
        None,
    )
    return lies_in(name, mount, place.device, place.inside)


def _led_to(pid: int, link: str) -> int | None:
    """The target of that link of a process, opened with O_PATH; None: it is gone."""
    try:
        with Reading(pid, link.partition("/")[0]):
            return os.open(f"{PROC}/{pid}/{link}", os.O_PATH | os.O_CLOEXEC)
    except Unreadable:
        raise
    except OSError:
        return None


def _is_set_id(pid: int) -> bool:
    """Whether its program is set-uid or set-gid: then another user may have chosen its environment."""
    try:
        with Reading(pid, "exe"):
            mode = os.stat(f"{PROC}/{pid}/exe").st_mode
    except Unreadable:
        raise
    except OSError:
        return False  # gone, or a kernel thread
    return bool(mode & (stat.S_ISUID | stat.S_ISGID))


def _uses(pid: int) -> Iterator[tuple[str, str, str]]:
    """What a process uses: the kind, the link below /proc/PID ("" for a mapped file), the name."""
    for kind in ("cwd", "root", "exe"):
        with suppress(FileNotFoundError, PermissionError), Reading(pid, kind):
            yield kind, kind, os.readlink(f"{PROC}/{pid}/{kind}")
    fds: list[str] = []
    with suppress(FileNotFoundError, PermissionError), Reading(pid, "fd"):
        fds = os.listdir(f"{PROC}/{pid}/fd")
    for fd in fds:
        with suppress(FileNotFoundError, PermissionError):
            with Reading(pid, "fd"):
                target = os.readlink(f"{PROC}/{pid}/fd/{fd}")
            yield "open file", f"fd/{fd}", target
    with suppress(FileNotFoundError, PermissionError, ProcessLookupError):
        for name in mapped_files(text(procfs.read_of(pid, "maps", limit=1 << 24))):
            yield "mapped file", "", name


def _is_former(
    pid: int, link: str, target: str, names: set[str], made: int | None, former: set[tuple[str, str]]
) -> bool:
    """Whether a deleted file was in an earlier directory of the same name, because it is older than this one.

    The directory itself exists, so a deleted cwd of its name is an earlier one. A file deleted in this one counts as in
    use. A mapped file is judged by the program or an open file of the same name.
    """
    if not link:
        return any(name == target for _, name in former)
    if target.removesuffix(DELETED) in names and link == "cwd":
        return True
    fd = _led_to(pid, link)
    if fd is None:
        return False
    try:
        when = born(fd)
        return not os.fstat(fd).st_nlink and when is not None and made is not None and when < made
    finally:
        os.close(fd)


def _environ(pid: int) -> bytes:
    directory = os.open(PROC, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return procfs.environ(pid, dir_fd=directory, limit=ENVIRON_LIMIT)
    finally:
        os.close(directory)
