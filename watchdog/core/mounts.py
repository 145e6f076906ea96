"""What a directory is called where another process lives: mounts give one place several names.

Names are the kernel's (`/proc/PID/cwd` and the like); nothing here looks at a file.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

DELETED = " (deleted)"  # at the end of a name of what has none any more (proc(5))
# Kinds of file systems whose files several hosts see: the git that holds a lock there may run on another one.
REMOTE = re.compile(r"nfs4?|cifs|smb3|9p|ceph|afs|lustre|gfs2|ocfs2|glusterfs|virtiofs|fuse\..*")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo: which directory `root` of which device is seen at `point`, a place on `parent`."""

    number: int
    device: str
    root: str
    point: str
    kind: str  # of the file system
    parent: int = 0  # 0, or one that is not listed: none is known


def mounts_of(mountinfo: bytes) -> Iterator[Mount]:
    """What is mounted where for a process (proc(5), mountinfo: octal escapes)."""
    for line in mountinfo.splitlines():
        fields = line.split(b" ")
        escaped = *fields[3:5], fields[fields.index(b"-") + 1]
        words = (re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), word) for word in escaped)
        root, point, kind = map(text, words)
        yield Mount(int(fields[0]), fields[2].decode(), root, point, kind, int(fields[1]))


def text(name: bytes) -> str:
    """A name as Python has it (os.fsdecode)."""
    return name.decode("utf-8", "surrogateescape")


def is_below(name: str, top: str) -> bool:
    """Whether a name is `top` or lies below it, by whole components."""
    return name == top or name.startswith(top.rstrip("/") + "/")


def joined(top: str, below: str) -> str:
    """Two parts of a path, the second with its slash or empty."""
    return top.rstrip("/") + below or "/"


def names_by(mounts: Collection[Mount], device: str, inside: str) -> Iterator[str]:
    """What the directory `inside` of that device is called by those mounts, where no other mount hides it.

    Whoever may mount something (every user, in a namespace of its own) can have anything else by any name.
    """
    for mount in mounts:
        if mount.device != device:
            continue
        if is_below(inside, mount.root):
            name = joined(mount.point, inside[len(mount.root.rstrip("/")) :])
        elif is_below(mount.root, inside):  # a part of it only
            name = mount.point
        else:
            continue
        if _seen_at(mounts, name) is mount:
            yield name


def _seen_at(mounts: Collection[Mount], name: str) -> Mount | None:
    """The mount that a name leads to: on the way down each one hides what lies below it."""
    numbers = {mount.number for mount in mounts}
    over = [mount for mount in mounts if is_below(name, mount.point)]
    found = max((mount for mount in over if mount.parent not in numbers), key=lambda one: len(one.point), default=None)
    left = len(over)
    while found is not None and left:
        on_it = [mount for mount in over if mount.parent == found.number]
        if not on_it:
            break
        found, left = min(on_it, key=lambda one: len(one.point)), left - 1
    return found


def lies_in(name: str, mount: Mount | None, device: str, inside: str) -> bool:
    """Whether what is called `name` by that mount, on which it lies, lies in the directory `inside` of the device.

    No mount (the process has it from another namespace, or it was unmounted since): its name means nothing.
    """
    if mount is None or mount.device != device or not is_below(name, mount.point):
        return False
    return is_below(joined(mount.root, name[len(mount.point.rstrip("/")) :]), inside)


def mapped_files(maps: str) -> set[str]:
    """The names of mapped files in /proc/PID/maps. What a program calls its own memory (`[anon:...]`) is none."""
    fields = (line.split(None, 5) for line in maps.split("\n"))
    return {words[5] for words in fields if len(words) == 6 and words[5].startswith("/")}


def names_place(value: str, path: str) -> bool:
    """Whether an environment variable's value names that place, or something in it; also as one of several (PATH)."""
    return any(is_below(_plain(part), path) for part in value.split(":") if part.startswith("/"))


def _plain(path: str) -> str:
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return "/" + "/".join(names)


# What a shell left behind, and what it was started with: no use of a place.
NO_USE = frozenset({b"PWD", b"OLDPWD", b"_"})


def variable_naming(environ: bytes, paths: Iterable[str]) -> str | None:
    """The name of the first variable that names one of these places."""
    places = list(paths)
    for item in environ.split(b"\0"):
        name, equals, value = item.partition(b"=")
        if not equals or b"/" not in value or name in NO_USE:
            continue
        if any(names_place(text(value), path) for path in places):
            return text(name)
    return None
