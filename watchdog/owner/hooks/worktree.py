"""Moves an agent's git worktree to the trash and drops its entry, when that loses nothing.

1. Only a linked worktree that git itself lists, reached through no link, this uid's own, with no mount inside.
2. Any reason of `worktrees.reasons_to_keep`, any user of the tree, another living agent that has it or a place in it,
   any git that fails: it stays, with the reason told.
3. A copy of its entry `<common>/worktrees/NAME` and a manifest go to `<common>/agent-watchdog/trash/AGENT/`, then the
   intent beside the tree (so that a run after a crash finds the repository again), then the tree by one rename.
4. `git worktree remove PATH` drops that one entry: with the tree away git deletes nothing else, and it refuses a locked
   one (builtin/worktree.c, 2.39). Never `prune`, which takes bystanders' entries; never --force.

Ignored files go to the trash with the tree. The branch is left. A run killed at any point is finished by the next.
"""

import contextlib
import errno
import os
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime

from watchdog.core.model import HookContext, HookResult
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import occupancy, paths, trash, worktrees
from watchdog.owner.git import Git
from watchdog.owner.hooks import base

GIT_SECONDS = 100.0  # for all of git's answers together; the run's own deadline ends it in any case
AREA = "agent-watchdog"  # in the git common dir: beside the tree, `git clean -fdx` would delete it
MANIFEST = "manifest.json"
ENTRY = "entry"


def worktree(context: HookContext, settings: base.CleanupSettings) -> HookResult:
    """See the module's docstring. Raises OSError for what a later try may mend."""
    if context.worktree is None:
        return base.nothing("no worktree was registered")
    try:
        return _put_away(paths.checked_agent_id(context.agent_id), context.worktree, settings, context.in_use)
    except PathRefused as refused:
        return base.kept(f"kept {context.worktree}: {refused}", refused=refused.reason)
    except OwnerCallFailed as late:
        return base.failed(f"kept {context.worktree}: {late}", reason=late.reason)


def _put_away(
    agent_id: str, path: str, settings: base.CleanupSettings, in_use: Sequence[tuple[str, str]]
) -> HookResult:
    with ExitStack() as stack:
        try:
            parent, name = paths.open_parent(path)
        except FileNotFoundError:
            return base.nothing(f"{path} is not there")
        stack.callback(os.close, parent)
        try:
            directory = paths.step(parent, name)
        except FileNotFoundError:
            return _finish(parent, agent_id, path)
        stack.callback(os.close, directory)
        paths.refuse_unless_plain(directory, parent, path)
        if paths.file_id(directory) in paths.ancestors(["/", os.environ.get("HOME", "/"), *settings.protected]):
            raise PathRefused("protected", f"{path} is a home or holds one")
        if user := occupancy.neighbour(paths.real_path(directory), in_use):
            return base.kept(f"kept {path}: in use: {user}")
        git = Git(path, GIT_SECONDS)
        tree = worktrees.find(git, path)
        reasons = worktrees.reasons_to_keep(git, tree)
        if user := occupancy.occupant(paths.real_path(directory)):
            reasons.append(f"in use: {user}")
        if reasons:
            return base.kept(f"kept {path}: {'; '.join(reasons)}", reasons=reasons, branch=tree.branch)
        container = _open_container(stack, tree.common, agent_id)
        _save_entry(container, tree, agent_id)
        _write_intent(parent, agent_id, tree)
        if user := _rename_away(parent, name, container, directory):
            _drop_intent(parent, agent_id)
            _discard(tree.common, agent_id)
            return base.kept(f"kept {path}: in use: {user}", branch=tree.branch)
        return _finish(parent, agent_id, path)


def _open_container(stack: ExitStack, common: str, *names: str) -> int:
    """`<common>/agent-watchdog/trash/…`, each step this uid's own, 0700 and no link."""
    current = os.open(common, paths.STEP)
    stack.callback(os.close, current)
    for name in (AREA, "trash", *names):
        current = trash.open_trash(current, name)
        stack.callback(os.close, current)
    return current


def _save_entry(container: int, tree: worktrees.Linked, agent_id: str) -> None:
    """A copy of the entry and the manifest: what `restore` needs. Written anew by every run that gets this far."""
    try:
        os.stat(trash.TREE, dir_fd=container, follow_symlinks=False)
    except FileNotFoundError:
        pass
    else:
        raise PathRefused("trash_taken", "the trash already holds a tree of this agent")
    for stale in (ENTRY, ENTRY + ".new"):
        trash.remove_container(container, stale, trash.Freed())
    trash.copy_tree(tree.git_dir, container, ENTRY + ".new")
    os.rename(ENTRY + ".new", ENTRY, src_dir_fd=container, dst_dir_fd=container)
    manifest = {
        "agent_id": agent_id,
        "path": tree.path,
        "branch": tree.branch,
        "head": tree.head,
        "entry": os.path.basename(tree.git_dir),
        "common": tree.common,
        "trashed_at": datetime.now(UTC).isoformat(),
    }
    trash.write_json(container, MANIFEST, manifest)


def _intent_name(agent_id: str) -> str:
    return f"{agent_id}.worktree.json"


def _write_intent(parent: int, agent_id: str, tree: worktrees.Linked) -> None:
    intent = {"path": tree.path, "common": tree.common, "entry": os.path.basename(tree.git_dir)}
    trash.use_trash(parent, lambda beside: trash.write_json(beside, _intent_name(agent_id), intent))


def _read_intent(parent: int, agent_id: str) -> dict[str, object] | None:
    try:
        beside = trash.open_trash(parent, trash.beside_name(), create=False)
    except FileNotFoundError:
        return None
    try:
        return trash.read_json(beside, _intent_name(agent_id))
    finally:
        os.close(beside)


def _drop_intent(parent: int, agent_id: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        beside = trash.open_trash(parent, trash.beside_name(), create=False)
        try:
            os.unlink(_intent_name(agent_id), dir_fd=beside)
        finally:
            os.close(beside)
    trash.drop_if_empty(parent, trash.beside_name())


def _rename_away(parent: int, name: str, container: int, directory: int) -> str | None:
    """`trash.take`, where the trash lies with the repository and so may lie on another file system."""
    try:
        return trash.take(parent, name, container, directory)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise PathRefused("other_file_system", "its repository lies on another file system") from error
        raise


def _drop_entry(common: str, entry: str, path: str, container: int) -> None:
    """Let git drop the entry. Raises OwnerCallFailed when it refuses (locked meanwhile)."""
    place = os.path.join(common, "worktrees", entry)
    try:
        Git(common, GIT_SECONDS, git_dir=common).run("worktree", "remove", path)
    except OwnerCallFailed:
        # A git that was killed while it deleted the entry leaves one that it does not list any more.
        if not os.path.lexists(place) or os.path.lexists(os.path.join(place, "gitdir")):
            raise
        os.rename(place, f"{ENTRY}.rest", dst_dir_fd=container)


def _discard(common: str, agent_id: str) -> None:
    """The tree went back: what was written down for it goes."""
    with ExitStack() as stack:
        trash.remove_container(_open_container(stack, common), agent_id, trash.Freed())


def _finish(parent: int, agent_id: str, path: str) -> HookResult:
    """The tree is away: drop its entry and no other, then the intent. Also where a killed run is gone on with."""
    intent = _read_intent(parent, agent_id)
    if intent is None or intent.get("path") != path:
        return base.nothing(f"{path} is not there")
    common, entry = str(intent["common"]), os.path.basename(str(intent["entry"]))
    with ExitStack() as stack:
        container = _open_container(stack, common, agent_id)
        manifest = trash.read_json(container, MANIFEST) or {}
        try:
            os.stat(trash.TREE, dir_fd=container, follow_symlinks=False)
        except FileNotFoundError:
            _drop_intent(parent, agent_id)
            return base.nothing(f"{path} is not there; it was gone before it could be moved")
        trashed_to = os.path.join(paths.real_path(container), trash.TREE)
        if os.path.lexists(os.path.join(common, "worktrees", entry)):
            try:
                _drop_entry(common, entry, path, container)
            except OwnerCallFailed as refused:
                os.rename(trash.TREE, os.path.basename(path), src_dir_fd=container, dst_dir_fd=parent)
                _drop_intent(parent, agent_id)
                _discard(common, agent_id)
                return base.failed(f"kept {path}: {refused}", reason=refused.reason)
    _drop_intent(parent, agent_id)
    return base.done(
        f"moved {path} to {trashed_to}; its branch {str(manifest.get('branch', '')).removeprefix('refs/heads/')} stays",
        trash=trashed_to,
        branch=manifest.get("branch"),
        head=manifest.get("head"),
    )
