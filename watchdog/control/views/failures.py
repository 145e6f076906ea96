"""Why an agent's cleanup is not complete: the hooks that failed, each with its own words, for lists and for `why`.

An agent that ended well is no success while its worktree lies around: whoever lists it reads the reason beside it.
"""

from collections.abc import Iterable

from watchdog.control.context import ControlContext, Json
from watchdog.core.agent import ENDED, Status
from watchdog.core.hooks import HookOutcome
from watchdog.errors import RegistryUnavailable
from watchdog.registry.rows import RunRow

_FAILED = {HookOutcome.FAILED.value: "failed", HookOutcome.TIMEOUT.value: "ran out of time"}
_CLEANED = frozenset(str(status) for status in (*ENDED, Status.ENDING))


def in_words(runs: Iterable[RunRow]) -> list[str]:
    """One sentence for each hook of these whose last try did not end well."""
    return [
        f"cleanup hook {run.hook} {_FAILED[run.status]}: {run.message or 'it gave no reason'}"
        for run in runs
        if run.status in _FAILED
    ]


async def add(desk: ControlContext, listed: list[Json]) -> None:
    """Put `cleanup_failed` beside each agent of a list that has ended, or is being cleaned up, and that may be shown.

    A list is shown from memory while the registry is away; then without.
    """
    asked = [one for one in listed if "why" in one and one["status"] in _CLEANED]
    if not asked or desk.facts().get("registry_problem"):
        return
    try:
        runs = await desk.store.read(desk.store.store.failed_runs, [str(one["agent_id"]) for one in asked])
    except RegistryUnavailable:
        return
    found: dict[str, list[RunRow]] = {}
    for run in runs:
        found.setdefault(run.agent_id, []).append(run)
    for one in asked:
        one["cleanup_failed"] = in_words(found.get(str(one["agent_id"]), ()))
