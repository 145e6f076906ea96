"""What a directory is called in another process's mount namespace: mounts give one directory several names.

Names are the kernel's (`/proc/PID/cwd` and the like); nothing here touches a file.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

DELETED = " (deleted)"  # suffix of the name of a deleted file (proc(5))
# File system types that several hosts may share: the git that holds a lock there may run on another host.
REMOTE = re.compile(r"nfs4?|cifs|smb3|9p|ceph|afs|lustre|gfs2|ocfs2|glusterfs|virtiofs|fuse\..*")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo: directory `root` of `device` is mounted at `point`, which lies on mount `parent`."""

    number: int
    device: str
    root: str
    point: str
    kind: str  # file system type
    parent: int = 0  # 0, or a number that is not listed: unknown
    source: str = ""  # its meaning depends on the file system
    options: tuple[str, ...] = ()  # of the file system


def mounts_of(mountinfo: bytes) -> Iterator[Mount]:
    """The mounts in a process's mountinfo (proc(5): octal escapes)."""
    for line in mountinfo.splitlines():
        fields = line.split(b" ")
        kind = fields.index(b"-") + 1
        words = (*fields[3:5], *fields[kind : kind + 2], *fields[kind + 2].split(b","))
        root, point, what, source, *options = map(unescaped, words)
        yield Mount(int(fields[0]), fields[2].decode(), root, point, what, int(fields[1]), source, tuple(options))


def unescaped(word: bytes) -> str:
    """A name from a kernel list, with octal escapes decoded (proc(5))."""
    if b"\\" in word:
        word = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8) & 0xFF]), word)
    return text(word)


def text(name: bytes) -> str:
    """A name as Python represents it (os.fsdecode)."""
    return name.decode("utf-8", "surrogateescape")


def is_below(name: str, top: str) -> bool:
    """Whether a name is `top` or lies below it, by whole components."""
    return name == top or name.startswith(top.rstrip("/") + "/")


def joined(top: str, below: str) -> str:
    """Join two parts of a path; the second is empty or begins with a slash."""
    return top.rstrip("/") + below or "/"


def names_by(mounts: Collection[Mount], device: str, inside: str) -> Iterator[str]:
    """The names of directory `inside` of that device through those mounts, except where another mount hides it.

    Any user may mount things in a namespace of its own, and so can make any directory appear under any name there.
    """
    for mount in mounts:
        if mount.device != device:
            continue
        if is_below(inside, mount.root):
            name = joined(mount.point, inside[len(mount.root.rstrip("/")) :])
        elif is_below(mount.root, inside):  # only a part of it is mounted
            name = mount.point
        else:
            continue
        if seen_at(mounts, name) is mount:
            yield name


def seen_at(mounts: Collection[Mount], name: str) -> Mount | None:
    """The mount that a name leads to: each mount on the way down hides what lies below it."""
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
    """Whether the file that is called `name` and lies on that mount is in the directory `inside` of the device.

    Without a mount (the process got the file from another namespace, or it was unmounted) its name means nothing.
    """
    if mount is None or mount.device != device or not is_below(name, mount.point):
        return False
    return is_below(joined(mount.root, name[len(mount.point.rstrip("/")) :]), inside)


# Options that name an overlay's layers; those with `+` hold one layer each (newer kernels).
_LAYERS = {
    "lowerdir": "lower directory",
    "lowerdir+": "lower directory",
    "datadir+": "data directory",
    "upperdir": "upper directory",
    "workdir": "work directory",
}
GONE = "//deleted"  # suffix of the root of a mount whose source was deleted


def made_of(mount: Mount, uid: int) -> Iterator[tuple[str, str]]:
    """The directories that a mount is built from: a description of each, and its name as given at the time of mount(2).

    These are the layers of an overlay, and the source of file systems on top of a directory (ecryptfs, bindfs,
    mergerfs). Any user may mount a FUSE file system with any source name: of those only root's and `uid`'s count.
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
    """Describe which of those mounts uses the directory `path`, which is `inside` on that device; None: none.

    A mount of it or of a part of it is known by device and root; a mount point inside it would be removed with it. What
    other mounts are built from is known only by names, perhaps relative ones. `names`: of the directory in that
    namespace; `uid`: its owner.
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
        if inside_it and seen_at(mounts, mount.point) is mount:  # and is not hidden by the directory's own mount
            return f"{mount.kind} is mounted on {mount.point}"
    return None


def _means(name: str, place: str) -> bool:
    """Whether a mount's source is that directory or lies in it. What a relative name was relative to is unknown."""
    if name.startswith("/"):
        return is_below(_plain(name), place)
    ends = place.split("/")
    return any(is_below(_plain(name), "/" + "/".join(ends[number:])) for number in range(1, len(ends)))


def mapped_files(maps: str) -> set[str]:
    """The names of mapped files in /proc/PID/maps. Names of anonymous memory (`[anon:...]`) are not files."""
    fields = (line.split(None, 5) for line in maps.split("\n"))
    return {words[5] for words in fields if len(words) == 6 and words[5].startswith("/")}


def names_place(value: str, path: str) -> bool:
    """Whether an environment variable's value names that directory or something in it; also in a list (PATH)."""
    return any(is_below(_plain(part), path) for part in value.split(":") if part.startswith("/"))


def _plain(path: str) -> str:
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return "/" + "/".join(names)


# Variables that a shell sets by itself: they do not show that a directory is used.
NO_USE = frozenset({b"PWD", b"OLDPWD", b"_"})


def variable_naming(environ: bytes, paths: Iterable[str]) -> str | None:
    """The name of the first variable that names one of these directories; None: none does."""
    places = list(paths)
    for item in environ.split(b"\0"):
        name, equals, value = item.partition(b"=")
        if not equals or b"/" not in value or name in NO_USE:
            continue
        if any(names_place(text(value), path) for path in places):
            return text(name)
    return None
