"""Deletes from the trash of worktrees what has been there for `cleanup.trash_retention_hours`.

Ignored files that nothing can rebuild (`rebuildable`) are in no ref: a tree with such work is kept without limit, until
a person restores it or deletes it by hand; after the same time only its rebuildable files are deleted.

Any other container is deleted when it is old enough by its own record and only holds copies: the rescue refs that its
manifest names still exist, each at its commit (`git fetch --prune` of a mirror deletes refs that its remote lacks). It
is renamed first, so that a partial tree is never restored, and deleted in bounded rounds. Anything unknown stays and is
reported.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

from watchdog.core import hooks
from watchdog.core.findings import Finding, KnownAgents
from watchdog.core.hooks import HookResult
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import occupancy, paths, trash
from watchdog.owner.git import worktree_trash
from watchdog.owner.git.git import Git
from watchdog.owner.git.worktree_trash import LEAVING, Manifest

KIND = "trash"
GIT_SECONDS = 20.0
REBUILDABLE = "rebuildable"  # in a container: the part of its tree that is being deleted
SLIMMED = "only what can be made again goes"
ROUND = 20_000  # entries deleted per action; about a second


def look(settings: hooks.CleanupSettings, known: KnownAgents) -> Iterator[Finding]:
    """Containers that are due in the repositories that the daemon knows, and those that are due but kept."""
    for common in known.commons:
        try:
            with ExitStack() as stack:
                trash_bin = worktree_trash.open_bin(stack, common, create=False)
                place = paths.real_path(trash_bin)
                for name in worktree_trash.names(trash_bin):
                    finding = _judge(trash_bin, common, os.path.join(place, name), name, settings, known)
                    if finding is not None:
                        yield finding
        except FileNotFoundError:
            continue  # no trash there, or the repository is gone
        except (OSError, PathRefused, OwnerCallFailed) as error:
            yield Finding(KIND, common, None, f"kept: its trash cannot be looked at: {error}", "keep")


def act(finding: Finding, settings: hooks.CleanupSettings, known: KnownAgents) -> HookResult:
    """Delete one container, a round of it; `details["more"]` asks for the next."""
    common, name = _taken_apart(finding.path)
    if common not in map(os.path.realpath, known.commons):
        return hooks.kept(f"{finding.path} lies in no repository that is known to hold trash of ours")
    with ExitStack() as stack:
        try:
            trash_bin = worktree_trash.open_bin(stack, common, create=False)
        except FileNotFoundError:
            return hooks.nothing(f"{finding.path} is not there")
        if not _there(trash_bin, name):
            name = LEAVING + name  # its first round was in an earlier action
            if not _there(trash_bin, name):
                return hooks.nothing(f"{finding.path} is not there")
        now = _judge(trash_bin, common, finding.path, name, settings, known)
        if now is None or now.action != "remove":
            return hooks.kept(f"kept {finding.path}: {now.why if now else 'it is not due yet'}")
        if user := occupancy.occupant(os.path.join(paths.real_path(trash_bin), name)):
            return hooks.kept(f"kept {finding.path}: in use: {user}")
        freed = trash.Freed()
        if now.why.endswith(SLIMMED):
            _slim(trash_bin, name, freed, settings)
        else:
            if not name.startswith(LEAVING):
                name = worktree_trash.give_up(trash_bin, name)
            trash.remove_container(trash_bin, name, freed, ROUND)
    numbers: dict[str, object] = {"bytes": freed.bytes, "entries": freed.entries, "more": freed.more}
    if freed.problems:
        words = "; ".join(freed.problems)
        return hooks.failed(f"{finding.path} could not be deleted: {words}", reason=freed.reason, **numbers)
    return hooks.done(f"deleted from {finding.path}: {freed.entries} entries, {freed.bytes} bytes", **numbers)


def _taken_apart(path: str) -> tuple[str, str]:
    rest, name = os.path.split(path)
    area = f"/{worktree_trash.AREA}/trash"
    if not rest.endswith(area) or not name:
        raise PathRefused("no_trash", f"{path} is not this daemon's trash")
    return os.path.realpath(rest.removesuffix(area)), name


def _there(directory: int, name: str) -> bool:
    try:
        os.close(paths.step(directory, name))
    except FileNotFoundError:
        return False
    return True


def _judge(
    trash_bin: int, common: str, place: str, name: str, settings: hooks.CleanupSettings, known: KnownAgents
) -> Finding | None:
    """The finding for one container; None: it is not due."""
    agent_id = name.removeprefix(LEAVING).partition("+")[0] if name.startswith(LEAVING) else name
    if name.startswith(LEAVING):
        return Finding(KIND, place, agent_id, "its deletion was begun", "remove")
    if not paths.AGENT_ID.fullmatch(name) or name in known.living:
        return None
    container = trash.open_trash(trash_bin, name, create=False)
    try:
        manifest, holds = worktree_trash.manifest_in(container), worktree_trash.has_tree(container)
        changed = os.fstat(container).st_mtime
        now_at = paths.real_path(container)
    finally:
        os.close(container)
    hours = settings.trash_retention_hours
    if manifest is not None and name not in known.ended:  # another daemon's, or ours before a reinstallation
        hours = max(hours, manifest.keep_hours)
    age = (time.time() - settings.stepped_seconds - max(changed, _stamp(manifest))) / 3600
    if age < hours:
        return None
    if manifest is None:
        if holds:
            return Finding(KIND, place, name, "kept: a tree without a record of where it came from", "keep")
        return Finding(KIND, place, name, "what a hook that was killed had begun to write", "remove")
    if holds and (missing := _missing(common, manifest)):
        why = (
            f"kept: {missing} is not what it was set to, so this may be the only copy; restore it, or delete it by hand"
        )
        return Finding(KIND, place, name, why, "keep")
    if holds and (found := worktree_trash.work_in(common, now_at, manifest, settings.rebuildable)).work:
        words = f"it holds {found.told()}, which git ignores and nothing rebuilds"
        if found.rebuildable or os.path.lexists(os.path.join(now_at, REBUILDABLE)):
            why = f"the worktree {manifest.path} has lain in the trash for {age:.0f} of {hours:g} h; {words}: {SLIMMED}"
            return Finding(KIND, place, name, why, "remove")
        return Finding(KIND, place, name, f"kept without limit: {words}; restore it, or delete it by hand", "keep")
    why = f"the worktree {manifest.path} has lain in the trash for {age:.0f} of {hours:g} h"
    return Finding(KIND, place, name, why, "remove")


def _slim(trash_bin: int, name: str, freed: trash.Freed, settings: hooks.CleanupSettings) -> None:
    """Delete a round of rebuildable directories. Each is renamed out of the tree first."""
    container = trash.open_trash(trash_bin, name, create=False)
    try:
        status, manifest = os.fstat(container), worktree_trash.manifest_in(container)
        assert manifest is not None
        place = paths.real_path(container)
        held = worktree_trash.work_in(manifest.common, place, manifest, settings.rebuildable)
        for number, path in enumerate(held.rebuildable):
            parent, last = paths.open_parent(f"{place}/{trash.TREE}/{path}")
            try:
                leaving = trash.open_trash(container, REBUILDABLE)
                try:
                    os.rename(last, f"{time.time_ns()}-{number}", src_dir_fd=parent, dst_dir_fd=leaving)
                finally:
                    os.close(leaving)
            finally:
                os.close(parent)
        trash.remove_container(container, REBUILDABLE, freed, ROUND)
        # Its age counts from when it was put there. An O_PATH descriptor takes no futimens; its /proc name does.
        os.utime(f"/proc/self/fd/{container}", ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(container)


def _stamp(manifest: Manifest | None) -> float:
    """When it was put there, by its record (seconds since the epoch); 0 without a record."""
    try:
        at = datetime.fromisoformat(manifest.trashed_at) if manifest else None
    except ValueError:
        return time.time()  # invalid: it is never due
    return 0.0 if at is None else (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _missing(common: str, manifest: Manifest) -> str | None:
    """The first rescue ref that is missing or was changed; None: all are there. Raises OwnerCallFailed if git fails."""
    if not manifest.refs:
        return None
    git = Git(common, GIT_SECONDS, git_dir=common)
    lines = git.run("for-each-ref", "--format=%(objectname) %(refname)", worktree_trash.RESCUE).splitlines()
    there = {ref: name for name, _, ref in (line.partition(" ") for line in lines)}
    return next((ref for ref, commit in manifest.refs.items() if there.get(ref) != commit), None)
