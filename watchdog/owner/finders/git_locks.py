"""Finds git's lock files that dead agents left, in their registered worktrees and in repositories with our trash.

The hook checks once, right after an agent's end. Locks that were too young then, or near a running git, are found here
later.

Tests: tests/owner/finders/test_temp_dirs.py.
"""

import os
import time
from collections.abc import Iterator

from watchdog.core import hooks
from watchdog.core.findings import Finding, KnownAgents
from watchdog.core.hooks import HookResult
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import whereabouts
from watchdog.owner.git import lock_files
from watchdog.owner.hooks.git_locks import told

KIND = "lock"
COMMON = "shared"  # name of the directory for locks that belong to no single agent


def look(settings: hooks.CleanupSettings, known: KnownAgents) -> Iterator[Finding]:
    """One finding per checkout or repository that has locks. Raises OSError when /proc cannot be read."""
    for path, agent_id, repository, ended in _places(known):
        # Locks written later belong to those that work there now.
        locks = [lock for lock in lock_files.find(repository) if lock.made <= ended]
        reasons = lock_files.reasons_to_keep(repository, locks, ended) if locks else {}
        dead = [lock.path for lock in locks if lock not in reasons]
        if dead:
            yield Finding(KIND, path, agent_id, f"locks of a git that is dead: {', '.join(dead[:5])}", "remove")
        elif locks:
            kept = [f"{lock.path}: {reason}" for lock, reason in reasons.items()]
            yield Finding(KIND, path, agent_id, f"locks of git stay: {'; '.join(kept[:5])}", "keep")


def act(finding: Finding, settings: hooks.CleanupSettings, known: KnownAgents) -> HookResult:
    """Check twice, and move dead locks aside. Raises OSError for failures that a later try may overcome."""
    for path, agent_id, repository, ended in _places(known):
        if path == finding.path:
            return told(path, lock_files.put_aside(repository, agent_id or COMMON, ended))
    return hooks.kept(f"{finding.path} is not, or no longer, a checkout of a dead agent")


def _places(known: KnownAgents) -> Iterator[tuple[str, str | None, lock_files.Repository, float]]:
    """Where to search: path, agent, repository, and the last end of the dead agents that used it (epoch seconds)."""
    last: dict[str, tuple[float, str]] = {}
    for agent_id, path in known.worktrees.items():
        if agent_id in known.ended and agent_id not in known.living:
            last[path] = min(last.get(path, (float("inf"), "")), (known.ended[agent_id], agent_id))
    seen: set[str] = set()
    for path, (age, agent_id) in sorted(last.items()):
        whereabouts.at(path)
        try:
            found = lock_files.checkouts(path)
        except (OSError, PathRefused, OwnerCallFailed):
            continue  # moved away, or not a checkout of ours: the hook has reported that
        for place, repository in found:
            seen.add(repository.common)
            yield place, agent_id, repository, time.time() - age
    for common in known.commons if known.ended else ():
        whereabouts.at(common)
        if os.path.isdir(common) and os.path.realpath(common) not in seen:
            try:
                repository = lock_files.of_common(common)
            except (OSError, PathRefused, OwnerCallFailed):
                continue
            yield common, None, repository, time.time() - min(known.ended.values())
