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
    source: str = ""  # whatever the file system calls it
    options: tuple[str, ...] = ()  # of the file system


def mounts_of(mountinfo: bytes) -> Iterator[Mount]:
    """What is mounted where for a process (proc(5), mountinfo: octal escapes)."""
    for line in mountinfo.splitlines():
        fields = line.split(b" ")
        kind = fields.index(b"-") + 1
        words = (*fields[3:5], *fields[kind : kind + 2], *fields[kind + 2].split(b","))
        root, point, what, source, *options = map(unescaped, words)
        yield Mount(int(fields[0]), fields[2].decode(), root, point, what, int(fields[1]), source, tuple(options))


def unescaped(word: bytes) -> str:
    """A name in a list of the kernel's, where what would end it is written in octal (proc(5))."""
    if b"\\" in word:
        word = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8) & 0xFF]), word)
    return text(word)


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
        if seen_at(mounts, name) is mount:
            yield name


def seen_at(mounts: Collection[Mount], name: str) -> Mount | None:
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


# What an overlay is made of; with `+` one layer an option, as newer kernels have it.
_LAYERS = {
    "lowerdir": "lower directory",
    "lowerdir+": "lower directory",
    "datadir+": "data directory",
    "upperdir": "upper directory",
    "workdir": "work directory",
}
GONE = "//deleted"  # at the end of the root of a mount whose source has no name any more


def made_of(mount: Mount, uid: int) -> Iterator[tuple[str, str]]:
    """Which places a mount is made of, as whoever mounted it called them: in words what each is, and its name.

    Layers of an overlay, and the source of file systems that lie on a directory (ecryptfs, bindfs, mergerfs). Any user
    mounts a FUSE and calls its source as it likes: of those only root's and the ones of `uid` count.
    """
    if mount.kind == "overlay":
        for option in mount.options:
            key, _, value = option.partition("=")
            names = re.split(r"(?<!\\):", value) if key == "lowerdir" else [value]
            if key in _LAYERS:
                yield from ((_LAYERS[key], re.sub(r"\\(.)", r"\1", name)) for name in names if name)
    elif not mount.kind.startswith("fuse") or {"user_id=0", f"user_id={uid}"} & set(mount.options):
        yield from (("source", name) for name in mount.source.split(":") if name.startswith("/"))


def use_by_mounts(
    mounts: Collection[Mount], path: str, device: str, inside: str, names: Collection[str], uid: int
) -> str | None:
    """Which of those mounts needs the place `path`, which is the directory `inside` of that device, in words.

    A mount of it, or of a part of it, says so itself; one that lies inside it would be taken away with its directory.
    What others are made of are names, perhaps relative ones. `names`: of the place, as it is called there; `uid`: whose
    it is.
    """
    is_mount_point = any(mount.device == device and (mount.root, mount.point) == (inside, path) for mount in mounts)
    for mount in mounts:
        is_of_it = mount.device == device and is_below(mount.root, inside) and not mount.root.endswith(GONE)
        if is_of_it and not (is_mount_point and mount.root == inside):
            return f"{joined(path, mount.root[len(inside.rstrip('/')) :])} is mounted at {mount.point}"
        for what, name in made_of(mount, uid):
            if any(_means(name, one) for one in (path, *names)):
                return f"the {mount.kind} at {mount.point} has its {what} at {name}"
        inside_it = any(mount.point != name and is_below(mount.point, name) for name in names)
        if inside_it and seen_at(mounts, mount.point) is mount:  # and not in what the place's own mount hides there
            return f"{mount.kind} is mounted on {mount.point}"
    return None


def _means(name: str, place: str) -> bool:
    """Whether a mount's name is that place or lies in it. A relative one is from where nobody knows any more."""
    if name.startswith("/"):
        return is_below(_plain(name), place)
    ends = place.split("/")
    return any(is_below(_plain(name), "/" + "/".join(ends[number:])) for number in range(1, len(ends)))


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
