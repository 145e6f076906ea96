"""Moves aside lock files that a dead git left in a repository; with them status works but each write fails.

A lock is moved only if all of this holds in two checks, `APART` seconds from each other:

1. It is one of git's own (`OWN` of a worktree, `SHARED` of its repository): a regular file of this uid, reached without
   links, on a file system that no other host writes to.
2. It is the same file, unchanged between the checks, older than `MIN_AGE`, and not made after the agent's end.
3. No process has it open, and no living git works in that worktree, or for a shared lock in any of the repository's
   worktrees (`git_processes`).

It is moved to `<git common dir>/agent-watchdog/locks/AGENT/`: a half-written index may contain what a person staged.
Nothing there is deleted. Locks of other worktrees' entries are never touched.
"""

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from watchdog import file_identity
from watchdog.core.mounts import REMOTE, is_below
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import paths, trash
from watchdog.owner.git import git_processes, worktrees
from watchdog.owner.git.git import Git, checkout_of, dirs_of

MIN_AGE = 10.0  # seconds; git holds a lock that long only while it waits, and then it is alive and visible
APART = 2.0  # seconds between the checks
GIT_SECONDS = 30.0  # for all git runs together
NAMES_LIMIT = 200_000  # below refs and logs; a repository with more keeps them packed
DEPTH_LIMIT = 64
SUBMODULES_LIMIT = 1000
AREA = ("agent-watchdog", "locks")

# gitrepository-layout(5), lockfile.h, refs/files-backend.c, refs/packed-backend.c, builtin/gc.c, 2.39 to 2.51. Refs
# never end in .lock (git-check-ref-format(1)), so below refs and logs each file of that name is a lock.
OWN = re.compile(r"(index|next-index-\d+|[A-Z][A-Z_]*|config\.worktree|info/sparse-checkout)\.lock")
SHARED = re.compile(
    r"(packed-refs|config|shallow|gc\.pid|objects/(maintenance|schedule|info/commit-graph|pack/multi-pack-index"
    r"|info/commit-graphs/commit-graph-chain)|reftable/tables\.list)\.lock|packed-refs\.new"
)
PLACES = ("info", "objects", "objects/info", "objects/info/commit-graphs", "objects/pack", "reftable")


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock file: its place in its git dir, its identity and stamps."""

    git_dir: str
    name: str  # relative, with slashes
    file_id: file_identity.FileId
    stamps: tuple[int, int, int]  # mtime and ctime in ns, size
    uid: int
    shared: bool

    @property
    def made(self) -> float:
        """When it was last written, by its own stamps: seconds since the epoch."""
        return max(self.stamps[:2]) / 1e9

    @property
    def path(self) -> str:
        """Its path, for messages."""
        return os.path.join(self.git_dir, self.name)


@dataclass(frozen=True, slots=True)
class Repository:
    """Where to search. `own` is the worktree's git dir; None: only what all worktrees share is searched."""

    common: str
    own: str | None
    places: frozenset[file_identity.FileId]  # the worktree and its git dir: a git in one of them may hold its locks
    shared_places: frozenset[file_identity.FileId]  # the common dir and all worktrees


@dataclass(slots=True)
class Outcome:
    """The result: where each lock was moved, and why the others stay."""

    moved: list[tuple[str, str]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    area: str | None = None

    def add(self, other: "Outcome") -> None:
        """Add the result of a further repository."""
        self.moved += other.moved
        self.kept += other.kept
        self.area = ", ".join(area for area in (self.area, other.area) if area) or None


def checkouts(path: str) -> list[tuple[str, Repository]]:
    """The checkout and its submodules, at any depth, each with its path. Raises as `of_worktree` for the checkout.

    Git is not run in a submodule, whose configuration the agent can write: its pointer is read here, and its index by
    the checkout's git (GIT_INDEX_FILE).
    """
    outer = of_worktree(path)
    found, todo = [(path, outer)], [(path, str(outer.own), "")]
    git = Git(path, GIT_SECONDS)
    while todo:
        place, own, index = todo.pop()
        with suppress(OwnerCallFailed, ValueError):  # an unreadable index names none
            for stage in worktrees.index(git, index or None).get(0, []):
                inner = os.path.join(place, stage.path)
                if stage.mode == worktrees.GITLINK and len(found) < SUBMODULES_LIMIT:
                    with suppress(PathRefused, OSError):
                        found.append((inner, repository := _of_submodule(inner, own)))
                        todo.append((inner, repository.common, os.path.join(repository.common, "index")))
    return found


def _of_submodule(path: str, outer: str) -> Repository:
    """The repository of a submodule's checkout: its git dir must lie in it, or below `modules` of the outer git dir
    (gitrepository-layout(5)). Raises PathRefused, OSError.
    """
    directory = paths.open_directory(path)
    try:
        _refuse_foreign(directory, path)
    finally:
        os.close(directory)
    own = os.path.realpath(dirs_of(path)[0])
    modules = os.path.join(os.path.realpath(outer), "modules")
    if own != os.path.join(os.path.realpath(path), ".git") and not is_below(own, modules):
        raise PathRefused("no_submodule", f"{path} is not a checkout of a submodule: its git dir is {own}")
    entries = os.path.join(own, "worktrees")
    others = [os.path.join(entries, name) for name in os.listdir(entries)] if os.path.isdir(entries) else []
    everywhere = [own, path, *others, *map(checkout_of, others)]
    return Repository(own, own, _places([own, path]), _places(everywhere))


def of_worktree(path: str) -> Repository:
    """The repository of a checkout, main or linked. Raises PathRefused, OwnerCallFailed, OSError."""
    directory = paths.open_directory(path)
    try:
        _refuse_foreign(directory, path)
    finally:
        os.close(directory)
    if not os.path.lexists(os.path.join(path, ".git")):
        raise PathRefused("no_worktree", f"{path} is not a git worktree")
    git = Git(path, GIT_SECONDS)
    own, common, top = worktrees.places(git)
    if _id(top) != _id(path):
        raise PathRefused("no_worktree", f"git calls {top} the top of {path}")
    if _id(own) != _id(common):
        # An entry whose pointer leads elsewhere belongs to another worktree, and so do its locks.
        with open(os.path.join(own, "gitdir"), encoding="utf-8", errors="surrogateescape") as pointer:
            back = os.path.join(own, pointer.read().rstrip("\n"))
        if _id(back) != _id(os.path.join(path, ".git")):
            raise PathRefused("back_pointer", f"the entry {own} points to {back}, not here")
    everywhere = _places([common, path, *(entry["worktree"] for entry in worktrees.listed(git))])
    return Repository(common, own, _places([own, path]), everywhere)


def of_common(common: str) -> Repository:
    """The part of a repository that all worktrees share. Raises as `of_worktree`."""
    entries = worktrees.listed(Git(common, GIT_SECONDS, git_dir=common))
    return Repository(common, None, frozenset(), _places([common, *(entry["worktree"] for entry in entries)]))


def find(repository: Repository) -> list[Lock]:
    """The lock files that exist now. Raises PathRefused, OSError."""
    if repository.own is None:
        return list(_locks(repository.common, SHARED, shared=True))
    locks = list(_locks(repository.own, OWN, shared=False))
    return locks + [lock for lock in _locks(repository.common, SHARED, shared=True) if lock not in locks]


def reasons_to_keep(repository: Repository, locks: list[Lock], ended: float) -> dict[Lock, str]:
    """Why locks stay; those without a reason are not included. `ended`: the agent's end, seconds since the epoch.

    Raises OSError when /proc cannot be read.
    """
    gits_at_work, holders = git_processes.at_work(), git_processes.holder({lock.file_id for lock in locks})
    found = {}
    for lock in locks:
        places = repository.shared_places if lock.shared else repository.places
        working = next((git.pid for git in gits_at_work if git.unseen or git.places & places), None)
        if lock.uid != os.geteuid():
            found[lock] = f"it belongs to uid {lock.uid}"
        elif lock.made > ended:
            found[lock] = "it was written after the agent's end"
        elif lock.file_id in holders:
            found[lock] = f"process {holders[lock.file_id]} has it open"
        elif working is not None:
            found[lock] = f"git, process {working}, is at work there"
        elif time.time() - lock.made < MIN_AGE:
            found[lock] = f"it is younger than {MIN_AGE:g} s"
    return found


def put_aside(
    repository: Repository, holder: str, ended: float, wait: Callable[[float], object] = time.sleep
) -> Outcome:
    """Move dead locks aside. `holder` names the target directory; `ended` as in `reasons_to_keep`. Raises as `find`."""
    outcome = Outcome()
    first = find(repository)
    if not first:
        return outcome
    waiting = [lock for lock in first if lock.made <= ended]  # a young lock of the agent's is worth the wait
    wait(max([APART, *(min(MIN_AGE, MIN_AGE - time.time() + lock.made) + 0.1 for lock in waiting)]))
    second = find(repository)
    reasons = reasons_to_keep(repository, second, ended)
    with ExitStack() as stack:
        for lock in second:
            reason = reasons.get(lock)
            if reason is None and lock not in first:
                reason = "it was written again a moment ago"
            if reason is None and outcome.area is None:
                area = _open_area(stack, repository.common, holder)
                outcome.area = paths.real_path(area)
            if reason is None:
                reason = _move(lock, repository.common, area, outcome)
            if reason is not None:
                outcome.kept.append(f"{lock.path}: {reason}")
    return outcome


def _id(path: str) -> file_identity.FileId:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _places(names: list[str]) -> frozenset[file_identity.FileId]:
    """The identities of these directories; a missing one (a moved worktree) has no git in it."""
    found = set()
    for name in names:
        try:
            found.add(_id(name))
        except FileNotFoundError:
            continue
    return frozenset(found)


def _refuse_foreign(directory: int, path: str) -> None:
    uid = os.fstat(directory).st_uid
    if uid != os.geteuid():
        raise PathRefused("not_yours", f"{path} belongs to uid {uid}, not {os.geteuid()}")
    kind = paths.file_system(directory)
    if REMOTE.fullmatch(kind):
        raise PathRefused("remote", f"{path} lies on {kind}: a git of another host may hold what looks left there")


def _locks(git_dir: str, names: re.Pattern[str], *, shared: bool) -> Iterator[Lock]:
    """Its lock files with those names, and those of its refs; files that vanish meanwhile are skipped."""
    with ExitStack() as stack:
        top = paths.open_directory(git_dir)
        stack.callback(os.close, top)
        _refuse_foreign(top, git_dir)
        for place in ("", *PLACES):
            yield from _in(top, git_dir, place, names, shared, below=False)
        for place in ("refs", "logs"):
            yield from _in(top, git_dir, place, re.compile(r".+\.lock"), shared, below=True)


def _in(top: int, git_dir: str, place: str, names: re.Pattern[str], shared: bool, *, below: bool) -> Iterator[Lock]:
    todo, seen = [place], 0
    while todo and seen < NAMES_LIMIT:
        where = todo.pop()
        try:
            directory = paths.walk(top, where.split("/") if where else [])
        except (FileNotFoundError, PathRefused):
            continue
        try:
            for name in os.listdir(f"/proc/self/fd/{directory}"):
                seen += 1
                relative = f"{where}/{name}" if where else name
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and names.fullmatch(relative):
                    stamps = status.st_mtime_ns, status.st_ctime_ns, status.st_size
                    yield Lock(git_dir, relative, (status.st_dev, status.st_ino), stamps, status.st_uid, shared)
                elif below and stat.S_ISDIR(status.st_mode) and relative.count("/") < DEPTH_LIMIT:
                    todo.append(relative)
        except FileNotFoundError:
            continue
        finally:
            os.close(directory)


def _open_area(stack: ExitStack, common: str, holder: str) -> int:
    current = os.open(common, paths.STEP)
    stack.callback(os.close, current)
    for name in (*AREA, paths.checked_agent_id(holder)):
        current = trash.open_trash(current, name)
        stack.callback(os.close, current)
    return current


def _move(lock: Lock, common: str, area: int, outcome: Outcome) -> str | None:
    """Rename it; if it turns out to be another file, put it back. Returns why it stays, or None."""
    above, _, name = lock.name.rpartition("/")
    prefix = os.path.relpath(lock.git_dir, common)
    flat = "+".join([*(prefix.split("/") if prefix != "." else []), *lock.name.split("/")])[-200:]
    taken = set(os.listdir(f"/proc/self/fd/{area}"))
    names = [flat, *(f"{flat}.{number}" for number in range(1, len(taken) + 1))]
    target = next(new for new in names if new not in taken)
    directory = paths.open_directory(os.path.join(lock.git_dir, above) if above else lock.git_dir)
    try:
        os.rename(name, target, src_dir_fd=directory, dst_dir_fd=area)
        moved = os.stat(target, dir_fd=area, follow_symlinks=False)
        if (moved.st_dev, moved.st_ino) != lock.file_id:
            os.link(target, name, src_dir_fd=area, dst_dir_fd=directory, follow_symlinks=False)
            os.unlink(target, dir_fd=area)
            return "another one was just made in its place"
    except FileNotFoundError:
        return "it has just gone"
    finally:
        os.close(directory)
    outcome.moved.append((lock.path, target))
    return None
