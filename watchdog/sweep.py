"""One sweep: observe -> judge -> decide -> record, for every agent. `Sweeper.sweep` is the whole story on one screen.

A sweep never waits for an agent, a file or a hook: beats and exits are in memory or one poll away, heartbeat files are
read by the owners' helpers beside it, kills run elsewhere. What fails for one agent is bound to that agent.
"""

import asyncio
import select
from collections import deque
from contextlib import suppress

from watchdog.account import Account
from watchdog.activity import seen_doing
from watchdog.beat_files import BeatFiles
from watchdog.chronicle import Chronicle
from watchdog.clock import Clock, Instant
from watchdog.config import Settings
from watchdog.core.decision import Action, Decision, Limits, Look, Veto, decide, mass_stall
from watchdog.core.model import KillOptions, Presence, Reason, State, Status, Verdict
from watchdog.core.verdict import Judgement, judge
from watchdog.errors import Conflict, RegistryUnavailable
from watchdog.fleet import Agent, Fleet
from watchdog.hearing import Hearing
from watchdog.holds import Holds
from watchdog.kill_worker import KillWorker
from watchdog.logs import Log
from watchdog.metrics import Metrics
from watchdog.processes.identity import presence
from watchdog.recording import Recorder
from watchdog.registry.store import AsyncStore
from watchdog.scan import Scanner

SCAN_EVERY = 60.0  # seconds; a scan of 2,000 processes takes 50 to 100 ms


class Sweeper:
    """Looks at everybody. One instance, one sweep at a time (`lock`)."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        store: AsyncStore,
        clock: Clock,
        settings: Settings,
        hearing: Hearing,
        beat_files: BeatFiles,
        scanner: Scanner,
        holds: Holds,
        worker: KillWorker,
        chronicle: Chronicle,
        recorder: Recorder,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._fleet = fleet
        self._store = store
        self._clock = clock
        self._hearing = hearing
        self._beat_files = beat_files
        self._scanner = scanner
        self._holds = holds
        self._worker = worker
        self._chronicle = chronicle
        self._recorder = recorder
        self._log = log
        self.settings = settings
        self._last: float | None = None
        self._scanned = float("-inf")
        self._own_kills: deque[float] = deque()
        self.mass_since: float | None = None
        self.account = Account(fleet, clock, metrics, log)
        self.lock = asyncio.Lock()
        self.took = 0.0  # seconds, the last sweep

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
            began = self._clock.now()
            self._hearing.sockets.drain_all()
            self.reckon()
            for agent in self._fleet:
                self._hearing.follow_owner(agent)
            self._beat_files.look()
            present = self._presence()
            await self._scan_if_needed(began.mono, present)
            # Who registered while we looked is judged by the next sweep.
            seen = [agent for agent in self._fleet if agent.agent_id in present]
            looks = [look for agent in seen if (look := self._judge(agent, present, began))]
            recorded = await self._recorder.record(self._interval)
            self.account.recorded(recorded)
            for decision in decide(looks, await self._limits(looks, began, recorded)):
                if not await self._apply(decision):
                    break  # the registry failed meanwhile: the next sweep decides anew
            self.account.swept(began, self._interval)
            self.took = self._clock.mono() - began.mono

    def next_deadline(self) -> float:
        """Seconds until the next agent's silence could become too long: the next look may come that much sooner."""
        left = (
            (a.after - a.silence + a.lease_left).total_seconds()
            for a in self._fleet
            if a.promised and a.verdict is Verdict.HEALTHY
        )
        return max(0.0, min((s for s in left if s >= 0), default=self._interval))

    # -- observe -------------------------------------------------------------------------------------------------

    def reckon(self) -> None:
        """Reckon watched time: at most two intervals, however long we were away (suspended, stopped, starved)."""
        now = self._clock.mono()
        last, self._last = self._last, now
        if last is None:
            return
        if now - last > 3 * self._interval:
            self._log.event("clock.gap", seconds=round(now - last, 1), counted=2 * self._interval)
        for agent in self._fleet:
            agent.watch(last, now, 2 * self._interval)

    def _presence(self) -> dict[str, Presence]:
        """What the kernel says of each main process: one poll for all pidfds, a look at /proc for the rest."""
        poller = select.poll()
        pinned = {a.pidfd: a for a in self._fleet if a.pidfd is not None}
        for descriptor in pinned:
            poller.register(descriptor, select.POLLIN)
        ended = {descriptor for descriptor, _ in poller.poll(0)}
        present = {}
        for agent in self._fleet:
            if agent.identity is None:
                present[agent.agent_id] = Presence.NO_PID
            elif agent.pidfd is not None and agent.pidfd not in ended:
                present[agent.agent_id] = Presence.ALIVE
            else:
                present[agent.agent_id] = presence(agent.identity, agent.pidfd)
        return present

    async def _scan_if_needed(self, now: float, present: dict[str, Presence]) -> None:
        """One /proc scan: once a minute, and when somebody may be late and activity must be known."""
        late = any(a.silent and present[a.agent_id] is Presence.ALIVE for a in self._fleet)
        # What a tree used is measured over an interval: in the blink between two looks that an exit or a deadline
        # called for, no clock tick (10 ms) falls, and a busy agent looks idle.
        if not len(self._fleet) or now - self._scanned < (0.9 * self._interval if late else SCAN_EVERY):
            return
        elapsed, self._scanned = now - self._scanned, now
        try:
            await self._scanner.trees()
        except OSError as error:
            self.account.scanned(error)
            return
        self.account.scanned(None)
        for agent in self._fleet:
            agent.activity = seen_doing(agent, self._fleet, elapsed)

    # -- judge -----------------------------------------------------------------------------------------------------

    def _judge(self, agent: Agent, present: dict[str, Presence], now: Instant) -> Look | None:
        """A look at one agent, or None when it is being ended or its judging failed (said once)."""
        if agent.status in (Status.ENDING, Status.UNKILLABLE):
            return None
        try:
            judgement = judge(agent.observe(present[agent.agent_id], now.mono, self._interval), agent.policy)
            self._tell(agent, judgement)
            agent.judged(judgement, now.mono, self._interval)
        except Exception as error:  # noqa: BLE001 - one agent's bad data must not stop the sweep of the others
            if "sweep.failed" not in agent.said:
                agent.said.add("sweep.failed")
                self._log.event("sweep.failed", exc_info=error, agent_id=agent.agent_id, name=agent.reg.name)
            return None
        return Look(
            agent_id=agent.agent_id,
            judgement=judgement,
            policy=agent.policy,
            promised=agent.promised,
            silence=agent.silence,
            state=agent.state,
            state_age=agent.state_age,
            requested=agent.request_id is not None,
            held=self._holds.reason_for(agent.agent_id, now.wall),
        )

    async def _end_holds(self, now: Instant) -> None:
        """Say and write down that the time of an operator's hold is over."""
        for row in self._holds.expire(now.wall):
            self._log.event("hold.ended", reason="operator", why=f"its time is over: {row.reason}", hold=row.id)
            with suppress(RegistryUnavailable):  # it is over by its own time, also for a later daemon
                await self._store.write(self._store.store.end_hold, row.id, now.wall)

    async def _limits(self, looks: list[Look], now: Instant, recorded: bool) -> Limits:
        await self._end_holds(now)
        while self._own_kills and now.mono - self._own_kills[0] >= 60:
            self._own_kills.popleft()
        hold, hold_by = self._holds.reason_for(None, now.wall), Veto.OPERATOR
        if not recorded:
            hold, hold_by = "the registry cannot be written", Veto.REGISTRY
        return Limits(
            hold=hold,
            hold_by=hold_by,
            mass=self._mass(looks, now.mono),
            budget=max(0, self.settings.kill.max_per_minute - len(self._own_kills)),
        )

    def _mass(self, looks: list[Look], now: float) -> str | None:
        """The mass stall that holds kills back, said once when it begins and ends, and believed for `max_seconds`."""
        hold = self.settings.hold
        mass = mass_stall(looks, hold.mass_stall_count, hold.mass_stall_fraction)
        if mass is not None and self.mass_since is None:
            self.mass_since = now
            self._log.event("hold.started", reason="mass_stall", why=mass)
        elif mass is None and self.mass_since is not None:
            self.mass_since = None
            self._log.event("hold.ended", reason="mass_stall")
        if self.mass_since is not None and now - self.mass_since >= hold.max_seconds:
            return None
        return mass

    # -- decide and tell -----------------------------------------------------------------------------------------

    async def _apply(self, decision: Decision) -> bool:
        """Do what was decided of one agent. False when the registry takes no order."""
        agent = self._fleet.get(decision.agent_id)
        if agent is None:
            return True
        match decision.action:
            case Action.REQUEST_KILL:
                return await self._request(agent, decision)
            case Action.HOLD:
                self._held(agent, decision.veto or Veto.OPERATOR, decision.text)
            case Action.NOTIFY if agent.state in (State.WAITING, State.BLOCKED):
                self._once(agent, "agent.needs_human", "agent.needs_human", decision.text)
            case Action.NOTIFY:
                self._once(agent, f"notify {agent.verdict}", "agent.told", decision.text)
            case Action.KEEP:
                pass
        return True

    async def _request(self, agent: Agent, decision: Decision) -> bool:
        reason = decision.reason or Reason.STALLED
        if self.settings.observe and reason is not Reason.GONE:
            self._once(agent, f"observe {reason}", "kill.observed", f"would end it: {decision.text}")
            return True
        try:
            await self._worker.request(agent, reason, KillOptions(), "daemon", decision.text, agent.beats_judged)
        except RegistryUnavailable as error:
            self._held(agent, Veto.REGISTRY, f"held: {error}")
            return False
        except Conflict:
            return True  # one is open in the registry that we do not know of: `takeup` finds it
        if reason is not Reason.GONE:
            self._own_kills.append(self._clock.mono())
            self.account.requested()
        return True

    def _tell(self, agent: Agent, judgement: Judgement) -> None:
        """One log line per change of verdict; what was said of the former condition may be said again later.

        Late, seen doing something, and late again is one spell of silence: told once, until a beat ends it.
        """
        if judgement.verdict is agent.verdict:
            return
        former = agent.verdict
        if not {former, judgement.verdict} <= {Verdict.LATE, Verdict.STALLED}:
            agent.said.clear()
        event = {
            Verdict.LATE: "agent.channel_lost" if agent.channel_lost else "agent.late",
            Verdict.STALLED: "agent.stalled",
            Verdict.UNKNOWN: "agent.unknown",
            Verdict.EXPIRED: "agent.expired",
            Verdict.LINGERING: "agent.lingering",
            Verdict.WAITING: "agent.waiting",
        }.get(judgement.verdict)
        if judgement.verdict is Verdict.HEALTHY and former in (Verdict.LATE, Verdict.STALLED, Verdict.UNKNOWN):
            event = "agent.recovered"
        if event is not None:
            self._once(agent, event, event, judgement.line)

    def _once(self, agent: Agent, key: str, event: str, text: str) -> bool:
        if key in agent.said:
            return False
        agent.said.add(key)
        self._chronicle.tell(event, agent, text)
        return True

    def _held(self, agent: Agent, veto: Veto, text: str) -> None:
        """Once for each kind; what an operator gives as his reason may change, the count of a mass stall does."""
        if self._once(agent, f"held {veto} {text if veto is Veto.OPERATOR else ''}", "kill.held", text):
            self.account.held(veto)
