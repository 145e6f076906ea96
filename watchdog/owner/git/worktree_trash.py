"""The trash of a repository's worktrees: `<common>/agent-watchdog/trash/AGENT/`, one container an agent.

    tree            the worktree, as it lay on disk, by rename
    entry/          a copy of git's own record of it, `<common>/worktrees/NAME`: index, HEAD, reflog, a running rebase
    manifest.json   what a restore needs to know of both, and the rescue refs

It lies in the git common dir: beside the tree, `git clean -fdx` would delete it and `git add -A` commit it. Whoever
finds a container needs nothing else, no registry and no daemon, to bring the worktree back.

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
MOST_HOURS = 1e9  # what is more is not a number that we wrote; JSON has NaN, Infinity and integers of any length
LEAVING = ".leaving-"  # before an agent's id: it is being deleted, and nothing else any more
RESCUE = "refs/agent-watchdog/rescue/"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What lies in a container. `head`: the commit that HEAD was at; `branch` None: detached; times are ISO 8601."""

    agent_id: str
    path: str
    branch: str | None
    head: str | None
    entry: str
    common: str
    trashed_at: str
    name: str = ""
    refs: dict[str, str] = field(default_factory=dict)  # rescue ref -> commit
    keep_hours: float = 0.0  # how long it was to be kept when it was put there
    ignored: list[str] | None = (
        None  # work that git does not have (`rebuildable`): kept without limit; None: not looked
    )
    copies: list[str] = field(default_factory=list)  # ignored files that lie in the main checkout, too
    rebuildable: list[str] = field(default_factory=list)  # ignored directories that can be made again


def open_bin(stack: ExitStack, common: str, *, create: bool = True) -> int:
    """`<common>/agent-watchdog/trash`, each step this uid's own, 0700 and no link. Raises as `trash.open_trash`."""
    current = os.open(common, paths.STEP)
    stack.callback(os.close, current)
    for name in (AREA, "trash"):
        current = trash.open_trash(current, name, create=create)
        stack.callback(os.close, current)
    return current


def bin_of(common: str) -> str:
    """Where it lies, by name."""
    return os.path.join(common, AREA, "trash")


def open_container(stack: ExitStack, common: str, agent_id: str, *, create: bool = True) -> int:
    """The container of one agent."""
    container = trash.open_trash(open_bin(stack, common, create=create), agent_id, create=create)
    stack.callback(os.close, container)
    return container


def has_tree(container: int) -> bool:
    """Whether a worktree lies in it."""
    try:
        return stat.S_ISDIR(os.stat(trash.TREE, dir_fd=container, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def save(container: int, git_dir: str, manifest: Manifest) -> None:
    """Copy the entry and write the manifest; written again by every run that gets this far. Raises PathRefused."""
    if has_tree(container):
        raise PathRefused("trash_taken", "the trash already holds a tree of this agent")
    for stale in (ENTRY, ENTRY + ".new"):
        trash.remove_container(container, stale, trash.Freed())
    copy_tree.copy_tree(git_dir, container, ENTRY + ".new")
    os.rename(ENTRY + ".new", ENTRY, src_dir_fd=container, dst_dir_fd=container)
    trash.write_json(container, MANIFEST, asdict(manifest))


def manifest_in(container: int) -> Manifest | None:
    """What the container says of itself; None when it says nothing that is understood."""
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
    """What in the tree of the container `place` is work, by its record and by what lies in the main checkout now;
    `rebuildable` is still there.

    An older record says nothing of it: then all that its index does not have counts, but for what can be made again
    (`more`, as `ignored_files.look` has it). Raises OSError, OwnerCallFailed.
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
    """The agents whose containers lie there; what is being deleted, or is none, is left out."""
    return [name for name in names(trash_bin) if paths.AGENT_ID.fullmatch(name)]


def names(trash_bin: int) -> list[str]:
    """All directories that lie there, in order; those that begin with `LEAVING` are being deleted."""
    fd = paths.readable(trash_bin)
    try:
        with os.scandir(fd) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    finally:
        os.close(fd)


def give_up(trash_bin: int, agent_id: str) -> str:
    """Mark a container as being deleted, by one rename: half a tree is never restored. Returns its name from now on."""
    name = LEAVING + agent_id
    try:
        os.rename(agent_id, name, src_dir_fd=trash_bin, dst_dir_fd=trash_bin)
    except OSError:
        if not _there(trash_bin, agent_id) or not _there(trash_bin, name):
            raise
        name = leaving(agent_id)  # one of that agent is leaving already
        os.rename(agent_id, name, src_dir_fd=trash_bin, dst_dir_fd=trash_bin)
    return name


def _there(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def leaving(agent_id: str) -> str:
    """An unused name, for what is deleted as soon as it lies there, else by the reaper."""
    return f"{LEAVING}{agent_id}+{secrets.token_hex(4)}"
