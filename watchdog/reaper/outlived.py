"""Orphans as leftovers: the kill worker kills them, by kill requests.

Tests: tests/reaper/test_reaper.py.
"""

from dataclasses import replace
from functools import partial

from watchdog.agents.agent import Agent
from watchdog.core import hooks
from watchdog.core.hooks import HookResult
from watchdog.core.kill import KillOptions, Reason
from watchdog.errors import Conflict, WatchdogError
from watchdog.kill.safeguards import Safeguards
from watchdog.kill.worker import KillWorker
from watchdog.reaper.events import ReapEvents
from watchdog.reaper.leftovers import Leftover
from watchdog.reaper.orphans import Orphans


class OutlivedProcesses:
    """Lists orphans and requests their kill; sends no signals itself."""

    def __init__(self, orphans: Orphans, kills: KillWorker, safeguards: Safeguards, events: ReapEvents) -> None:
        self._orphans = orphans
        self._kills = kills
        self._safeguards = safeguards
        self._events = events

    async def agents(self) -> list[Agent]:
        """Ended agents whose orphans are alive and may be killed, for `kill orphans`. Raises Conflict,
        RegistryUnavailable.
        """
        try:
            return (await self._orphans.find()).agents
        except OSError as error:
            raise Conflict(f"/proc cannot be read: {error.strerror or error}") from error

    async def look(self, *, by_root: bool) -> list[Leftover]:
        """The orphans that are alive now; `by_root`: root ordered the check."""
        try:
            outlived = await self._orphans.find()
        except OSError as error:
            self._events.trouble("the look for orphans", error)
            return []
        found = []
        for agent in outlived.agents:
            names = ", ".join(f"{m.name}[{m.identity.pid}] by {m.via}" for m in agent.tree.members[:8])
            names += " and more" if len(agent.tree.members) > 8 else ""
            why = f"outlived agent {agent.reg.name}, which is {agent.status}"
            one = Leftover("process", names, agent.reg.owner_uid, agent.agent_id, why, "end", agent.reg.name)
            found.append(replace(one, act=partial(self._end, agent, by_root), journaled=True))
        for left in outlived.left:
            what = f"{left.name}[{left.pid}]"
            one = Leftover("process", what, left.uid, left.agent_id, left.why, "keep", quiet=left.usual)
            found.append(one)
        for uid, strangers in outlived.strangers.items():
            what = f"{len(strangers)} process{'' if len(strangers) == 1 else 'es'}"
            why = "marked by agents that are not known here: another daemon's, or forgotten"
            found.append(Leftover("process", what, uid, None, why, "keep", quiet=True))
        return found

    async def _end(self, agent: Agent, by_root: bool, by: str) -> HookResult:
        """Request a kill of its orphans. The daemon's own requests keep to the budget; an operator waits for the
        outcome.
        """
        own = by == "daemon"
        if own and self._safeguards.budget_exhausted(agent.reg.owner_uid):
            return hooks.kept("deferred: kill.max_per_minute reached")
        try:
            why = f"{len(agent.tree.members)} process{'' if len(agent.tree.members) == 1 else 'es'} outlived it"
            options = KillOptions(cleanup=False, by_root=by_root)  # its hooks have run
            request_id = await self._kills.request(agent, Reason.ORPHANED, options, by, why)
        except WatchdogError as error:
            return hooks.failed(str(error), reason=error.code)
        if own:
            self._safeguards.count_kill(agent)
            return hooks.done("kill requested", request_id=request_id)
        limit = (agent.policy.grace + agent.policy.verify).total_seconds() + 10
        outcome = await self._kills.finished(request_id, limit)
        if outcome is None:
            return hooks.failed("not finished yet; it continues", request_id=request_id)
        answer = hooks.done if outcome.get("success") else hooks.failed
        return answer(str(outcome.get("message")), request_id=request_id, processes=outcome.get("processes") or [])
