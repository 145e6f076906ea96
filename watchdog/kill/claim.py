"""Claims an agent's row for an order, unless a beat or a hold withdraws it; a beat does so until the first signal."""

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.holds import Holds
from watchdog.agents.tracker import AgentTracker
from watchdog.clock import Clock
from watchdog.core.agent import Status
from watchdog.core.kill import KillStep
from watchdog.core.process import Presence, TreeMember
from watchdog.kill.order import (
    ASKING,
    AUTOMATIC,
    BEFORE_SIGNALS,
    STOPPING,
    WITHDRAWN_BY_BEAT,
    KillOrder,
    OpenOrder,
    daemon_identity,
)
from watchdog.kill.pinned_tree import release
from watchdog.processes import cgroups
from watchdog.processes.identity import presence
from watchdog.processes.signals import is_ancestor
from watchdog.registry.async_registry import AsyncRegistry

STARTED_US = "it is an ancestor of this daemon, which therefore cannot kill it"
LAST_WORD = 0.75  # seconds; `run` passes beats on at most every 0.5 s


def started_us(agent: Agent) -> bool:
    """Whether the agent is an ancestor of this daemon: the guard would spare it, and the rest of its tree be killed."""
    main = agent.identity
    return main is not None and is_ancestor(main.pid) and presence(main, agent.tree.pidfd) is not Presence.ABSENT


class BeatArrived(Exception):
    """A beat arrived before the first signal."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The agent's row is claimed. `order`: as it continues, perhaps for another reason."""

    order: KillOrder


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """No signal was sent; what an earlier attempt stopped was continued. `closed`: another process closed its row."""

    why: str
    closed: bool = False


class Claim:
    """Claims by compare-and-set; sends no signal."""

    def __init__(
        self, registry: AsyncRegistry, clock: Clock, tracker: AgentTracker, holds: Holds, fleet: Fleet
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._tracker = tracker
        self._holds = holds
        self._fleet = fleet
        self._me = f"daemon {os.getpid()}"

    async def claim(self, opened: OpenOrder) -> Claimed | Withdrawn:
        """Claim the agent's row, unless the order is withdrawn instead."""
        agent, progress = opened.order.agent, opened.progress
        order = opened.order
        if order.resumed and order.reason in WITHDRAWN_BY_BEAT and progress.step in BEFORE_SIGNALS:
            # Beats that it sent while no daemon listened are only reaching us now.
            return await self.withdraw(opened, "the daemon was restarted before the first signal: it is judged again")
        await self._tracker.follow(agent, self._registry)  # while its process can be asked: its hooks run as that uid
        self._tracker.sockets.drain(agent.agent_id)
        if why := opened.withdrawal_reason(self._holds, self._clock.now().wall):
            return await self.withdraw(opened, why)
        gone = self._exited(opened)
        order = opened.order.ended_by_itself(progress.step) if gone else opened.order
        me, now = daemon_identity(agent.reg.host), self._clock.now().wall
        again = agent.status is Status.UNKILLABLE  # and stays: a change with each attempt would fill the history
        taken = await self._registry.write(
            self._registry.kills.claim_agent,
            order.request_id,
            me,
            agent.agent_id,
            Status.UNKILLABLE if again else Status.ENDING,
            now=now,
            who=order.by,
            why=order.why,
            takeover_from=order.former,
            say=not again,
        )
        if not taken:
            return self._withdrawn(opened, "its row was closed by another process", closed=True)
        if order.reason in WITHDRAWN_BY_BEAT and progress.step in ASKING and agent.reg.source == "run":
            await asyncio.sleep(LAST_WORD)
        # No await from here to the end of the claim: a beat that arrived meanwhile, or was still with `run`, counts,
        # and so does a hold. Later ones see by the status that they are too late.
        gone = gone or self._exited(opened)
        order = opened.order.ended_by_itself(progress.step) if gone else opened.order
        self._tracker.sockets.drain(agent.agent_id)
        if why := opened.withdrawal_reason(self._holds, self._clock.now().wall, order):
            return await self.withdraw(opened, why)
        if not again:
            agent.become(Status.ENDING)
        return Claimed(order)

    async def claim_orphans(self, opened: OpenOrder) -> Claimed | Withdrawn:
        """Claim an order whose agent's row is closed already, and stays as it is."""
        order = opened.order
        if why := opened.withdrawal_reason(self._holds, self._clock.now().wall):
            return self._withdrawn(opened, why)
        me, now = daemon_identity(order.agent.reg.host), self._clock.now().wall
        claim = self._registry.kills.claim_request
        if await self._registry.write(claim, order.request_id, me, now, takeover_from=order.former):
            return Claimed(opened.order)
        return self._withdrawn(opened, "its kill request belongs to another daemon now")

    def raise_if_beat_arrived(self, opened: OpenOrder) -> None:
        """Until the first signal is sent, a beat withdraws a kill that was ordered for lack of beats.

        Raises BeatArrived.
        """
        if opened.order.reason in WITHDRAWN_BY_BEAT and not opened.progress.begun:
            self._tracker.sockets.drain(opened.order.agent.agent_id)
            if why := opened.beat_since_decision():
                raise BeatArrived(why)

    async def withdraw(self, opened: OpenOrder, why: str) -> Withdrawn:
        """Give the agent's row back, also where an earlier daemon died right after the claim."""
        agent = opened.order.agent
        before = Status.STARTING if agent.identity is None else Status.RUNNING
        former = before if agent.status is Status.ENDING else agent.status
        await self._registry.write(
            self._registry.agents.transition,
            agent.agent_id,
            {Status.ENDING},
            former,
            now=self._clock.now().wall,
            who=self._me,
            why=why,
            event="agent.recovered" if opened.beat_since_decision() else "agent.spared",
        )
        agent.become(former)
        return self._withdrawn(opened, why)

    def resume_stopped(self, agent: Agent, step: KillStep, members: Iterable[TreeMember]) -> None:
        """Continue what an attempt that came to `step` had stopped or frozen: it is not finished, now or ever."""
        if step in STOPPING:
            release(members, self._fleet.guard(agent, agent.reg.host))
            cgroups.thaw_if_ours(agent.reg.own_cgroup)

    def _withdrawn(self, opened: OpenOrder, why: str, *, closed: bool = False) -> Withdrawn:
        self.resume_stopped(opened.order.agent, opened.progress.step, opened.progress.members)
        return Withdrawn(why, closed)

    def _exited(self, opened: OpenOrder) -> bool:
        """Whether the agent exited by itself between the decision and the claim."""
        order, agent = opened.order, opened.order.agent
        if order.reason not in AUTOMATIC or opened.progress.step not in ASKING:
            return False
        return agent.identity is not None and presence(agent.identity, agent.tree.pidfd) is Presence.ABSENT
