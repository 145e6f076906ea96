"""Identifies the files at the worktrees and temp dirs of agents, through their owners' helpers, while agents live.

A row names a place by what was there (`core.sites`), not by its path alone; cleanup leaves anything else alone. Queried
beside the sweep until known; a place that does not exist yet is queried again now and then.
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from watchdog.agents.agent import Agent
from watchdog.agents.background_queries import BackgroundQueries
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.core.agent import ENDED, Status
from watchdog.core.sites import KnownSite, known_json, site_of
from watchdog.errors import RegistryUnavailable
from watchdog.processes import identity
from watchdog.registry.async_registry import AsyncRegistry

PLACES = ("worktree", "temp_dir")
AT_ONCE = 32  # queries per sweep
AGAIN = 5.0  # seconds until a missing place is queried again; doubled each time,
AGAIN_MOST = 120.0  # up to this
SECOND = 1.0  # seconds; the time of an exit is known to the second


class Sites:
    """Sends the queries and has the answers stored in the rows."""

    def __init__(self, fleet: Fleet, inquiries: BackgroundQueries, registry: AsyncRegistry, clock: Clock) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._registry = registry
        self._clock = clock
        self._due: dict[tuple[str, str], tuple[float, float]] = {}  # (agent, place) -> (when to ask, next pause)
        self._unwritten: set[str] = set()

    def look(self) -> None:
        """Query some unknown places of living agents."""
        now = self._clock.mono()
        wanted = {
            (agent.agent_id, place): agent for agent in self._fleet for place in PLACES if _is_unknown(agent, place)
        }
        for key in self._due.keys() - wanted:
            self._inquiries.forget((*key, "site"))
            del self._due[key]
        due = sorted((self._due.get(key, (0.0, AGAIN))[0], key) for key in wanted)
        for _, key in [one for one in due if one[0] <= now][:AT_ONCE]:
            pause = self._due.get(key, (0.0, AGAIN))[1]
            self._due[key] = now + pause, min(AGAIN_MOST, 2 * pause)
            agent, place = wanted[key], key[1]
            args = {"path": getattr(agent.reg, place)}
            take = partial(self._take, agent, place)
            self._inquiries.ask((*key, "site"), agent, "site", args, take, lambda _: None)

    def _take(self, agent: Agent, place: str, answer: Any) -> None:
        """A helper's answer; one that arrives after the agent's exit may describe something put there since."""
        if agent.tree.pidfd is not None and identity.ended(agent.tree.pidfd):
            return
        if answer is None or self._fleet.get(agent.agent_id) is not agent or not _is_unknown(agent, place):
            return
        site = site_of(answer)
        worktree, temp_dir = agent.reg.worktree_site, agent.reg.temp_site
        worktree, temp_dir = (site, temp_dir) if place == "worktree" else (worktree, site)
        agent.amend(replace(agent.reg, worktree_site=worktree, temp_site=temp_dir))
        self._unwritten.add(agent.agent_id)

    async def record(self) -> None:
        """Store the answers; while the registry is away they wait."""
        for agent_id in list(self._unwritten):
            agent = self._fleet.get(agent_id)
            with suppress(RegistryUnavailable):
                if agent is not None:
                    await self._registry.write(self._registry.agent_details.set_sites, agent.reg)
                self._unwritten.discard(agent_id)


def _is_unknown(agent: Agent, place: str) -> bool:
    """Whether the agent lives, as far as is known, has such a place, and its site is still unknown."""
    if agent.status not in (Status.STARTING, Status.RUNNING) or agent.exit.ended or agent.owner.elsewhere is not None:
        return False
    if agent.identity is not None and not agent.tree.met_alive:
        return False  # it had ended before we watched it
    site = agent.reg.worktree_site if place == "worktree" else agent.reg.temp_site
    return site is None and getattr(agent.reg, place) is not None


def sites_known(agent: Agent, ended_at: float | None) -> dict[str, Any]:
    """The hooks' information about an agent's places; its own also include those it made before a watched exit."""
    watched = agent.tree.met_alive or agent.status in ENDED  # these were checked before their row was closed
    made = agent.reg.created_at
    until = ended_at + SECOND if agent.tree.met_alive and ended_at else 0.0 if made is None else made.timestamp()
    sites = {"worktree": agent.reg.worktree_site, "temp_dir": agent.reg.temp_site}
    return {place: known_json(KnownSite(site, until, watched)) for place, site in sites.items()}
