"""One sweep: observe -> judge -> decide -> record, for every agent. `Sweeper.sweep` shows all of it.

A sweep never waits for an agent, a file or a hook: beats and exits are in memory or one poll away, heartbeat files are
read by the owners' helpers beside it, and kills run elsewhere. An error with one agent stays confined to that agent.
"""

import asyncio
from collections.abc import Iterable
from datetime import timedelta

from watchdog.agents import judging
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.heartbeat import witness
from watchdog.agents.persistence import AgentPersistence
from watchdog.clock import Clock, Instant
from watchdog.core.agent import Status, Verdict
from watchdog.core.decision import Limits, Look, called_off, decide
from watchdog.core.process import Presence
from watchdog.core.verdict import judge
from watchdog.kill.safeguards import Safeguards
from watchdog.sweep.enforcement import Enforcement
from watchdog.sweep.probes import Probes
from watchdog.sweep.stats import SweepStats


class Sweeper:
    """Checks all agents. One instance, one sweep at a time (`lock`)."""

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        probes: Probes,
        safeguards: Safeguards,
        enforcement: Enforcement,
        persistence: AgentPersistence,
        stats: SweepStats,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._probes = probes
        self._watched = probes.watched
        self._safeguards = safeguards
        self._enforcement = enforcement
        self._persistence = persistence
        self._stats = stats
        self._recorded = True  # whether the last sweep could write
        self.lock = asyncio.Lock()
        self.took = 0.0  # duration of the last sweep in seconds

    @property
    def _interval(self) -> float:
        return self._watched.interval

    async def sweep(self) -> None:
        """Check every agent once.

        1. Read the beats that wait on the sockets; account for the time watched since the last sweep.
        2. Ask the kernel which processes live; scan /proc once if a tree is needed.
        3. Judge each agent; store the watched state in one statement.
        4. Decide for all together; report changes; pass orders to the kill worker.
        """
        async with self.lock:
            await self._probes.processes.find_hung()
            began = self._clock.now()
            self._probes.receive()
            self.reckon()
            doubtful = self._probes.look()
            # Most agents of a big fleet were healthy at the last sweep and have reached no limit since.
            open_, settled = [], []
            for agent in self._fleet:
                presence = self._probes.processes.presence(agent)
                if judging.settled(agent) and presence is Presence.ALIVE and agent.tree.cpu_used is not None:
                    settled.append(agent)
                else:
                    open_.append((agent, presence))
            await self._probes.processes.scan_if_needed(began.mono, open_, doubtful)
            looks = [look for agent, presence in open_ if (look := self._judge(agent, presence, began))]
            await self._probes.record()
            self._recorded = await self._persistence.record(self._interval)
            self._stats.recorded(self._recorded)
            await self._safeguards.end_holds(began)
            limits = self._safeguards.limits(looks, settled, began, self._recorded)
            for agent_id, why in called_off(looks, limits):
                self._enforcement.call_off(agent_id, why)
            await self._decide(looks, limits)
            self._probes.processes.report_hung()
            self._stats.swept(began, self._interval)
            self.took = self._clock.mono() - began.mono

    def present(self, agent: Agent) -> Agent:
        """A copy of the agent for display: with its present ages, and the verdict that they imply.

        Nothing is decided by it. Messages that wait on its socket are read first. For an agent of another host only its
        own daemon knows more than its row.
        """
        if self._fleet.get(agent.agent_id) is not agent:
            return agent
        self._probes.tracker.sockets.drain(agent.agent_id)
        now, shown = self._clock.mono(), agent.copy()
        since = self._watched.catch_up(shown)
        self._probes.processes.show(shown)
        if shown.judged.verdict is None or shown.status in (Status.ENDING, Status.UNKILLABLE):
            return shown
        shown.heartbeat.silence.doubts.looked_at(now)
        judging.show(
            shown, judge(judging.observe(shown, shown.judged.presence, now, self._interval), shown.policy), since
        )
        return shown

    async def close(self) -> None:
        """Cancel queries to helpers beside the sweep."""
        await self._probes.close()
        await self._enforcement.close()

    async def look_at_ended(self, agents: Iterable[Agent]) -> None:
        """Judge agents whose main process has exited, at once: the consequences depend on no other agent."""
        async with self.lock:
            now = self._clock.now()
            try:
                agents = list(agents)
                for agent in agents:
                    self._watched.catch_up(agent)
                presence = self._probes.processes.presence
                looks = [look for agent in agents if (look := self._judge(agent, presence(agent), now))]
                gone = [look for look in looks if look.judgement.verdict is Verdict.GONE]
                await self._decide(gone, self._safeguards.of_all(now, self._recorded))
            except Exception as error:  # noqa: BLE001 - the next sweep judges them again
                self._stats.failed(error)

    def reckon(self) -> None:
        """Account for watched time, and find out whether beats may have been missed."""
        self._watched.reckon(missed=self._safeguards.note_sweep(self._interval))

    # -- judge -----------------------------------------------------------------------------------------------------

    def _judge(self, agent: Agent, presence: Presence, now: Instant) -> Look | None:
        """A judgement of one agent; None when it is closed or being killed, or when judging failed (reported once)."""
        if agent.status in (Status.ENDING, Status.UNKILLABLE) or self._fleet.get(agent.agent_id) is not agent:
            return None
        try:
            agent.judged.saw(presence)
            judgement = judge(judging.observe(agent, presence, now.mono, self._interval), agent.policy)
            self._enforcement.judged(agent, judgement)
            judging.remember(agent, judgement, now.mono, self._interval)
        except Exception as error:  # noqa: BLE001 - one agent's bad data must not stop the sweep of the others
            self._stats.failed_at(agent, error)
            return None
        user, heartbeat, here = (
            self._safeguards.user_of(agent.reg.owner_uid),
            agent.heartbeat,
            agent.owner.elsewhere is None,
        )
        kill_due_since = agent.judged.kill_due_since
        return Look(
            agent_id=agent.agent_id,
            judgement=judgement,
            policy=agent.policy,
            owner=user,
            promised=heartbeat.said.promised and not heartbeat.silence.hindrance.channel_lost and here,
            witness=witness(heartbeat, user) if here else None,
            silence=heartbeat.silence.counted,
            state=heartbeat.said.state,
            state_age=heartbeat.ages.state_age,
            doomed_for=timedelta(seconds=0 if kill_due_since is None else now.mono - kill_due_since),
            requested=agent.ending.request_id is not None,
            held=self._safeguards.holds.reason_for(agent.agent_id, now.wall),
            rung=agent.ladder.rung,
            rung_age=heartbeat.ages.age - agent.ladder.at,
        )

    # -- decide ----------------------------------------------------------------------------------------------------

    async def _decide(self, looks: list[Look], limits: Limits) -> None:
        for decision in decide(looks, limits):
            if not await self._enforcement.act(decision):
                break  # the registry failed meanwhile: the next sweep decides again
