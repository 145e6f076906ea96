"""What a directory is called where another process lives: mounts give one place several names.

Names are the kernel's (`/proc/PID/cwd` and the like); nothing here looks at a file.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

DELETED = " (deleted)"  # at the end of a name of what has none any more (proc(5))


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo: which directory `root` of which device is seen at `point`."""

    number: int
    device: str
    root: str
    point: str
    kind: str  # of the file system


def mounts_of(mountinfo: bytes) -> Iterator[Mount]:
    """What is mounted where for a process (proc(5), mountinfo: octal escapes)."""
    for line in mountinfo.splitlines():
        fields = line.split(b" ")
        escaped = *fields[3:5], fields[fields.index(b"-") + 1]
        words = (re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), word) for word in escaped)
        yield Mount(int(fields[0]), fields[2].decode(), *map(text, words))


def text(name: bytes) -> str:
    """A name as Python has it (os.fsdecode)."""
    return name.decode("utf-8", "surrogateescape")


def is_below(name: str, top: str) -> bool:
    """Whether a name is `top` or lies below it, by whole components."""
    return name == top or name.startswith(top.rstrip("/") + "/")


def joined(top: str, below: str) -> str:
    """Two parts of a path, the second with its slash or empty."""
    return top.rstrip("/") + below or "/"


def names_by(mounts: Iterable[Mount], device: str, inside: str) -> Iterator[str]:
    """What the directory `inside` of that device is called by those mounts."""
    for mount in mounts:
        if mount.device != device:
            continue
        if is_below(inside, mount.root):
            yield joined(mount.point, inside[len(mount.root.rstrip("/")) :])
        elif is_below(mount.root, inside):  # a part of it only
            yield mount.point


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
