"""Files of git-lfs in a worktree: the file has the content, git only a pointer to it.

With filters disabled (`git`) git considers each such file changed as soon as it reads it. The contrary can be proved
without a filter: the pointer names the SHA-256 and the size of the content (git-lfs, docs/spec.md), which is in the
repository's own store, `<common>/lfs/objects/`, which all worktrees share and which stays. Both are read and compared.
Content that the store lacks counts as existing nowhere else, pushed or not, even if git calls the file clean because of
its times.

Other filters (git-crypt, nbstripout) leave nothing to compare with: their files count as changed.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

from watchdog.errors import OwnerCallFailed
from watchdog.owner.git.git import Git

POINTER = re.compile(
    r"version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v1\n"
    r"(?:ext-\d-[^\n]*\n)*oid sha256:([0-9a-f]{64})\nsize (\d+)\n"
)
POINTER_LIMIT = 1024  # bytes; a longer blob is not a pointer
UNSET = frozenset({"unspecified", "unset", "set"})


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A file's entry in the index."""

    mode: str
    blob: str
    path: str


@dataclass(slots=True)
class Content:
    """The files that have a filter. `held`: path -> SHA-256 of content that git or the store has too.

    `alone`: the pointer's content is here but not in the store. `filtered`: path -> the name of its filter.
    """

    held: dict[str, bytes] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)
    filtered: dict[str, str] = field(default_factory=dict)


def look(git: Git, top: str, common: str, entries: Iterable[IndexEntry]) -> Content:
    """Compare the filtered files with git and the store. Raises OwnerCallFailed, OSError."""
    files = {entry.path: entry for entry in entries if entry.mode.startswith("100")}
    found = Content()
    if not files:
        return found
    asked = git.run("check-attr", "-z", "--stdin", "filter", stdin="".join(f"{path}\0" for path in files)).split("\0")
    for path, _, value in zip(asked[0::3], asked[1::3], asked[2::3], strict=False):
        if value not in UNSET:
            found.filtered[path] = value
    ours = [files[path] for path, name in found.filtered.items() if name == "lfs"]
    pointers = _pointers(git, {entry.blob for entry in ours})
    store = _store(git, common) if pointers else ""
    for entry in ours:
        pointer = pointers.get(entry.blob)
        if pointer is None:
            continue  # the content itself is committed: git compares it
        own, length, oid, size = pointer
        place = os.path.join(top, entry.path)
        try:
            status = os.lstat(place)
        except FileNotFoundError:
            continue  # git reports it as deleted
        if not stat.S_ISREG(status.st_mode) or status.st_size not in (length, size):
            continue  # a change
        lies_there, same_mode = _digest(place), (entry.mode == "100755") == bool(status.st_mode & stat.S_IXUSR)
        if lies_there == own and same_mode:  # the file is the pointer: the content was never fetched
            found.held[entry.path] = bytes.fromhex(own)
        if lies_there != oid:
            continue
        if _digest(os.path.join(store, oid[:2], oid[2:4], oid), size) != oid:
            found.alone.append(entry.path)
        elif same_mode:
            found.held[entry.path] = bytes.fromhex(oid)
    return found


def _pointers(git: Git, blobs: set[str]) -> dict[str, tuple[str, int, str, int]]:
    """For blobs that are pointers: SHA-256 and size of the pointer and of the content."""
    asked = "".join(f"{blob}\n" for blob in sorted(blobs))
    small = []
    for line in git.run("cat-file", "--batch-check", stdin=asked).splitlines() if blobs else ():
        name, kind, size = (*line.split(" "), "", "")[:3]
        if kind != "blob":
            raise OwnerCallFailed("git_failed", f"git has no blob {name}")
        if int(size) <= POINTER_LIMIT:
            small.append((name, int(size)))
    content = os.fsencode(git.run("cat-file", "--batch", stdin="".join(f"{name}\n" for name, _ in small)))
    found, at = {}, 0
    for name, length in small:
        at = content.index(b"\n", at) + 1
        pointer = content[at : at + length]
        match = POINTER.fullmatch(pointer.decode("utf-8", "replace"))
        at += length + 1
        if match:
            found[name] = hashlib.sha256(pointer).hexdigest(), length, match[1], int(match[2])
    return found


def _store(git: Git, common: str) -> str:
    """The directory of the content; `lfs.storage` may name another one (git-lfs-config(5))."""
    named = git.run("config", "--type=path", "--get", "lfs.storage", good=(0, 1)).rstrip("\n")
    return os.path.join(common, named or "lfs", "objects")


def _digest(path: str, size: int | None = None) -> str | None:
    """SHA-256 of a regular file, if it has `size` where given; None for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or size not in (None, status.st_size):
            return None
        return hashlib.file_digest(file, "sha256").hexdigest()
