"""What lies at the worktrees and temp dirs of agents, learnt from their owners' helpers while the agents live.

A row names a place by what lay there, not by its path alone: cleanup leaves alone what is not that (`core.sites`).
Asked beside the sweep until it is known; a place that is not there yet is asked about again now and then.
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
AT_ONCE = 32  # questions that one sweep asks
AGAIN = 5.0  # seconds until a place that was not there is asked about again; doubled each time,
AGAIN_MOST = 120.0  # up to that
SECOND = 1.0  # the time of an end is known to the second


class Sites:
    """Asks, and has the rows remember."""

    def __init__(self, fleet: Fleet, inquiries: BackgroundQueries, registry: AsyncRegistry, clock: Clock) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._registry = registry
        self._clock = clock
        self._due: dict[tuple[str, str], tuple[float, float]] = {}  # agent and place: when to ask, the next pause
        self._unwritten: set[str] = set()

    def look(self) -> None:
        """Ask about some places of living agents of which nothing is known."""
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
        """A helper's answer; one that came after the agent's end may be about what somebody put there since."""
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
        """Write down what was learnt; while the registry is away it waits."""
        for agent_id in list(self._unwritten):
            agent = self._fleet.get(agent_id)
            with suppress(RegistryUnavailable):
                if agent is not None:
                    await self._registry.write(self._registry.agent_details.set_sites, agent.reg)
                self._unwritten.discard(agent_id)


def _is_unknown(agent: Agent, place: str) -> bool:
    """Whether the agent lives, as far as is known, has such a place, and nobody has seen what lies there."""
    if agent.status not in (Status.STARTING, Status.RUNNING) or agent.exit.ended or agent.owner.elsewhere is not None:
        return False
    if agent.identity is not None and not agent.tree.met_alive:
        return False  # it had ended when we came
    site = agent.reg.worktree_site if place == "worktree" else agent.reg.temp_site
    return site is None and getattr(agent.reg, place) is not None


def sites_known(agent: Agent, ended_at: float | None) -> dict[str, Any]:
    """What hooks are told of an agent's places. Its own is also what it made itself up to an end that we watched."""
    watched = agent.tree.met_alive or agent.status in ENDED  # these were looked at before their row was closed
    made = agent.reg.created_at
    until = ended_at + SECOND if agent.tree.met_alive and ended_at else 0.0 if made is None else made.timestamp()
    sites = {"worktree": agent.reg.worktree_site, "temp_dir": agent.reg.temp_site}
    return {place: known_json(KnownSite(site, until, watched)) for place, site in sites.items()}
