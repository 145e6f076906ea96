"""The trash of a repository's worktrees: `<common>/agent-watchdog/trash/AGENT/`, one container per agent.

    tree            the worktree itself, moved by rename
    entry/          a copy of git's own record of it, `<common>/worktrees/NAME`: index, HEAD, reflog, a running rebase
    manifest.json   what a restore needs to know about both, and the rescue refs

It is in the git common dir: next to the tree, `git clean -fdx` would delete it and `git add -A` commit it. A container
is all that is needed to restore the worktree, without registry or daemon.

Tests: tests/owner/hooks/test_worktree.py, tests/owner/finders/test_expired_trash.py.
"""

import os
import re
import secrets
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field

from watchdog.errors import PathRefused
from watchdog.owner import copy_tree, paths, trash
from watchdog.owner.git import ignored_files, worktrees
from watchdog.owner.git.git import Git
from watchdog.owner.git.ignored_files import Ignored

AREA = "agent-watchdog"
MANIFEST = "manifest.json"
ENTRY = "entry"
GIT_SECONDS = 20.0
MOST_HOURS = 1e9  # a larger value was not written by us; JSON allows NaN, Infinity and integers of any length
LEAVING = ".leaving-"  # prefix of an agent's id while its container is being deleted
RESCUE = "refs/agent-watchdog/rescue/"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record of a container. `head`: the commit of HEAD; `branch` None: detached; times are ISO 8601."""

    agent_id: str
    path: str
    branch: str | None
    head: str | None
    entry: str
    common: str
    trashed_at: str
    name: str = ""
    refs: dict[str, str] = field(default_factory=dict)  # rescue ref -> commit
    keep_hours: float = 0.0  # the retention when it was put there
    ignored: list[str] | None = None  # ignored files that are work: kept without limit; None: not checked
    copies: list[str] = field(default_factory=list)  # ignored files that are in the main checkout too
    rebuildable: list[str] = field(default_factory=list)  # ignored directories that can be rebuilt


def open_bin(stack: ExitStack, common: str, *, create: bool = True) -> int:
    """Open `<common>/agent-watchdog/trash`; each step must be this uid's own, 0700, no link. Raises as `open_trash`."""
    current = os.open(common, paths.STEP)
    stack.callback(os.close, current)
    for name in (AREA, "trash"):
        current = trash.open_trash(current, name, create=create)
        stack.callback(os.close, current)
    return current


def bin_of(common: str) -> str:
    """Its path."""
    return os.path.join(common, AREA, "trash")


def open_container(stack: ExitStack, common: str, agent_id: str, *, create: bool = True) -> int:
    """Open the container of one agent."""
    container = trash.open_trash(open_bin(stack, common, create=create), agent_id, create=create)
    stack.callback(os.close, container)
    return container


def has_tree(container: int) -> bool:
    """Whether it holds a worktree."""
    try:
        return stat.S_ISDIR(os.stat(trash.TREE, dir_fd=container, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def save(container: int, git_dir: str, manifest: Manifest) -> None:
    """Copy the entry and write the manifest; repeated by each run that gets this far. Raises PathRefused."""
    if has_tree(container):
        raise PathRefused("trash_taken", "the trash already holds a tree of this agent")
    for stale in (ENTRY, ENTRY + ".new"):
        trash.remove_container(container, stale, trash.Freed())
    copy_tree.copy_tree(git_dir, container, ENTRY + ".new")
    os.rename(ENTRY + ".new", ENTRY, src_dir_fd=container, dst_dir_fd=container)
    trash.write_json(container, MANIFEST, asdict(manifest))


def manifest_in(container: int) -> Manifest | None:
    """The container's manifest; None if it is missing or invalid."""
    raw = trash.read_json(container, MANIFEST)
    if raw is None:
        return None
    texts = [raw.get(key) for key in ("agent_id", "path", "entry", "common", "trashed_at")]
    if not all(isinstance(text, str) for text in texts):
        return None
    agent_id, path, entry, common, trashed_at = map(str, texts)
    branch, head, refs, hours = (raw.get(key) for key in ("branch", "head", "refs", "keep_hours"))
    return Manifest(
        agent_id,
        path,
        branch if isinstance(branch, str) else None,
        head if isinstance(head, str) and re.fullmatch(r"[0-9a-f]{40,64}", head) else None,
        os.path.basename(entry),
        common,
        trashed_at,
        str(raw.get("name", "")),
        {str(ref): str(at) for ref, at in refs.items()} if isinstance(refs, dict) else {},
        float(hours) if isinstance(hours, int | float) and 0 <= hours < MOST_HOURS else 0.0,
        _names(raw.get("ignored")),
        _names(raw.get("copies")) or [],
        _names(raw.get("rebuildable")) or [],
    )


def _names(value: object) -> list[str] | None:
    return [str(name) for name in value] if isinstance(value, list) else None


def work_in(common: str, place: str, manifest: Manifest, more: Sequence[str] = ()) -> Ignored:
    """The ignored files in the tree of the container `place`, by its record and by the main checkout as it is now;
    `rebuildable` lists what still exists.

    An older record does not list them: then all files that its index lacks count, except rebuildable ones (`more` as in
    `ignored_files.look`). Raises OSError, OwnerCallFailed.
    """
    tree, main = os.path.join(place, trash.TREE), ignored_files.main_checkout(common)
    if manifest.ignored is None:
        git = Git(common, GIT_SECONDS, git_dir=common)
        index = os.path.join(place, ENTRY, "index")
        tracked = {stage.path for stages in worktrees.index(git, index).values() for stage in stages}
        return ignored_files.look(tree, tracked, main, more)
    copies = [name for name in manifest.copies if not (main and ignored_files.same(f"{tree}/{name}", f"{main}/{name}"))]
    there = [name for name in manifest.ignored + copies if os.path.lexists(f"{tree}/{name}")]
    return Ignored(there, [], [name for name in manifest.rebuildable if os.path.isdir(f"{tree}/{name}")])


def ids(trash_bin: int) -> list[str]:
    """The agents that have a container there, without those that are being deleted."""
    return [name for name in names(trash_bin) if paths.AGENT_ID.fullmatch(name)]


def names(trash_bin: int) -> list[str]:
    """All directories there, sorted; those that begin with `LEAVING` are being deleted."""
    fd = paths.readable(trash_bin)
    try:
        with os.scandir(fd) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    finally:
        os.close(fd)


def give_up(trash_bin: int, agent_id: str) -> str:
    """Mark a container as being deleted, by a rename, so that a partial tree is never restored. Returns the new
    name.
    """
    name = LEAVING + agent_id
    try:
        os.rename(agent_id, name, src_dir_fd=trash_bin, dst_dir_fd=trash_bin)
    except OSError:
        if not _there(trash_bin, agent_id) or not _there(trash_bin, name):
            raise
        name = leaving(agent_id)  # another one of that agent is being deleted already
        os.rename(agent_id, name, src_dir_fd=trash_bin, dst_dir_fd=trash_bin)
    return name


def _there(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def leaving(agent_id: str) -> str:
    """An unused name for a container that is deleted right away, or later by the reaper."""
    return f"{LEAVING}{agent_id}+{secrets.token_hex(4)}"
