"""Retries cleanup hooks that gave up or during which a daemon died, with the same `run_id`.

Hooks that kept a worktree only because it was in use are retried once a day for a week.

Tests: tests/reaper/test_reaper.py.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.cleanup.runner import CleanupRunner
from watchdog.clock import Clock
from watchdog.config.settings import Settings
from watchdog.core import hooks
from watchdog.core.agent import ENDED
from watchdog.core.hooks import HookResult
from watchdog.core.kill import Reason
from watchdog.errors import Conflict
from watchdog.kill.close import end_words
from watchdog.kill.order import from_json
from watchdog.processes import identity
from watchdog.reaper.events import WELL
from watchdog.reaper.leftovers import Leftover
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.rows import RunRow

AGAIN = timedelta(minutes=10)  # before a hook that gave up is retried; doubled with each try
AGAIN_MOST = timedelta(hours=6)
USED_AGAIN = timedelta(days=1)  # between two tries of a hook that kept something only because it was in use
USED_FOR = timedelta(days=8)  # after which such a hook is no longer retried


class FailedHooks:
    """Finds such hook runs in the registry and reruns them for agents that have ended."""

    def __init__(
        self, settings: Settings, fleet: Fleet, registry: AsyncRegistry, clock: Clock, cleanup: CleanupRunner
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._registry = registry
        self._clock = clock
        self._cleanup = cleanup
        self._host = identity.this_host(settings.host)

    def apply(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self._settings = settings

    async def look(self, *, due: bool) -> list[Leftover]:
        """Hooks that gave up or kept what was in use, one leftover per agent; `due`: only those whose pause is over."""
        registry, now = self._registry, self._clock.now().wall
        by_agent: dict[str, list[RunRow]] = {}
        for run in await registry.read(registry.leftovers.gave_up, self._host, now - AGAIN if due else now):
            since = now - (run.finished_at or run.started_at)
            if not due or since >= min(AGAIN_MOST, AGAIN * 2 ** min(run.attempts, 10)):
                by_agent.setdefault(run.agent_id, []).append(run)
        used = (now - USED_AGAIN, now - USED_FOR) if due else (now, datetime.fromtimestamp(0, UTC))
        for run in await registry.read(registry.leftovers.kept_in_use, self._host, *used):
            by_agent.setdefault(run.agent_id, []).append(run)
        found = []
        for row in await registry.read(registry.agents.by_ids, list(by_agent)):
            runs = [run for run in by_agent[row.agent_id] if self._cleanup.knows(run.hook)]
            if not runs or row.status not in ENDED or self._fleet.get(row.agent_id) is not None:
                continue
            agent = Agent(row.registration, self._settings.policy_for(row.registration), row.status)
            agent.exit.learn(row.exit_code, row.exit_signal)
            why = "; ".join(
                f"{run.hook}: {run.status} after {run.attempts} tr{'y' if run.attempts == 1 else 'ies'}: {run.message}"
                for run in runs
            )
            what = ", ".join(run.hook for run in runs)
            one = Leftover("hook", what, agent.reg.owner_uid, row.agent_id, why[:2000], "run", row.registration.name)
            found.append(replace(one, act=partial(self._run_again, agent, runs), journaled=True))
        return found

    async def _run_again(self, agent: Agent, runs: Iterable[RunRow], by: str) -> HookResult:
        """Run these hooks again, and those that need one of them."""
        reason, request_id, words = Reason.OPERATOR, "", dict[str, Any]()
        for run in runs:
            with contextlib.suppress(Conflict):
                request = await self._registry.read(self._registry.kills.request, run.request_id or "")
                if request is not None:
                    reason, request_id = request.reason, request.request_id
                    options, _, why = from_json(request.options)
                    words = end_words(agent, agent.status, options, request.by, why, request.outcome)
        names = frozenset(run.hook for run in runs)
        seen = {run.hook: str(run.details["seen"]) for run in runs if "seen" in run.details}
        ran = await self._cleanup.again(agent, reason, request_id, names, seen=seen, **words)
        told = "; ".join(f"{one['hook']}: {one['outcome']}: {one['message']}" for one in ran)
        failed = [one for one in ran if one["outcome"] not in WELL]
        return (hooks.failed if failed else hooks.done)(told[: hooks.MESSAGE_LIMIT])
