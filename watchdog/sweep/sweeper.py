"""One sweep: observe -> judge -> decide -> record, for every agent. `Sweeper.sweep` is the whole story on one screen.

A sweep never waits for an agent, a file or a hook: beats and exits are in memory or one poll away, heartbeat files are
read by the owners' helpers beside it, kills run elsewhere. What fails for one agent is bound to that agent.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from watchdog.agents import judging, oom
from watchdog.agents.agent import Agent
from watchdog.agents.background_queries import BackgroundQueries
from watchdog.agents.fleet import Fleet
from watchdog.agents.heartbeat import witness
from watchdog.agents.history import EventRecorder
from watchdog.agents.holds import Holds
from watchdog.agents.persistence import AgentPersistence
from watchdog.agents.sites import Sites
from watchdog.agents.tracker import AgentTracker
from watchdog.clock import Clock, Instant
from watchdog.config.settings import Settings
from watchdog.core.agent import State, Status, Verdict
from watchdog.core.decision import SILENT, Action, Decision, Limits, Look, Veto, asked_first, called_off, decide
from watchdog.core.kill import Reason, Step
from watchdog.core.process import Presence
from watchdog.core.sessions import SESSION
from watchdog.core.verdict import judge
from watchdog.errors import Conflict, RegistryUnavailable, RowRemoved
from watchdog.helpers.pool import HelperPool
from watchdog.kill.safeguards import Safeguards
from watchdog.kill.worker import KillWorker
from watchdog.probes import cpu
from watchdog.probes.heartbeat_files import HeartbeatFiles
from watchdog.probes.output_growth import OutputGrowth
from watchdog.probes.permission_prompts import PermissionPrompts
from watchdog.probes.process_scan import ProcessScanner
from watchdog.probes.session_files import SessionFiles
from watchdog.processes.identity import LookFailed, presence
from watchdog.registry.store import AsyncStore
from watchdog.sweep.announcer import Announcer
from watchdog.sweep.escalation import Escalation
from watchdog.sweep.stats import SweepStats
from watchdog.telemetry.logger import EventLogger
from watchdog.telemetry.metrics import Metrics

SCAN_EVERY = 60.0  # seconds; a scan of 2,000 processes takes 50 to 100 ms
DROPS_UID = timedelta(minutes=1)  # younger than that it is looked at each time whether it has; later with each scan


class Sweeper:
    """Looks at everybody. One instance, one sweep at a time (`lock`)."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        store: AsyncStore,
        clock: Clock,
        settings: Settings,
        hearing: AgentTracker,
        owners: HelperPool,
        scanner: ProcessScanner,
        holds: Holds,
        worker: KillWorker,
        chronicle: EventRecorder,
        recorder: AgentPersistence,
        metrics: Metrics,
        log: EventLogger,
        user_of: Callable[[int], int] = lambda uid: uid,
        look_at_clock: Callable[[], object] = lambda: None,
    ) -> None:
        self._fleet = fleet
        self._store = store
        self._clock = clock
        self._hearing = hearing
        self.inquiries = BackgroundQueries(owners, clock)
        self._beat_files = HeartbeatFiles(fleet, self.inquiries, clock, log)
        self._growth = OutputGrowth(fleet, self.inquiries, clock)
        self._scanner = scanner
        self._holds = holds
        self._worker = worker
        self._climbing = Escalation(store, owners, chronicle)
        self._tidings = Announcer(chronicle)
        self._prompts = PermissionPrompts(fleet, self.inquiries, clock, self._tidings)
        self._session_files = SessionFiles(fleet, self.inquiries, clock)
        self._sites = Sites(fleet, self.inquiries, store, clock)
        self.restraint = Safeguards(lambda: self.settings, clock, holds, log, user_of, look_at_clock)
        self.recorder = recorder
        self._log = log
        self.settings = settings
        self._recorded = True  # whether the last sweep could write
        self._scanned = float("-inf")
        self.account = SweepStats(fleet, clock, metrics, log)
        self.lock = asyncio.Lock()
        self.took = 0.0  # seconds, the last sweep

    @property
    def services(self) -> list[dict[str, object]]:
        """Services that many sessions share: how many agents each works for, and how many of those are silent."""
        told = []
        for one in self._scanner.services:
            mine = [agent for agent in self._fleet if one.pid in agent.reg.served_by]
            silent = [agent for agent in mine if agent.judged.verdict in (Verdict.LATE, Verdict.STALLED)]
            told.append({**one._asdict(), "agents": len(mine), "silent": len(silent)})
        return told

    @property
    def _interval(self) -> float:
        return self.settings.interval.total_seconds()

    async def sweep(self) -> None:
        """Look at every agent once.

        1. Take the words that wait on the sockets; reckon the time that was watched since the last sweep.
        2. Ask the kernel who lives; scan /proc once if a tree is needed.
        3. Judge each; write what was watched in one statement.
        4. Decide for all together; tell changes; hand orders to the kill worker.
        """
        async with self.lock:
            await self._scanner.find_hung()
            began = self._clock.now()
            self._hearing.sockets.drain_all()
            self.reckon()
            for agent in self._fleet:
                if agent.heartbeat.ages.age < DROPS_UID or agent.owner.untouchable is not None:
                    self._hearing.follow_owner(agent)
            self._beat_files.look()
            doubtful = self._growth.look()
            self._prompts.look()
            self._session_files.look()
            self._sites.look()
            self._hearing.ends.take()
            # Most of a big fleet is healthy and was so at the last look, and no limit of theirs is reached since.
            open_, settled = [], []
            for agent in self._fleet:
                presence = self._presence(agent)
                if judging.settled(agent) and presence is Presence.ALIVE and agent.tree.cpu_used is not None:
                    settled.append(agent)
                else:
                    open_.append((agent, presence))
            await self._scan_if_needed(began.mono, open_, doubtful)
            looks = [look for agent, presence in open_ if (look := self._judge(agent, presence, began))]
            await self._follow_owners()
            await self._sites.record()
            self._recorded = await self.recorder.record(self._interval)
            self.account.recorded(self._recorded)
            await self._end_holds(began)
            limits = self.restraint.limits(looks, settled, began, self._recorded)
            for agent_id, why in called_off(looks, limits):
                if (doubted := self._fleet.get(agent_id)) is not None:
                    self._worker.veto(doubted, why)
            await self._decide(looks, limits)
            self.account.unreadable(self._scanner.hung)
            self.account.swept(began, self._interval)
            self.took = self._clock.mono() - began.mono

    def catch_up(self, agent: Agent) -> None:
        """Reckon its watched time up to now, between two looks at everybody."""
        self._reckon([agent], self.restraint.last)

    def present(self, agent: Agent) -> Agent:
        """A copy of it as it is now, for whoever asks: all ages of this moment, and what they make of its verdict.

        Nothing is decided by it. What waits on its socket is heard first. Of another host's agent only its daemon knows
        more than its row says.
        """
        if self._fleet.get(agent.agent_id) is not agent:
            return agent
        self._hearing.sockets.drain(agent.agent_id)
        now, shown = self._clock.mono(), agent.copy()
        last = self.restraint.last
        since = (
            timedelta()
            if last is None
            else timedelta(seconds=max(0.0, now - max(last, agent.heartbeat.silence.reckoned)))
        )
        self._reckon([shown], last)
        if shown.tree.members and self._scanned > float("-inf"):
            shown.judged.scanned_before(timedelta(seconds=now - self._scanned))
        if shown.judged.verdict is None or shown.status in (Status.ENDING, Status.UNKILLABLE):
            return shown
        shown.heartbeat.silence.doubts.looked_at(now)
        judging.show(
            shown, judge(judging.observe(shown, shown.judged.presence, now, self._interval), shown.policy), since
        )
        return shown

    async def close(self) -> None:
        """Give up what was asked of helpers beside the sweep."""
        await self.inquiries.close()
        await self._climbing.close()

    async def look_at_ended(self, agents: Iterable[Agent]) -> None:
        """Agents whose main process has ended, at once: what their end asks for depends on nobody else."""
        async with self.lock:
            now = self._clock.now()
            try:
                agents = list(agents)
                self._reckon(agents, self.restraint.last)
                looks = [look for agent in agents if (look := self._judge(agent, self._presence(agent), now))]
                gone = [look for look in looks if look.judgement.verdict is Verdict.GONE]
                await self._decide(gone, self.restraint.of_all(now, self._recorded))
            except Exception as error:  # noqa: BLE001 - the next sweep looks at them again
                self.account.failed(error)

    def next_deadline(self) -> float:
        """Seconds until the next agent's silence could become too long: the next look may come that much sooner."""
        soon = timedelta(seconds=self._interval)
        left = (
            (a.heartbeat.silence.after - a.heartbeat.silence.counted + a.heartbeat.ages.lease_left).total_seconds()
            for a in self._fleet
            if a.judged.verdict is Verdict.HEALTHY
            and a.heartbeat.said.promised
            and a.heartbeat.silence.doubts.settled_until - a.heartbeat.ages.age < soon
        )
        # A look just before it would count costs nearly an interval; with more than two to confirm that is too much.
        counts = (
            a.heartbeat.silence.doubts.looked + 0.9 * self._interval - self._clock.mono()
            for a in self._fleet
            if a.judged.verdict is Verdict.LATE
            and a.heartbeat.silence.doubts.looked is not None
            and 2 < a.policy.confirm_sweeps > a.heartbeat.silence.doubts.late_looks
        )
        return max(0.0, min((s for s in (*left, *counts) if s >= 0), default=self._interval))

    # -- observe -------------------------------------------------------------------------------------------------

    def reckon(self) -> None:
        """Reckon watched time: at most two intervals, however long we were away (suspended, stopped, starved)."""
        last, missed = self.restraint.tick(self._interval)
        self._reckon(self._fleet, last)
        if missed:
            for agent in self._fleet:
                agent.heartbeat.silence.forgive()

    def _reckon(self, agents: Iterable[Agent], last: float | None) -> None:
        """The time since the look at everybody at `last` (None: there was none), or since one at that agent alone."""
        now, most = self._clock.mono(), 2 * self._interval
        if last is None:
            return
        for agent in agents:
            agent.watch(max(last, agent.heartbeat.silence.reckoned), now, most)
            agent.heartbeat.silence.reckon_to(now)

    def _presence(self, agent: Agent) -> Presence:
        """What the kernel says of the main process: its pidfd, which has not become readable, else a look at /proc.

        The end of a further process of it (the harness beside its wrapper) is its end; where we only observe the main
        process goes on, and so does the agent.
        """
        agent.judged.hung(None)
        if agent.identity is None:
            return self._of_service(agent)
        if agent.tree.pidfd is None or agent.exit.ended:
            return presence(agent.identity, agent.tree.pidfd)
        if (hung := self._scanner.hung.get(agent.identity.pid)) is not None:
            agent.judged.hung(f"/proc/{hung.pid}/{hung.file}")
            return Presence.UNKNOWN  # unless its pidfd says that it has ended, which `ends` has noted
        also = [
            one for entry in agent.reg.entries if entry.kind != SESSION for one in entry.also
        ]  # of most there is none
        if also and not self.settings.observe and not agent.reg.told_of:
            return Presence.ABSENT if any(presence(one, None) is Presence.ABSENT for one in also) else Presence.ALIVE
        return Presence.ALIVE

    def _of_service(self, agent: Agent) -> Presence:
        """A session without a process of its own is there as long as the service that works for it."""
        services = [one for entry in agent.reg.entries if entry.kind == SESSION for one in entry.also]
        gone = bool(services) and all(presence(one, None) is Presence.ABSENT for one in services)
        return Presence.ABSENT if gone else Presence.NO_PID

    async def _scan_if_needed(self, now: float, seen: list[tuple[Agent, Presence]], doubtful: list[Agent]) -> None:
        """One /proc scan: once a minute, when somebody may be late and activity must be known, and of who is new.

        What leaves a tree between two scans, and carries no mark, is not known again: the first look must not be late.
        """
        living = [agent for agent, presence in seen if presence is Presence.ALIVE]
        soon = any(agent.tree.cpu_used is None for agent in living)
        soon = soon or any(judging.perhaps_started(agent, presence) for agent, presence in seen)
        soon = soon or any(judging.needs_scan(agent, self.settings.interval) for agent in doubtful)
        # What a tree used is measured over an interval: in the blink between two looks that an exit or a deadline
        # called for, no clock tick (10 ms) falls, and a busy agent looks idle.
        if not len(self._fleet) or now - self._scanned < (0.9 * self._interval if soon else SCAN_EVERY):
            return
        elapsed, self._scanned = now - self._scanned, now
        try:
            await self._scanner.trees()
        except OSError as error:
            self.account.scanned(error)
            return
        self.account.scanned(None)
        for agent in self._fleet:
            self._hearing.follow_owner(agent)
        try:
            await oom.note_all(self._fleet)
            waited = await cpu.waiting(self._fleet)
            await cpu.see_halts(doubtful)
        except LookFailed as error:
            self.account.scanned(error)
            return
        cpu.measure(self._fleet, elapsed, waited)

    async def _follow_owners(self) -> None:
        """Commit the drops from root that were seen, and tell once of each agent that may not be touched."""
        for agent in self._fleet:
            if agent.owner.dropping is not None:
                await self._hearing.follow(agent, self._store)
            self._tidings.untouchable(agent)

    # -- judge -----------------------------------------------------------------------------------------------------

    def _judge(self, agent: Agent, presence: Presence, now: Instant) -> Look | None:
        """A look at one agent, or None when it is closed or being ended, or its judging failed (said once)."""
        silence, ages, said = agent.heartbeat.silence, agent.heartbeat.ages, agent.heartbeat.said
        if agent.status in (Status.ENDING, Status.UNKILLABLE) or self._fleet.get(agent.agent_id) is not agent:
            return None
        try:
            agent.judged.saw(presence)
            judgement = judge(judging.observe(agent, presence, now.mono, self._interval), agent.policy)
            self._tidings.judged(agent, judgement)
            self._climbing.look(agent, judgement)
            judging.remember(agent, judgement, now.mono, self._interval)
        except Exception as error:  # noqa: BLE001 - one agent's bad data must not stop the sweep of the others
            if agent.told.first("sweep.failed"):
                self._log.event("sweep.failed", exc_info=error, agent_id=agent.agent_id, name=agent.reg.name)
            return None
        user = self.restraint.user_of(agent.reg.owner_uid)
        return Look(
            agent_id=agent.agent_id,
            judgement=judgement,
            policy=agent.policy,
            owner=user,
            promised=said.promised and not silence.hindrance.channel_lost and agent.owner.elsewhere is None,
            witness=None if agent.owner.elsewhere is not None else witness(agent.heartbeat, user),
            silence=silence.counted,
            state=said.state,
            state_age=ages.state_age,
            doomed_for=timedelta(
                seconds=0 if agent.judged.doomed_since is None else now.mono - agent.judged.doomed_since
            ),
            requested=agent.ending.request_id is not None,
            held=self._holds.reason_for(agent.agent_id, now.wall),
            rung=agent.ladder.rung,
            rung_age=ages.age - agent.ladder.at,
        )

    async def _end_holds(self, now: Instant) -> None:
        """Say and write down that the time of an operator's hold is over."""
        for row in self._holds.moved():
            with suppress(RegistryUnavailable):
                await self._store.write(self._store.store.move_hold, row.id, row.until_at)
        for row in self._holds.expire(now.wall):
            self._log.event("hold.ended", reason="operator", why=f"its time is over: {row.reason}", hold=row.id)
            with suppress(RegistryUnavailable):  # it is over by its own time, also for a later daemon
                await self._store.write(self._store.store.end_hold, row.id, now.wall)

    # -- decide and tell -----------------------------------------------------------------------------------------

    async def _decide(self, looks: list[Look], limits: Limits) -> None:
        for decision in decide(looks, limits):
            if not await self._apply(decision):
                break  # the registry failed meanwhile: the next sweep decides anew

    async def _apply(self, decision: Decision) -> bool:
        """Do what was decided of one agent. False when the registry takes no order."""
        agent = self._fleet.get(decision.agent_id)
        if agent is None:
            return True
        match decision.action:
            case Action.REQUEST_KILL:
                return await self._request(agent, decision)
            case Action.CLIMB if decision.rung is not None:
                return await self._climb(agent, decision.rung, decision.text)
            case Action.HOLD:
                self._held(agent, decision.veto or Veto.OPERATOR, decision.text)
            case Action.NOTIFY if agent.heartbeat.said.state is State.WAITING:
                self._tidings.needs_human(agent, decision.text)
            case Action.NOTIFY:
                self._tidings.once(agent, f"notify {agent.judged.verdict}", "agent.told", decision.text)
            case Action.KEEP | Action.CLIMB:
                pass
        return True

    async def _climb(self, agent: Agent, step: Step, text: str) -> bool:
        """A step that ends nobody. False when the registry does not take it."""
        if self.settings.observe and step is not Step.WARN:
            self._tidings.once(agent, f"observe {step}", "kill.observed", f"would {step} it: {text}")
            return True
        try:
            await self._climbing.climb(agent, step, text)
        except RegistryUnavailable as error:
            self._held(agent, Veto.REGISTRY, str(error))
            return False
        return True

    async def _request(self, agent: Agent, decision: Decision) -> bool:
        reason = decision.reason or Reason.STALLED
        if self.settings.observe and reason is not Reason.GONE:
            self._tidings.once(agent, f"observe {reason}", "kill.observed", f"would kill it: {decision.text}")
            return True
        try:
            options = asked_first(decision, agent.policy)
            if agent.owner.elsewhere is not None:
                options = replace(options, cleanup=False)  # its daemon does that
            await self._worker.request(agent, reason, options, "daemon", decision.text, agent.judged.renewed_judged)
        except RegistryUnavailable as error:
            self._held(agent, Veto.REGISTRY, str(error))
            return False
        except RowRemoved as error:  # as with a row that was closed: who took it away wants no more of it
            self._log.event("row.quarantined", agent_id=agent.agent_id, name=agent.reg.name, why=str(error))
            self._hearing.forget(agent)
            return True
        except Conflict:
            return True  # one is open in the registry that we do not know of: `service.recovery` finds it
        if reason is not Reason.GONE:
            self.restraint.killed(agent, silent=reason in SILENT)
            self.account.requested()
        return True

    def _held(self, agent: Agent, veto: Veto, text: str) -> None:
        """Once for each kind; what an operator gives as his reason may change, the count of a mass stall does."""
        kind = f"held {veto} "
        if self._tidings.once(agent, f"{kind}{text if veto is Veto.OPERATOR else ''}", "kill.held", text, kind):
            self.account.held(veto)
