"""The finder of git's lock files that dead agents left, in what was registered for them and in repositories of ours.

The hook looks right after an agent's end, once. What was young then, or had a git beside it, is found here later.

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
COMMON = "shared"  # names the place of locks that are no single agent's


def look(settings: hooks.CleanupSettings, known: KnownAgents) -> Iterator[Finding]:
    """One finding a checkout or repository with locks in it. Raises OSError when /proc cannot be read."""
    for path, agent_id, repository, ended in _places(known):
        # What was written since is the business of whoever works there now.
        locks = [lock for lock in lock_files.find(repository) if lock.made <= ended]
        reasons = lock_files.reasons_to_keep(repository, locks, ended) if locks else {}
        dead = [lock.path for lock in locks if lock not in reasons]
        if dead:
            yield Finding(KIND, path, agent_id, f"locks of a git that is dead: {', '.join(dead[:5])}", "remove")
        elif locks:
            kept = [f"{lock.path}: {reason}" for lock, reason in reasons.items()]
            yield Finding(KIND, path, agent_id, f"locks of git stay: {'; '.join(kept[:5])}", "keep")


def act(finding: Finding, settings: hooks.CleanupSettings, known: KnownAgents) -> HookResult:
    """Look twice, and move aside what is dead. Raises OSError for what a later try may fix."""
    for path, agent_id, repository, ended in _places(known):
        if path == finding.path:
            return told(path, lock_files.put_aside(repository, agent_id or COMMON, ended))
    return hooks.kept(f"{finding.path} is not, or no longer, a checkout of a dead agent")


def _places(known: KnownAgents) -> Iterator[tuple[str, str | None, lock_files.Repository, float]]:
    """Where to look: path, whose, repository, and until when its dead wrote: the last end of the agents that had it."""
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
            continue  # moved away, or no checkout of ours: the hook has said so
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
