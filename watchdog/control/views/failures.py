"""Why an agent's cleanup is not complete: the hooks that failed, each with its message, for lists and for `why`.

An agent that ended well is no success while its worktree is still there, so lists show the reason beside it.
"""

from collections.abc import Container, Iterable, Mapping

from watchdog.agents.agent import Agent
from watchdog.control.context import ControlContext, Json
from watchdog.control.views.next_change import Ending
from watchdog.core.agent import ENDED, Status
from watchdog.core.hooks import HookOutcome
from watchdog.core.kill import Reason
from watchdog.errors import RegistryUnavailable
from watchdog.registry.rows import RequestRow, RunRow

_FAILED = {HookOutcome.FAILED.value: "failed", HookOutcome.TIMEOUT.value: "ran out of time"}
NOT_CONFIGURED = "the configuration no longer has this hook, so it is not tried again"
_RUNS, _CLEANS = "running", "cleanup"  # a run's status; a request's step
_BY_ITSELF = {Reason.GONE: "It has ended by itself", Reason.LOST: "It ended with its boot"}
_CLEANED = frozenset(str(status) for status in (*ENDED, Status.ENDING))


def in_words(runs: Iterable[RunRow], hooks: Container[str] | None = None, *, ending: bool = False) -> list[str]:
    """One sentence for each hook of these whose last try did not end well.

    `hooks`: the names of those that the configuration has; None: it is another host's.
    `ending`: of an agent that is being cleaned up for the first time; there a hook that is tried again has failed.
    """
    said = []
    for run in runs:
        if run.status in _FAILED:
            given_up = "" if ending or hooks is None or run.hook in hooks else f"; {NOT_CONFIGURED}"
            said.append(
                f"cleanup hook {run.hook} {_FAILED[run.status]}: {run.message or 'it gave no reason'}{given_up}"
            )
        elif ending and _again(run) and run.message:
            said.append(f"cleanup hook {run.hook} is in try {run.attempts}; the one before: {run.message}")
    return said


def tried_again(said: Iterable[str]) -> bool:
    """Whether one of these hooks is still the configuration's, and so the reaper's."""
    return any(NOT_CONFIGURED not in one for one in said)


def ending(
    agent: Agent, requests: Iterable[RequestRow], runs: Iterable[RunRow], retries: Mapping[str, int]
) -> Ending | None:
    """How far its end has come; None for one that is being killed, or that is not killed. `retries`: by hook."""
    order = next((one for one in requests if one.request_id == agent.ending.request_id), None)
    if order is None or (order.step != _CLEANS and order.reason not in _BY_ITSELF):
        return None
    how = _BY_ITSELF.get(order.reason, "It has ended")
    if order.step != _CLEANS:
        return Ending(how, dead=False)
    left = [run for run in runs if run.request_id == order.request_id and run.status in (_RUNS, *_FAILED)]
    last = max(left, key=lambda run: run.started_at, default=None)
    return Ending(how, dead=True, hook="" if last is None else _try(last, 1 + retries.get(last.hook, 0)))


def _try(run: RunRow, most: int) -> str:
    """Which hook, and which of its tries; nothing of one that has used up all of them: another hook runs."""
    said = run.message or "it gave no reason"
    if run.status == _RUNS:
        before = f" (the one before: {said})" if _again(run) and run.message else ""
        return f"the hook {run.hook}, try {run.attempts} of {max(most, run.attempts)}{before}"
    if run.attempts >= most:
        return ""
    return f"the hook {run.hook}, whose try {run.attempts} of {most} {_FAILED[run.status]} ({said})"


def _again(run: RunRow) -> bool:
    return run.status == _RUNS and run.attempts > 1


async def add(context: ControlContext, listed: list[Json], hooks: Container[str] | None = None) -> None:
    """Put `cleanup_failed` beside each agent of a list that has ended, or is being cleaned up, and that may be shown.

    A list is shown from memory while the registry is away; then without. `hooks`: as `in_words` has it.
    """
    asked = [one for one in listed if "why" in one and one["status"] in _CLEANED]
    if not asked or context.status.facts().get("registry_problem"):
        return
    try:
        runs = await context.registry.read(
            context.registry.leftovers.failed_runs, [str(one["agent_id"]) for one in asked]
        )
    except RegistryUnavailable:
        return
    found: dict[str, list[RunRow]] = {}
    for run in runs:
        found.setdefault(run.agent_id, []).append(run)
    for one in asked:
        runs_of = found.get(str(one["agent_id"]), ())
        one["cleanup_failed"] = in_words(runs_of, hooks, ending=one["status"] == Status.ENDING)
