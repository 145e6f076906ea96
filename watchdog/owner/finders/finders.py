"""What dead agents have left in an owner's places: found by one finder a kind, looked at first, acted on one by one.

The daemon's reaper asks in two calls, each in a helper of its own: `reap_look` finds and changes nothing (it is all
that `reap --dry-run` and observe mode do), `reap_act` deals with one finding. Between the two anything may have
happened: an act trusts no look, not its own either, and decides again. It may be killed at any step and is repeatable.

A finder
1. looks only below `cleanup.roots`, in the repositories that the daemon names, and at what was registered;
2. yields what it would remove (`remove`, with why), and what a person would ask about (`keep`, with the rule);
3. takes a thing for a dead agent's only by our mark, by a recorded path, or by a vendor's known layout, never by a name
   alone. An id that is in neither `living` nor `ended` is unknown to us: what carries it is left;
4. does a bounded amount of work a call; an act that has more to do answers `done` with `details["more"] = True`, and
   is asked again in the next round;
5. may raise or be late, which counts against its own kind alone; what it had yielded by then counts.

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
    """What one finder finds, as it finds it. Raises what the finder raises."""
    yield from islice(FINDERS[kind].look(settings, known), LOOK_LIMIT)


def act(finding: Finding, settings: hooks.CleanupSettings, known: KnownAgents) -> HookResult:
    """Deal with one finding, after deciding again. Raises what the finder raises."""
    if finding.action != "remove":
        return hooks.kept(finding.why)
    if finding.kind not in FINDERS:
        return hooks.failed(f"there is no finder {finding.kind!r}; there are {', '.join(sorted(FINDERS))}")
    return FINDERS[finding.kind].act(finding, settings, known)
