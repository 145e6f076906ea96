"""Leftovers of dead agents in an owner's directories: one finder per kind, listed first, then handled one by one.

The daemon's reaper uses two calls, each in a helper of its own: `reap_look` lists and changes nothing (`reap --dry-run`
and observe mode only do that), `reap_act` handles one finding. Anything may happen between the two: an action does not
rely on the listing and decides again. It may be killed at any step and is repeatable.

A finder
1. searches only below `cleanup.roots`, in the repositories that the daemon names, and at registered paths;
2. yields what it would remove (`remove`, with the reason), and what a person would ask about (`keep`, with the rule);
3. attributes a file to a dead agent only by our mark, by a recorded path, or by a vendor's known layout, never only by
   a name. An id that is in neither `living` nor `ended` is unknown: its files are left;
4. does a bounded amount of work per call; an action that has more to do returns `done` with `details["more"] = True`,
   and is called again in the next round;
5. may raise or be late, which affects only its own kind; findings that it has yielded by then count.

A new one is one line in `FINDERS`.
"""

from collections.abc import Iterator
from itertools import islice

from watchdog.core import hooks
from watchdog.core.findings import Finder, Finding, KnownAgents
from watchdog.core.hooks import HookResult
from watchdog.owner.finders import expired_trash, fleet_tasks, git_locks, sockets, temp_dirs

LOOK_LIMIT = 200  # findings of one kind in one look; the next round finds the rest

FINDERS: dict[str, Finder] = {  # by Finding.kind
    expired_trash.KIND: Finder(expired_trash.look, expired_trash.act),
    temp_dirs.KIND: Finder(temp_dirs.look, temp_dirs.act),
    git_locks.KIND: Finder(git_locks.look, git_locks.act),
    sockets.KIND: Finder(sockets.look, sockets.act),
    fleet_tasks.KIND: Finder(fleet_tasks.look, fleet_tasks.act),
}


def look(kind: str, settings: hooks.CleanupSettings, known: KnownAgents) -> Iterator[Finding]:
    """Yield one finder's findings as they are found. Raises what the finder raises."""
    yield from islice(FINDERS[kind].look(settings, known), LOOK_LIMIT)


def act(finding: Finding, settings: hooks.CleanupSettings, known: KnownAgents) -> HookResult:
    """Handle one finding, after deciding again. Raises what the finder raises."""
    if finding.action != "remove":
        return hooks.kept(finding.why)
    if finding.kind not in FINDERS:
        return hooks.failed(f"there is no finder {finding.kind!r}; there are {', '.join(sorted(FINDERS))}")
    return FINDERS[finding.kind].act(finding, settings, known)
