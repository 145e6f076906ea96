"""Moves an agent's git worktree to the trash and removes its entry, if nothing is lost by that.

1. Only a linked worktree that git itself lists, reached without links, owned by this uid, without mounts inside.
2. It stays, with the reason, for any of `worktrees.reasons_to_keep`, any user of the tree, another living agent that
   has it or a directory in it, or any git that fails. With `dirty_worktree = "rescue"` the reasons about work
   (`Reasons.work`) do not keep it: the work is first saved and verified (`rescue`).
3. A copy of its entry `<common>/worktrees/NAME` and a manifest are written to its container (`worktree_trash`), then
   the intent next to the tree (so that a run after a crash finds the repository), then the tree is moved by one rename.
4. That one entry is moved to the container by one rename, unless it is locked (`git.entries`). Never `prune`, which
   removes other entries too; never --force. If the tree was deleted or emptied, the entry is removed if it alone holds
   nothing (`missing_worktrees`).
5. With `merged_branch = "delete"` its branch is deleted if another branch or a tag holds its tip (`merged_branch`).

If it is kept only because it is in use, the result has its seal (`change_seal`): the reaper retries it, with all the
checks above, and a tree that was changed since then stays.

Ignored files go to the trash with the tree, which is kept without limit if they are work (`ignored_files`). A run
killed at any point is finished by the next one; a tree that was moved but not yet compared is first moved back, since
it may contain files that were never checked.
"""

import contextlib
import errno
import os
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from watchdog import file_identity
from watchdog.core import hooks
from watchdog.core.hooks import HookContext, HookResult
from watchdog.core.sites import is_same
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import copy_tree, occupancy, paths, sites, trash
from watchdog.owner.git import (
    change_seal,
    entries,
    ignored_files,
    merged_branch,
    missing_worktrees,
    rescue,
    restore,
    worktree_trash,
    worktrees,
)
from watchdog.owner.git.git import Git
from watchdog.owner.git.worktree_trash import Manifest

GIT_SECONDS = 3600.0  # for all git runs together; the hook's own deadline comes long before


def worktree(context: HookContext, settings: hooks.CleanupSettings) -> HookResult:
    """See the module's docstring. Raises OSError for failures that a later try may overcome."""
    if context.worktree is None:
        return hooks.nothing("no worktree was registered")
    try:
        paths.checked_agent_id(context.agent_id)
        return _put_away(context, context.worktree, settings, context.in_use)
    except PathRefused as refused:
        return hooks.kept(f"kept {context.worktree}: {refused}", refused=refused.reason)
    except OwnerCallFailed as late:
        return hooks.failed(f"kept {context.worktree}: {late}", reason=late.reason)


def _put_away(
    context: HookContext, path: str, settings: hooks.CleanupSettings, in_use: Sequence[tuple[str, str]]
) -> HookResult:
    agent_id = context.agent_id
    with ExitStack() as stack:
        try:
            parent, name = paths.open_parent(path)
        except FileNotFoundError:
            return hooks.nothing(f"{path} is not there")
        stack.callback(os.close, parent)
        directory = _open(context, stack, parent, name, path, settings, in_use)
        if isinstance(directory, HookResult):
            return directory
        git = Git(path, GIT_SECONDS)
        tree = worktrees.find(git, path)
        inside = worktrees.nested(git, tree)
        if any(not reason.startswith(worktrees.IN_USE) for reason in inside):
            return hooks.kept(f"kept {path}: {'; '.join(inside)}", reasons=inside, branch=tree.branch)
        names = rescue.listed(git)
        before = rescue.look(directory, names)  # the state that the reasons refer to
        main = ignored_files.main_checkout(tree.common)
        ignored = ignored_files.look(paths.real_path(directory), set(names), main, settings.rebuildable)
        if context.seen is not None and context.seen != change_seal.seal(tree):
            return hooks.kept(
                f"kept {path}: it was in use, and was changed since; it may belong to the process that used it"
            )
        reasons = worktrees.reasons_to_keep(git, tree, inside)
        if user := context.used_by or occupancy.occupant(paths.real_path(directory)):
            reasons.never.append(worktrees.IN_USE + user)
        rescuing = settings.dirty_worktree == "rescue" and bool(reasons.work)
        told = reasons.never + ([] if rescuing and not reasons.never else reasons.work)
        if told:
            words = f"kept {path}: {'; '.join(told)}"
            used = all(reason.startswith(worktrees.IN_USE) for reason in (reasons.never if rescuing else told))
            return hooks.kept(words, reasons=told, branch=tree.branch, **(_again(context, tree) if used else {}))
        container = worktree_trash.open_container(stack, tree.common, agent_id)
        if worktree_trash.has_tree(container):
            raise PathRefused("trash_taken", "the trash already holds a tree of this agent")
        try:
            saved = rescue.save(git, tree, directory, container, agent_id) if rescuing else None
            worktree_trash.save(container, tree.git_dir, _manifest(context, tree, saved, settings, ignored))
            _write_intent(parent, agent_id, tree)
            user = _rename_away(parent, name, container, directory)
            changed = None if user else _changed(tree, directory, container, saved.look if saved else before)
            if not user and not changed:
                now = ignored_files.look(paths.real_path(directory), set(names), main, settings.rebuildable)
                changed = None if now == ignored else "an ignored file in it changed while it was moved"
            if changed:
                os.rename(trash.TREE, name, src_dir_fd=container, dst_dir_fd=parent)
        except (OSError, PathRefused, OwnerCallFailed):
            with contextlib.suppress(OSError, PathRefused, OwnerCallFailed):
                _undo(git, parent, container, tree.common, agent_id)
            raise
        if user or changed:
            _undo(git, parent, container, tree.common, agent_id)
            if user:
                return hooks.kept(f"kept {path}: {worktrees.IN_USE}{user}", branch=tree.branch, **_again(context, tree))
            return hooks.failed(f"kept {path}: {changed}", reason="changed")
        _write_intent(parent, agent_id, tree, compared=True)
        return _finish(parent, agent_id, path, settings)


def _open(
    context: HookContext,
    stack: ExitStack,
    parent: int,
    name: str,
    path: str,
    settings: hooks.CleanupSettings,
    in_use: Sequence[tuple[str, str]],
) -> int | HookResult:
    """The worktree's directory, if it is plain and contains no home; or the result for one that stays."""
    agent_id = context.agent_id
    try:
        directory = paths.step(parent, name)
    except FileNotFoundError:
        if not _put_back(parent, name, agent_id, path):
            if _read_intent(parent, agent_id) is None and (gone := _gone(context, parent, path)) is not None:
                return gone
            return _finish(parent, agent_id, path, settings)
        directory = paths.step(parent, name)
    stack.callback(os.close, directory)
    paths.refuse_unless_plain(directory, parent, path)
    if file_identity.file_id(directory) in paths.ancestors(["/", os.environ.get("HOME", "/"), *settings.protected]):
        raise PathRefused("protected", f"{path} is a home or holds one")
    if (gone := _emptied(context, parent, name, directory, path)) is not None:
        return gone
    sites.refuse_stranger(directory, hooks.known_site(context, "worktree"), path)
    if user := occupancy.neighbour(paths.real_path(directory), in_use):
        return hooks.kept(f"kept {path}: in use: {user}")
    return directory


def _gone(context: HookContext, parent: int, path: str) -> HookResult | None:
    """If the tree was deleted, remove git's entry of it if nothing is lost by that. None: there is no such entry."""
    if occupancy.neighbour(path, context.in_use):
        return None
    entry = missing_worktrees.proved(hooks.known_site(context, "worktree"), parent, path)
    return None if entry is None else hooks.done(entry.drop(context.agent_id), branch=entry.branch)


def _emptied(context: HookContext, parent: int, name: str, directory: int, path: str) -> HookResult | None:
    """The same if the agent's directory still exists but is empty. None: it is another directory, or not empty."""
    known = hooks.known_site(context, "worktree")
    if known.site is None or not is_same(known.site.directory, sites.made(directory)):
        return None
    if os.listdir(paths.real_path(directory)) or occupancy.neighbour(paths.real_path(directory), context.in_use):
        return None
    entry = missing_worktrees.proved(known, parent, path)
    if entry is None:
        return None
    if user := context.used_by or occupancy.occupant(paths.real_path(directory)):
        return hooks.kept(f"kept {path}: {worktrees.IN_USE}{user}", branch=entry.branch)
    os.rmdir(name, dir_fd=parent)  # fails if something was put there meanwhile
    return hooks.done(entry.drop(context.agent_id), branch=entry.branch)


def _again(context: HookContext, tree: worktrees.Linked) -> dict[str, object]:
    """Details that tell the reaper that only its use keeps it, and the next run its original state."""
    seen = context.seen or change_seal.seal(tree)
    return {} if seen is None else {"in_use": True, "seen": seen}


def _manifest(
    context: HookContext,
    tree: worktrees.Linked,
    saved: rescue.Rescued | None,
    settings: hooks.CleanupSettings,
    ignored: ignored_files.Ignored,
) -> worktree_trash.Manifest:
    recorded = ignored.bounded()
    return Manifest(
        agent_id=context.agent_id,
        path=tree.path,
        branch=tree.branch,
        head=tree.head,
        entry=os.path.basename(tree.git_dir),
        common=tree.common,
        trashed_at=datetime.now(UTC).isoformat(),
        name=context.name,
        refs=saved.refs if saved else {},
        keep_hours=settings.trash_retention_hours,
        ignored=recorded.work,
        copies=recorded.copies,
        rebuildable=recorded.rebuildable,
    )


def _changed(tree: worktrees.Linked, directory: int, container: int, before: rescue.TreeSnapshot) -> str | None:
    """Describe what changed since the check. The tree has been moved, so it is no longer found by its name."""
    if rescue.look(directory, before.files) != before:
        return "its files changed while it was moved"
    if not copy_tree.same(tree.git_dir, os.path.join(paths.real_path(container), worktree_trash.ENTRY)):
        return "git's entry of it changed while it was moved"
    return None


def _intent_name(agent_id: str) -> str:
    return f"{agent_id}.worktree.json"


def _write_intent(parent: int, agent_id: str, tree: worktrees.Linked, *, compared: bool = False) -> None:
    """`compared`: the tree in the trash is the one that was checked, so its entry may be removed."""
    intent = {"path": tree.path, "common": tree.common, "entry": os.path.basename(tree.git_dir), "compared": compared}
    trash.use_trash(parent, lambda beside: trash.write_json(beside, _intent_name(agent_id), intent))


def _read_intent(parent: int, agent_id: str) -> dict[str, object] | None:
    try:
        beside = trash.open_trash(parent, trash.beside_name(parent), create=False)
    except FileNotFoundError:
        return None
    try:
        return trash.read_json(beside, _intent_name(agent_id))
    finally:
        os.close(beside)


def _drop_intent(parent: int, agent_id: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        beside = trash.open_trash(parent, trash.beside_name(parent), create=False)
        try:
            os.unlink(_intent_name(agent_id), dir_fd=beside)
        finally:
            os.close(beside)
    trash.drop_if_empty(parent, trash.beside_name(parent))


def _rename_away(parent: int, name: str, container: int, directory: int) -> str | None:
    """`trash.take` to a trash in the repository, which may be on another file system."""
    try:
        return trash.take(parent, name, container, directory)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise PathRefused("other_file_system", "its repository lies on another file system") from error
        raise


def _drop_entry(common: str, entry: str, path: str, container: int) -> str:
    """Remove the entry from git's list; returns why its lock was stale. Raises as `entries.take_out`."""
    rest = f"{worktree_trash.ENTRY}.rest"
    trash.remove_container(container, rest, trash.Freed())
    return entries.take_out(os.path.join(common, "worktrees", entry), path, container, rest)


def _entry_there(common: str, entry: str, container: int) -> bool:
    """Whether git still has its entry; after a prune an entry of that name belongs to another worktree."""
    place = os.path.join(common, "worktrees", entry)
    pointers = [
        os.path.join(top, "gitdir") for top in (place, os.path.join(paths.real_path(container), worktree_trash.ENTRY))
    ]
    try:
        mine, copied = (Path(pointer).read_bytes() for pointer in pointers)
    except FileNotFoundError:  # partly deleted
        return os.path.lexists(place)
    return mine == copied


def _undo(git: Git, parent: int, container: int, common: str, agent_id: str) -> None:
    """Delete what was recorded and saved, as the tree is at its place. Does nothing if it is in the trash."""
    if worktree_trash.has_tree(container):
        return
    _drop_intent(parent, agent_id)
    with ExitStack() as stack:
        trash.remove_container(worktree_trash.open_bin(stack, common), agent_id, trash.Freed())
    rescue.drop(git, agent_id)


def _put_back(parent: int, name: str, agent_id: str, path: str) -> bool:
    """Move back a tree that a killed run has moved but not compared. Whether there was one."""
    intent = _read_intent(parent, agent_id)
    if intent is None or intent.get("path") != path or intent.get("compared"):
        return False
    common, entry = str(intent["common"]), os.path.basename(str(intent["entry"]))
    with ExitStack() as stack:
        container = worktree_trash.open_container(stack, common, agent_id)
        if worktree_trash.manifest_in(container) is None or not worktree_trash.has_tree(container):
            return False
        if _entry_there(common, entry, container):
            os.rename(trash.TREE, name, src_dir_fd=container, dst_dir_fd=parent)
            trash.sync(parent)
            told = ""
        else:  # a `git worktree prune` took it meanwhile
            told = str(restore.restore(agent_id, [common])["message"])
        _undo(Git(common, GIT_SECONDS, git_dir=common), parent, container, common, agent_id)
    if not os.path.lexists(path):  # its branch is checked out elsewhere: it was restored next to its place, and stays
        raise PathRefused("beside", told)
    return True


def _finish(parent: int, agent_id: str, path: str, settings: hooks.CleanupSettings) -> HookResult:
    """After the tree was moved: remove its entry and no other, then the intent. Also continues a killed run."""
    intent = _read_intent(parent, agent_id)
    if intent is None or intent.get("path") != path:
        trash.drop_if_empty(parent, trash.beside_name(parent))  # a run was killed right before this
        return hooks.nothing(f"{path} is not there")
    common, entry = str(intent["common"]), os.path.basename(str(intent["entry"]))
    with ExitStack() as stack:
        container = worktree_trash.open_container(stack, common, agent_id)
        manifest = worktree_trash.manifest_in(container)
        if manifest is None or not worktree_trash.has_tree(container):
            _drop_intent(parent, agent_id)
            return hooks.nothing(f"{path} is not there; it was gone before it could be moved")
        trashed_to = os.path.join(paths.real_path(container), trash.TREE)
        git = Git(common, GIT_SECONDS, git_dir=common)
        unlocked = ""
        if _entry_there(common, entry, container):
            try:
                unlocked = _drop_entry(common, entry, path, container)
            except OwnerCallFailed as refused:
                os.rename(trash.TREE, os.path.basename(path), src_dir_fd=container, dst_dir_fd=parent)
                _undo(git, parent, container, common, agent_id)
                return hooks.failed(f"kept {path}: {refused}", reason=refused.reason)
        else:  # a run was killed right after it removed the entry
            entries.drop_list_if_empty(os.path.join(common, "worktrees"))
        branch = merged_branch.after(git, manifest, container, settings.merged_branch)
    _drop_intent(parent, agent_id)
    stays = manifest.ignored or []
    kept = (
        f"; it is kept without limit, as git ignores and nothing rebuilds {ignored_files.told(stays)}" if stays else ""
    )
    told = f"; {unlocked}" if unlocked else ""
    saved = f"; its work is saved below {worktree_trash.RESCUE}{agent_id}/" if manifest.refs else ""
    return hooks.done(
        f"moved {path} to {trashed_to}{saved}{kept}{told}; {branch};"
        f" `agent-watchdog restore {agent_id}` brings it back",
        trash=trashed_to,
        branch=manifest.branch,
        head=manifest.head,
        refs=manifest.refs,
        **({"ignored": stays[:20]} if stays else {}),
    )
