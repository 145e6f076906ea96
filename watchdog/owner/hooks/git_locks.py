"""Moves aside lock files that the agent's git left in its registered checkout, by the rules of `owner.git.lock_files`.

Also in the submodules of that checkout: each is a repository of its own.

Tests: tests/owner/git/test_lock_files.py.
"""

import os
import time

from watchdog.core import hooks
from watchdog.core.hooks import HookContext, HookResult
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import paths, sites
from watchdog.owner.git import lock_files as locks


def git_locks(context: HookContext, settings: hooks.CleanupSettings) -> HookResult:
    """The agent is dead, so later files are another's. Raises OSError for failures that a later try may overcome."""
    if context.worktree is None:
        return hooks.nothing("no worktree was registered")
    ended = time.time()
    try:
        holder = paths.checked_agent_id(context.agent_id)
        outcome = locks.Outcome()
        _refuse_stranger(context, context.worktree)
        for _, repository in locks.checkouts(context.worktree):
            outcome.add(locks.put_aside(repository, holder, ended))
    except FileNotFoundError as missing:
        if os.path.lexists(context.worktree):
            return hooks.failed(f"left {context.worktree} alone: {missing.filename or 'a part of it'} is not there")
        return hooks.nothing(f"{context.worktree} is not there")
    except PathRefused as refused:
        return hooks.kept(f"left {context.worktree} alone: {refused}", refused=refused.reason)
    except OwnerCallFailed as late:
        return hooks.failed(f"left {context.worktree} alone: {late}", reason=late.reason)
    return told(context.worktree, outcome)


def _refuse_stranger(context: HookContext, path: str) -> None:
    """Raise PathRefused if the directory is not the agent's; FileNotFoundError."""
    directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # registered by the owner: links are followed
    try:
        sites.refuse_stranger(directory, hooks.known_site(context, "worktree"), path)
    finally:
        os.close(directory)


def told(place: str, outcome: locks.Outcome) -> HookResult:
    """The result for the locks."""
    if not outcome.moved and not outcome.kept:
        return hooks.nothing(f"no lock of git's is left in {place}")
    stays = f"{len(outcome.kept)} stay: {'; '.join(outcome.kept[:5])}"
    if not outcome.moved:
        return hooks.kept(f"locks in {place}: {stays}", kept=outcome.kept[:20])
    names = ", ".join(path for path, _ in outcome.moved[:5])
    words = f"moved {len(outcome.moved)} locks of a dead git to {outcome.area}: {names}"
    moved = dict(outcome.moved[:20])
    return hooks.done(words + (f"; {stays}" if outcome.kept else ""), moved=moved, area=outcome.area)
