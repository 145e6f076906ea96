"""Leftovers of dead agents as the daemon knows them, and the daemon's side of what an owner's helper finds.

The helper's answers are statements of its uid: they only lead to actions by that uid, on paths that only its helper
opens.

Tests: tests/e2e/test_reap.py.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from watchdog.agents.fleet import Fleet
from watchdog.agents.shared_paths import places
from watchdog.cleanup.occupancy import Occupancy
from watchdog.clock import Clock
from watchdog.core import hooks, sites
from watchdog.core.findings import Finding, KnownAgents, finding_json, finding_of, known_json
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import BACKSTOP, LINE_LIMIT, HelperPool
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.rows import AgentRow

LOOK = 60.0  # seconds for a helper to search one owner's places
ACT = 60.0  # seconds for one finding
TASK_HOURS = 7 * 24.0  # the longest that `owner.finders.fleet_tasks` keeps anything
NEWEST = 2000  # ended agents per owner that are passed to its helper; an older agent's id is unknown to it
ROOM = LINE_LIMIT - (1 << 17)  # bytes of a request


@dataclass(slots=True)
class Leftover:
    """One thing that a dead agent left: what it is, what is done about it and why, and (later) the result."""

    kind: str
    what: str  # a path, or a description
    owner_uid: int
    agent_id: str | None
    why: str
    action: str  # end, run, remove; keep: nothing is done, and `why` names the rule
    name: str | None = None
    bytes: int | None = None
    act: Callable[[str], Awaitable[HookResult]] | None = None  # its argument: on whose behalf
    journaled: bool = False  # the action writes its own history
    quiet: bool = False  # not logged: nothing unusual
    result: HookResult | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.what, self.why

    def json(self) -> dict[str, object]:
        """As `reap --json` shows it."""
        return {
            "kind": self.kind,
            "what": hooks.printable(self.what),
            "agent_id": self.agent_id,
            "name": self.name,
            "owner_uid": self.owner_uid,
            "why": hooks.printable(self.why),
            "action": self.action,
            "bytes": self.bytes,
            "outcome": None if self.result is None else self.result.outcome,
            "message": None if self.result is None else self.result.message,
            "details": {} if self.result is None else self.result.details,
        }


class OwnerLeftovers:
    """Asks each owner's helper for leftovers in that owner's directories."""

    def __init__(
        self,
        fleet: Fleet,
        registry: AsyncRegistry,
        helpers: HelperPool,
        clock: Clock,
        host: str,
        credit: Callable[[timedelta], timedelta] = lambda _: timedelta(),
    ) -> None:
        """`credit`: how much longer things must be kept by a wall clock that was set forward (`core.steps.credit`)."""
        self._fleet = fleet
        self._registry = registry
        self._helpers = helpers
        self._occupancy = Occupancy(helpers)
        self._clock = clock
        self._host = host
        self._credit = credit

    async def owners(self) -> set[int]:
        """Uids that have or had agents on this host. Raises RegistryUnavailable."""
        return await self._registry.read(self._registry.agents.owners, self._host)

    async def look(self, uid: int) -> tuple[list[Leftover], list[str]]:
        """What was found, and the problems met. Raises OwnerCallFailed, RegistryUnavailable."""
        known, names = await self._known(uid)
        args = {**self._asked(known), "timeout_seconds": LOOK}
        answer = await self._helpers.call_in_fresh_helper(uid, "reap_look", args, LOOK + 3 * BACKSTOP)
        try:
            found = [finding_of(one) for one in answer["findings"]]
            problems = [hooks.printable(str(one))[:500] for one in answer["problems"]][:20]
        except (ValueError, TypeError, KeyError) as error:
            raise OwnerCallFailed("garbled", f"no findings: {error}") from None
        return [self._leftover(uid, one, known, names.get(one.agent_id or "")) for one in found], problems

    def _leftover(self, uid: int, finding: Finding, known: KnownAgents, name: str | None) -> Leftover:
        living = finding.agent_id in known.living
        if living and finding.action == "remove":  # the helper's claim: nothing of a living agent is a leftover
            finding = replace(finding, action="keep", why="its agent lives")

        async def act(by: str) -> HookResult:
            fresh, _ = await self._known(uid)  # read again: an agent may have started since the search
            if finding.agent_id in fresh.living:
                return hooks.kept("its agent lives")
            by_name = finding.kind == "temp_dir"
            if user := await self._occupancy.user_of(uid, finding.path, by_name=by_name):
                return hooks.kept(f"kept {finding.path}: in use: {user}")
            args = {**self._asked(fresh), "finding": finding_json(finding), "timeout_seconds": ACT}
            try:
                return hooks.result_of(await self._helpers.call_in_fresh_helper(uid, "reap_act", args, ACT + BACKSTOP))
            except OwnerCallFailed as error:
                outcome = HookOutcome.TIMEOUT if error.reason == "late" else HookOutcome.FAILED
                return HookResult(outcome, str(error), {"reason": error.reason})
            except ValueError as error:
                return hooks.failed(f"the helper's answer is not a result: {error}", reason="garbled")

        act_on = act if finding.action == "remove" else None
        return Leftover(
            kind=hooks.printable(finding.kind),
            what=finding.path,
            owner_uid=uid,
            agent_id=finding.agent_id,
            why=finding.why,
            action=finding.action,
            name=name,
            bytes=finding.bytes,
            act=act_on,
        )

    def _asked(self, known: KnownAgents) -> dict[str, object]:
        settings = self._helpers.settings
        keep = timedelta(hours=max(settings.trash_retention_hours, TASK_HOURS))
        stepped = self._credit(keep).total_seconds()
        settings = replace(settings, stepped_seconds=stepped)
        return {"settings": hooks.settings_json(settings), "known": known_json(known)}

    async def _known(self, uid: int) -> tuple[KnownAgents, dict[str, str]]:
        """What the registry and the fleet know of that owner's agents, and the names of its ended ones."""
        registry, now = self._registry, self._clock.now().wall
        living = await registry.read(registry.leftovers.living_ids, self._host) | {
            agent.agent_id for agent in self._fleet
        }
        rows = await registry.read(registry.leftovers.ended_agents, self._host, uid, NEWEST)
        rows = [row for row in rows if row.agent_id not in living]
        commons = await registry.read(registry.leftovers.trashes, self._host, uid)
        in_use = places(self._fleet, uid)
        if len(json.dumps(in_use)) > ROOM:
            raise OwnerCallFailed("too_long", "the places of its living agents are more than its helper takes")

        def told(rows: list[AgentRow]) -> KnownAgents:
            ages = {row.agent_id: (now - (row.completed_at or row.created_at)).total_seconds() for row in rows}
            temp_dirs = {row.agent_id: row.registration.temp_dir for row in rows if row.registration.temp_dir}
            trees = {row.agent_id: row.registration.worktree for row in rows if row.registration.worktree}
            sockets = {row.agent_id: row.notify_socket for row in rows if row.notify_socket}
            seen = {row.agent_id: _temp_site(row) for row in rows if row.registration.temp_dir}
            return KnownAgents(frozenset(living), ages, temp_dirs, trees, sockets, tuple(commons), in_use, seen)

        known = told(rows)
        while rows and len(json.dumps(known_json(known))) > ROOM:  # paths may have 4 KB each: drop the oldest rows
            rows = rows[: len(rows) // 2]
            known = told(rows)
        return known, {row.agent_id: row.registration.name for row in rows}


def _temp_site(row: AgentRow) -> dict[str, object]:
    """What is known of an ended agent's temp dir, in the form that its owner's helper reads."""
    return sites.known_json(sites.KnownSite(row.registration.temp_site, row.created_at.timestamp()))
