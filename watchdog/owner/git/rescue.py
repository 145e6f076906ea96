"""Makes a verified copy of a worktree's work in its repository before the tree is moved: refs that outlive the trash.

Below `refs/agent-watchdog/rescue/AGENT/`:
    head      the commit of HEAD
    files     tracked and untracked files as on disk, without filters or changed line endings; git-lfs files that
              equal those in a commit of another ref stay pointers, since the store has their content (`lfs`)
    index     what is staged; index-1 to index-3: the sides of unresolved conflicts
    held      all commits and objects that only this worktree holds (`unshared_objects`)
Each is a commit; `files` and `index` exist only if they differ from HEAD. All are made by plumbing that runs no hook,
filter or gpg, and are set in one transaction. Then all content is read from disk again and compared with what git
returns; nothing may be moved before that. Ignored files are not included: they stay with the tree in the trash.
"""

import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import paths, trash
from watchdog.owner.git import lfs, worktree_trash, worktrees
from watchdog.owner.git import unshared_objects as held
from watchdog.owner.git.git import WRITER, Git
from watchdog.owner.git.worktrees import Linked, Stage

INDEX = "rescue.index"  # a temporary index, in the container
LINKS = "rescue.links"  # targets of symbolic links, to be hashed like files

Stamp = tuple[int, ...]


@dataclass(slots=True)
class TreeSnapshot:
    """The tree on disk at one time: what can be saved, and stamps that show whether anything changes meanwhile."""

    files: dict[str, int] = field(default_factory=dict)  # path -> st_mode, of regular files and links
    stamps: dict[str, Stamp] = field(default_factory=dict)  # of these, and of their parent directories


@dataclass(frozen=True, slots=True)
class Rescued:
    """`refs`: name -> commit; `look` is the snapshot that they were compared with."""

    refs: dict[str, str]
    look: TreeSnapshot


def save(git: Git, tree: Linked, directory: int, container: int, agent_id: str) -> Rescued:
    """Save all work of the worktree that is open as `directory`. Changes nothing in it.

    Raises OwnerCallFailed, PathRefused or OSError if anything is wrong; then nothing may be moved.
    """
    git.write_like(os.path.join(tree.common, "objects"))
    seen = look(directory, listed(git))
    empty = git.run("hash-object", "-t", "tree", "-w", "--stdin").strip()
    base = git.run("rev-parse", f"{tree.head}^{{tree}}").strip() if tree.head else empty
    parents = [tree.head] if tree.head else []
    made: dict[str, str] = {}
    if tree.head:
        made["head"] = tree.head
    words = f"worktree {tree.path}, branch {tree.short}, agent {agent_id}"
    for stage, entries in sorted(worktrees.index(git).items()):
        written = _tree(git, container, entries)
        if stage or written != base:
            side = f" (stage {stage})" if stage else ""
            made[f"index-{stage}" if stage else "index"] = _commit(git, written, parents, f"index{side} of {words}")
    pointers = _pointers(git, tree)
    on_disk = _tree(git, container, _written(git, directory, container, seen, pointers))
    if on_disk != base:
        made["files"] = _commit(git, on_disk, parents, f"files of {words}", _unusual(git, directory, seen))
    alone = held.only_here(git, tree)
    if alone.tips or alone.loose:
        lines = "".join(f"{mode} {kind} {name}\t{name}\0" for mode, kind, name in alone.loose)
        holder = git.run("mktree", "-z", stdin=lines).strip()
        made["held"] = _commit(git, holder, alone.tips, f"what nothing else holds of {words}")
    refs = {f"{worktree_trash.RESCUE}{agent_id}/{name}": commit for name, commit in made.items()}
    _set(git, agent_id, refs)
    _verify(git, directory, seen, on_disk, refs, {path: digest for path, (_, digest) in pointers.items()})
    return Rescued(refs, seen)


def drop(git: Git, agent_id: str) -> None:
    """Delete the copy, as the tree stays after all. Raises OwnerCallFailed."""
    _set(git, agent_id, {})


def look(directory: int, names: Iterable[str]) -> TreeSnapshot:
    """Which of these paths are files or links on disk, reached without links. Raises PathRefused, OSError."""
    found = TreeSnapshot()
    with _Parents(directory) as parents:
        for name in names:
            parent = parents.of(name)
            if parent is None:
                continue
            try:
                status = os.stat(os.path.basename(name), dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                continue  # deleted: the tree in `files` shows that
            if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                found.files[name] = status.st_mode
                found.stamps[name] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                above = os.fstat(parent)
                # A directory's ctime changes when it is moved, its mtime when a name in it changes.
                found.stamps[os.path.dirname(name) + "/"] = (above.st_ino, above.st_mtime_ns)
    return found


class _Parents:
    """Opens the parent directories of successive paths step by step; neighbouring paths share one."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._place: str | None = None
        self._fd: int | None = None

    def __enter__(self) -> "_Parents":
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def of(self, path: str) -> int | None:
        """The open parent directory of `path`; None if it does not exist or is behind a link."""
        place = os.path.dirname(path)
        if place != self._place:
            self.__exit__()
            self._place, self._fd = place, None
            try:
                self._fd = paths.walk(self._top, [name for name in place.split("/") if name])
            except FileNotFoundError:
                pass
            except PathRefused as refused:
                if refused.reason not in ("link", "not_a_directory"):
                    raise
        return self._fd

    def must(self, path: str) -> int:
        """The same for a path that existed a moment ago. Raises OwnerCallFailed."""
        parent = self.of(path)
        if parent is None:
            raise OwnerCallFailed("changed", "the worktree changed while it was saved")
        return parent


def listed(git: Git) -> list[str]:
    """Tracked and untracked paths, without ignored ones, each once."""
    out = git.run("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted({name for name in out.split("\0") if name})


def _pointers(git: Git, tree: Linked) -> dict[str, tuple[str, bytes]]:
    """LFS files whose content need not be copied: the pointer's blob, and the SHA-256 of the content.

    `git lfs prune` deletes content that only a rescue ref names, so another ref must contain HEAD too.
    """
    if tree.head is None or not worktrees.holders(git, tree.head, None):
        return {}
    committed = {}
    for line in git.run("ls-tree", "-r", "-z", "--full-tree", tree.head).split("\0"):
        words, tab, path = line.partition("\t")
        if tab:
            committed[path] = words.split(" ")[2]
    entries = [entry for entry in worktrees.entries(git) if committed.get(entry.path) == entry.blob]
    held = lfs.look(git, tree.path, tree.common, entries).held
    return {path: (committed[path], digest) for path, digest in held.items()}


def _written(
    git: Git, directory: int, container: int, seen: TreeSnapshot, pointers: dict[str, tuple[str, bytes]]
) -> list[Stage]:
    """Write all files and links as blobs, by their bytes on disk; those in `pointers` exist already."""
    files = [name for name, mode in seen.files.items() if stat.S_ISREG(mode) and name not in pointers]
    links = [name for name, mode in seen.files.items() if stat.S_ISLNK(mode)]
    written: list[Stage] = []
    with ExitStack() as stack:
        place = paths.real_path(trash.open_trash(container, LINKS))
        stack.callback(trash.remove_container, container, LINKS, trash.Freed())
        targets = []
        for number, name in enumerate(links):
            targets.append(os.path.join(place, str(number)))
            with open(targets[-1], "wb") as file, _Parents(directory) as parents:
                file.write(os.readlink(os.fsencode(os.path.basename(name)), dir_fd=parents.must(name)))
        asked = "".join(f"{_quoted(path)}\n" for path in [*files, *targets])
        blobs = git.run("hash-object", "-w", "--no-filters", "--stdin-paths", stdin=asked).split()
    if len(blobs) != len(files) + len(links):
        raise OwnerCallFailed("git_failed", "git hash-object did not answer for every file")
    for name, blob in zip([*files, *links], blobs, strict=True):
        written.append(Stage(f"{_mode(seen.files[name]):o}", blob, name))
    there = [(name, blob) for name, (blob, _) in pointers.items() if name in seen.files]
    return written + [Stage(f"{_mode(seen.files[name]):o}", blob, name) for name, blob in there]


def _quoted(path: str) -> str:
    """A name quoted as git reads it (quote.c, unquote_c_style)."""
    plain = (chr(byte) if 32 < byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in os.fsencode(path))
    return f'"{"".join(plain)}"'


def _mode(mode: int) -> int:
    """The three modes that git has for content."""
    if stat.S_ISLNK(mode):
        return 0o120000
    return 0o100755 if mode & stat.S_IXUSR else 0o100644


def _tree(git: Git, container: int, entries: list[Stage]) -> str:
    """A tree object of these entries, through a temporary index in the container."""
    for stale in (INDEX, INDEX + ".lock"):
        _unlink(stale, container)
    place = os.path.join(paths.real_path(container), INDEX)
    lines = "".join(f"{entry.mode} {entry.name} 0\t{entry.path}\0" for entry in entries)
    try:
        git.run("update-index", "-z", "--index-info", stdin=lines, index=place)
        return git.run("write-tree", index=place).strip()
    finally:
        _unlink(INDEX, container)


def _unlink(name: str, directory: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def _commit(git: Git, tree: str, parents: Iterable[str], words: str, more: Iterable[str] = ()) -> str:
    """Write a commit object as text: `commit-tree` needs a configured name, and takes parents as arguments."""
    who = f"{WRITER} <{WRITER}@localhost> {int(time.time())} +0000"
    head = [f"tree {tree}", *(f"parent {parent}" for parent in parents), f"author {who}", f"committer {who}"]
    plain = words.encode("ascii", "backslashreplace").decode()
    text = "\n".join([*head, "", f"rescue: {plain}", "", *more, ""])
    return git.run("hash-object", "-t", "commit", "-w", "--stdin", stdin=text).strip()


def _unusual(git: Git, directory: int, seen: TreeSnapshot) -> list[str]:
    """What a tree object cannot express: modes other than 644 and 755, and empty directories; for the message."""
    lines = []
    for name, mode in seen.files.items():
        if stat.S_ISREG(mode) and stat.S_IMODE(mode) not in (0o644, 0o755):
            lines.append(f"mode {stat.S_IMODE(mode):04o} {_quoted(name)}")
    ignored = git.run("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory").split("\0")
    skipped = {name.rstrip("/") for name in ignored if name.endswith("/")}
    top = paths.real_path(directory)
    for place, names, files in paths.below(top):
        below = os.path.relpath(place, top)
        names[:] = [name for name in names if os.path.normpath(os.path.join(below, name)) not in skipped]
        if not names and not files and below != ".":
            lines.append(f"empty directory {stat.S_IMODE(os.lstat(place).st_mode):04o} {_quoted(below)}")
    return sorted(lines)


def _set(git: Git, agent_id: str, refs: dict[str, str]) -> None:
    """Set the agent's rescue refs to exactly these, in one transaction against the old ones (git-update-ref(1))."""
    lines = git.run(
        "for-each-ref", "--format=%(objectname) %(refname)", f"{worktree_trash.RESCUE}{agent_id}/"
    ).splitlines()
    there = {ref: name for name, _, ref in (line.partition(" ") for line in lines)}
    orders = [f"update {ref} {name} {there.get(ref, '0' * len(name))}\n" for ref, name in refs.items()]
    orders += [f"delete {ref} {name}\n" for ref, name in there.items() if ref not in refs]
    if orders:
        git.run("update-ref", "--stdin", stdin="".join(orders))


def _verify(
    git: Git, directory: int, seen: TreeSnapshot, on_disk: str, refs: dict[str, str], pointed: dict[str, bytes]
) -> None:
    """Compare what git returns, or its pointers name, with the disk; check that nothing is missing.

    Raises OwnerCallFailed.
    """
    tips = "".join(f"{commit}\n" for commit in refs.values())
    git.run("rev-list", "--objects", "--quiet", "--stdin", *held.OTHERS, stdin=tips)  # fails if an object is missing
    saved: dict[str, tuple[int, str]] = {}
    for line in git.run("ls-tree", "-r", "-z", "--full-tree", on_disk).split("\0"):
        words, tab, path = line.partition("\t")
        if tab:
            mode, _, blob = words.split(" ")
            saved[path] = int(mode, 8), blob
    content = git.digests(sorted({blob for _, blob in saved.values()}))
    for path, digest, st_mode in _digests(directory, seen):
        if path not in saved or (_mode(st_mode), digest) != (
            saved[path][0],
            pointed.get(path) or content[saved[path][1]],
        ):
            raise OwnerCallFailed("not_verified", f"the rescued copy of {path!r} is not what lies on disk")
    again = look(directory, listed(git))
    if len(saved) != len(seen.files) or again != seen:
        raise OwnerCallFailed("changed", "the worktree changed while it was saved")


def _digests(directory: int, seen: TreeSnapshot) -> Iterator[tuple[str, bytes, int]]:
    """Yield (path, SHA-256 of its bytes, st_mode), without following links."""
    with _Parents(directory) as parents:
        for path in seen.files:
            parent, name = parents.must(path), os.path.basename(path)
            if stat.S_ISLNK(seen.files[path]):
                target = os.readlink(os.fsencode(name), dir_fd=parent)
                yield path, hashlib.sha256(target).digest(), seen.files[path]
                continue
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
            with open(fd, "rb") as file:
                yield path, hashlib.file_digest(file, "sha256").digest(), os.fstat(fd).st_mode
