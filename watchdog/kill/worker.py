"""The kill worker: durable orders, each for one agent, from the request to the closed row.

    request -> ask -> claim (drain, compare-and-set, one more look at the beats) -> terminate: the tree is dead, proved
            -> close: cleanup hooks -> task row -> our row, last

Each step is committed before it is taken, and taking it again is harmless, so a daemon that died at any step continues
the order after its restart (`resume`). Many orders run at once; each waits on pidfds, not in a thread.
"""

import asyncio
import os
import resource
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.history import EventRecorder
from watchdog.clock import Clock
from watchdog.concurrency.lanes import Lane, Turns, enter, lane
from watchdog.config.settings import Settings
from watchdog.core.agent import Status
from watchdog.core.kill import KillOptions, KillStep, Polite, Reason, Step
from watchdog.core.process import TreeMember
from watchdog.errors import Conflict, RegistryUnavailable, WatchdogError
from watchdog.helpers.users import Users
from watchdog.kill.ask import StopRequest, grace_after
from watchdog.kill.claim import STARTED_US, BeatArrived, Claim, Claimed, Withdrawn, started_us
from watchdog.kill.close import NOT_ENDED, Close, NotOurs, survivors_outcome
from watchdog.kill.evidence import EvidenceCollector
from watchdog.kill.order import (
    ASKING,
    AUTOMATIC,
    BEFORE_SIGNALS,
    STOPPING,
    Json,
    KillOrder,
    KillOutcome,
    KillProgress,
    OpenOrder,
    OutcomeWaiters,
    from_json,
    member_of,
    result_of,
    to_json,
    withdrawn,
)
from watchdog.kill.pinned_tree import until_gone
from watchdog.kill.terminate import Grace, TerminationPlan, TerminationResult, TreeTermination
from watchdog.probes.process_scan import ProcessScanner
from watchdog.processes.signals import Guard
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.rows import Proof, RequestRow
from watchdog.telemetry import logger

OBSERVES = 'the daemon only observes (mode = "observe"): it kills nothing'
DEAD = frozenset({Reason.GONE, Reason.LOST})  # observe mode closes their rows, and sends no signals, runs no hooks
BACK_OFF = (5.0, 15.0, 60.0, 300.0, 900.0)  # seconds between attempts at what cannot be killed
MOST_LOGGED, LONGEST_LOGGED = 1000, 100  # things that are logged of one order, and characters of each that are kept
MOST_SURVIVOR_ROWS = 20  # rows of history for what one order could not kill, whatever changes with each attempt


@dataclass(frozen=True, slots=True)
class KillStages:
    """The parts that an order passes through: it is asked, claimed, ended and closed. None of them knows another."""

    evidence: EvidenceCollector
    ask: StopRequest
    claim: Claim
    fleet: Fleet  # knows the processes that must not be signalled
    scanner: ProcessScanner  # looks for the processes of the tree
    close: Close


class KillWorker:
    """Runs kill orders; nothing else in the daemon kills an agent."""

    def __init__(
        self,
        settings: Settings,
        registry: AsyncRegistry,
        clock: Clock,
        stages: KillStages,
        recorder: EventRecorder,
        users: Users,
    ) -> None:
        """`users` says for which user an agent's kill counts."""
        self._registry = registry
        self._clock = clock
        self._stages = stages
        self._recorder = recorder
        self.observe = settings.observe
        self._users = users
        self.set_parallelism(settings.kill.parallel)
        self._runs: dict[str, OrderRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def set_parallelism(self, parallel: int) -> None:
        """How many kills run at once; fewer if descriptors are few, since each kill holds one for every process.

        One user has three quarters of the slots at most; what root or an admin orders begins at once. Orders that wait
        for a former slot still get it.
        """
        self._parallel = parallel
        most = max(1, min(parallel, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self.slots = Turns(most, most - most // 4)

    def apply(self, settings: Settings) -> None:
        """Use these from now on. In observe mode a kill that has begun is finished, and no other attempt begins."""
        self.observe = settings.observe
        if settings.kill.parallel != self._parallel:
            self.set_parallelism(settings.kill.parallel)
        for run in self._runs.values():
            run.opened.observe(OBSERVES if self.observe and run.opened.order.reason not in DEAD else None)

    async def scan(self) -> None:
        """Look at every tree again, to show what would be killed; if /proc cannot be read, the last scan counts."""
        with suppress(OSError):
            await self._stages.scanner.trees()

    async def request(
        self, agent: Agent, reason: Reason, options: KillOptions, by: str, why: str = "", beats: int | None = None
    ) -> str:
        """Commit an order to kill one agent and start on it; returns its id.

        `beats`: the agent's `Rhythm.renewed` (beats that speak against a stall) at the decision; None: now. If it rises
        before the first signal, a kill for a stall is withdrawn. At most one order is open for each agent: a second
        request is merged into it. Raises Conflict in observe mode, and for an agent that is an ancestor of this daemon.
        """
        beats = agent.heartbeat.rhythm.renewed if beats is None else beats
        if by == "daemon" and agent.reg.dropped:  # root started it and had it watched: all of it is killed
            options = replace(options, by_root=True)
        if self.observe and reason not in DEAD:
            raise Conflict(OBSERVES)
        if started_us(agent):
            raise Conflict(f"{agent.reg.name}: {STARTED_US}; kill it from outside, or start the daemon elsewhere")
        async with agent.ending.ordering:  # one request at a time for each agent: look for an open order, then commit
            if agent.ending.request_id is not None:
                if run := self._runs.get(agent.ending.request_id):  # else it is done, and `finished` has its outcome
                    await self._merge(run, reason, options, by, why)
                return agent.ending.request_id
            event = "agent.gone" if reason in DEAD else "kill.requested"  # nothing to kill, except perhaps leftovers
            if reason in DEAD and agent.reported.first(event):  # a fact, no act: its line does not wait for the commit
                with logger.caused_by(agent.reg.owner_uid):
                    self._recorder.logger_of(agent).event(event, reason=reason, by=by, why=why)
            request_id = secrets.token_hex(8)
            opened = await self._registry.write(
                self._registry.kills.open_request,
                request_id,
                agent.agent_id,
                reason,
                by=by,
                now=self._clock.now().wall,
                identity=agent.identity,
                options=to_json(options, beats, why, finished=agent.heartbeat.said.finished),
                why=why,
                owner_uid=agent.reg.owner_uid,
                event=event,
            )
            if not opened:
                words = "one that the log reports as row.quarantined must be repaired or deleted first"
                raise Conflict(f"{agent.reg.name} already has an open kill request ({words})")
            order = KillOrder(
                request_id, agent, reason, options, by, why, beats, finished=agent.heartbeat.said.finished
            )
            if reason is Reason.ORPHANED:
                self._stages.scanner.look_also_for({agent.agent_id: agent})
            self._begin(OpenOrder(order))
        if reason not in DEAD:
            self._recorder.logger_of(agent).event(event, request_id=order.request_id, reason=reason, by=by, why=why)
        return order.request_id

    async def _merge(self, run: "OrderRun", reason: Reason, options: KillOptions, by: str, why: str) -> None:
        """A second request for an agent whose order is open."""
        if lane().user is None:
            run.lane.leave()  # root or the daemon wants it too: it no longer waits in the lane of its user
        stored = run.opened.merge_request(reason, options, by, why)
        if stored is not None:
            change, order = self._registry.kills.change_request, run.opened.order
            await self._registry.write(change, order.request_id, order.reason, order.by, stored)

    def resume(self, row: RequestRow, agent: Agent, *, lost: bool = False) -> None:
        """Continue an order that an earlier daemon left; `lost`: in another boot, so that no process is left."""
        options, beats, why = from_json(row.options)
        progress = KillProgress.of_row(row, self._clock.mono())
        finished = row.options.get("finished")
        asked = progress.step is KillStep.REQUESTED
        finished = agent.heartbeat.said.finished if finished is None and asked else finished is True
        dead = progress.step is KillStep.CLEANUP
        reason, why = (Reason.LOST, "its host was restarted") if lost and not dead else (row.reason, why)
        order = KillOrder(
            row.request_id,
            agent,
            reason,
            options,
            row.by,
            why,
            beats,
            finished=finished,
            resumed=True,
            former=row.claimed_by,
        )
        self._begin(OpenOrder(order, progress, OutcomeWaiters(progress.outcome if dead else None)))
        self._recorder.logger_of(agent).event("kill.resumed", request_id=order.request_id, step=row.step or "requested")

    def cancel_automatic(self, agent: Agent, why: str) -> None:
        """Withdraw the daemon's own order if no signal was sent yet: its silence may be our fault, or excused."""
        run = self._runs.get(agent.ending.request_id or "")
        if run is not None and run.opened.order.reason in AUTOMATIC and run.opened.progress.step in ASKING:
            run.opened.cancel(why)

    def resume_stopped(self, row: RequestRow, agent: Agent) -> None:
        """Continue processes that an earlier daemon stopped or froze: in observe mode the order waits."""
        self._stages.claim.resume_stopped(agent, KillStep.of(row.step), map(member_of, row.members))

    async def finished(self, request_id: str, timeout: float, cleanup: float | None = None) -> Json | None:
        """The outcome of an order, or None when it is not done within `timeout` seconds.

        `cleanup`: how many seconds to wait for the hooks once the tree is proved dead. After that the outcome so far is
        returned, with the hooks that are left (`cleanup_left`).
        Once the order is done it is read from the registry: it has 15 KB and more, and may never be asked for.
        """
        if run := self._runs.get(request_id):
            return await run.opened.waiters.wait(timeout, cleanup)
        with suppress(WatchdogError):  # the registry is unavailable, or the row is damaged
            row = await self._registry.read(self._registry.kills.request, request_id)
            return None if row is None else result_of(row)
        return None

    @property
    def busy(self) -> int:
        """How many orders are open."""
        return len(self._runs)

    async def close(self) -> None:
        """Stop between two steps. Open orders continue after the next start; all that wait get "not yet"."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for run in self._runs.values():
            run.opened.waiters.leave()

    # -- one order -----------------------------------------------------------------------------------------------

    def _begin(self, opened: OpenOrder) -> None:
        order = opened.order
        agent = order.agent
        wanted = "" if order.by == "daemon" else f"being killed, as {order.by} wants: {order.why}"
        agent.ending.begin(order.request_id, wanted)
        run = OrderRun(opened, self._stages, self._registry, self._clock, self._recorder, Lane(lane().user))
        self._runs[order.request_id] = run
        with logger.caused_by(agent.reg.owner_uid if order.reason in DEAD else logger.cause()):  # it ended by itself
            task = asyncio.create_task(self._run(run), name=f"kill {agent.agent_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, run: "OrderRun") -> None:
        """Repeat attempts until one gives an outcome. An error stays this order's: log it, wait, try again."""
        enter(run.lane)
        opened, outcome = run.opened, None
        agent, request_id = opened.order.agent, opened.order.request_id
        for attempt in range(1_000_000):
            pause = BACK_OFF[min(attempt, len(BACK_OFF) - 1)]
            try:
                if (outcome := await self._attempt(run)) is not None:
                    break
            except RegistryUnavailable as error:
                pause = BACK_OFF[0]  # however long it was unavailable: the order continues as soon as it is back
                if run.first_time("waiting"):
                    self._recorder.logger_of(agent).event("kill.waiting", request_id=request_id, why=str(error))
            except Exception as error:  # noqa: BLE001 - one kill's failure must stay this kill's
                if run.first_time(repr(error)):
                    self._recorder.logger_of(agent).event("kill.failed", exc_info=error, request_id=request_id)
            await until_gone(() if opened.observed else opened.progress.result.alive, opened.again, pause)
        self._runs.pop(request_id, None)
        if opened.order.reason is Reason.ORPHANED:
            self._stages.scanner.look_no_more_for([agent.agent_id])
            agent.ending.over()
        opened.waiters.tell(outcome or withdrawn(agent.agent_id))

    async def _attempt(self, run: "OrderRun") -> KillOutcome | None:
        """One attempt, from the last committed step; None when something of the tree lives on: then it is repeated.

        1. Ask the agent to exit, if the order says so.
        2. Claim it, unless a beat withdraws the order. An agent that has exited by itself is claimed as gone.
        3. Kill the tree and prove it dead.
        4. Hooks, task, row; for orphans none of these, since their agent's row is closed.
        """
        opened, stages = run.opened, self._stages
        agent, progress = opened.order.agent, opened.progress
        orphans = opened.order.reason is Reason.ORPHANED
        if progress.step is not KillStep.CLEANUP:
            if progress.conversation is None and not orphans:
                progress.keep_conversation(await stages.evidence.conversation(agent))
            if opened.order.options.ask is not None:
                asked = await stages.ask.ask(opened, run)
                opened.become(grace_after(asked, opened.order))
                opened.refuse(asked.refused)
            async with self.slots.turn(None if run.urgent else self._users.user_of(agent.reg.owner_uid)):
                if opened.observed and opened.under_way:
                    return None
                claim = stages.claim.claim_orphans if orphans else stages.claim.claim
                match await claim(opened):
                    case Withdrawn() as called_off:
                        return await run.withdraw(called_off)
                    case Claimed(order):
                        opened.become(order)
                try:
                    result = TerminationResult() if self._left_alone(opened.order) else await run.end_tree()
                except BeatArrived as beat:
                    return await run.withdraw(await stages.claim.withdraw(opened, str(beat)))
            progress.add_attempt(result)
            if result.reason is not None:
                await run.survived()
                return None
        if orphans:
            return await stages.close.close_orphans(opened.order, progress)
        try:
            if progress.step is not KillStep.CLEANUP:
                stages.evidence.catch_up(agent)
                progress.keep_outcome(await stages.close.build_outcome(opened.order, progress))
            assert progress.outcome is not None, "its row would not have been read"
            progress.keep_outcome(await stages.close.clean_up(opened.order, progress, progress.outcome, run))
            await stages.close.close(opened.order, progress, progress.outcome)
        except NotOurs:
            if not await stages.close.forget_if_closed(agent):
                agent.ending.over()
        return progress.outcome or withdrawn(agent.agent_id)

    def _left_alone(self, order: KillOrder) -> bool:
        """Whether no signal is sent: no process is left, we only observe, or the agent is not ours to kill."""
        agent = order.agent
        not_ours = agent.reg.told_of and Step.KILL not in agent.policy.ladder
        not_ours = not_ours or agent.owner.elsewhere is not None
        return order.reason is Reason.LOST or (order.reason is Reason.GONE and (self.observe or not_ours))


class OrderRun:
    """One order in work: ends its tree, commits its steps, and logs what is done (`AskLog`, `KillLog`, `CloseLog`).

    Attempts repeat themselves, so each thing is logged once.
    """

    def __init__(
        self,
        opened: OpenOrder,
        stages: KillStages,
        registry: AsyncRegistry,
        clock: Clock,
        recorder: EventRecorder,
        user_lane: Lane,
    ) -> None:
        """`user_lane`: of the user for which the work is done."""
        self.opened = opened
        self.lane = user_lane
        self._stages = stages
        self._registry = registry
        self._clock = clock
        self._recorder = recorder
        agent, request_id = opened.order.agent, opened.order.request_id
        self._log = recorder.logger_of(agent).bind(request_id=request_id)
        self._survivor_rows = 0  # rows of history on what could not be killed
        # That it is unkillable was logged before its row got that status.
        self._logged = {"unkillable"} if opened.order.resumed and agent.status is Status.UNKILLABLE else set[str]()

    @property
    def urgent(self) -> bool:
        """Whether root or an admin ordered it: it waits for no turn."""
        return self.lane.user is None and self.opened.order.by != "daemon"

    def first_time(self, words: str) -> bool:
        """Whether this was not logged of it yet; False, too, when a thousand other things were."""
        key = words if len(words) < LONGEST_LOGGED else f"{words[:LONGEST_LOGGED]} {hash(words)}"
        if key in self._logged or len(self._logged) >= MOST_LOGGED:
            return False
        self._logged.add(key)
        return True

    async def end_tree(self) -> TerminationResult:
        """End the tree, as far as one attempt can."""
        order, progress, agent = self.opened.order, self.opened.progress, self.opened.order.agent
        self.opened.hurry.clear()
        plan = TerminationPlan(
            agent_id=agent.agent_id,
            main=agent.identity,
            grace=agent.policy.grace if order.options.grace is None else order.options.grace,
            verify=agent.policy.verify,
            polite=Polite.ALL if order.reason is Reason.GONE else agent.policy.polite,
            force=order.options.force,
            cgroup=agent.reg.own_cgroup,
            main_pidfd=agent.tree.pidfd,
            begun=progress.step not in BEFORE_SIGNALS,
            stopped=progress.members if progress.step in STOPPING else (),
            termed=progress.grace,
            hurry=self.opened.hurry,
        )
        progress.plan(plan.grace)
        # What an earlier daemon knew of the tree is remembered; the next scan sorts out what still belongs to it.
        known = {member.identity for member in agent.tree.members}
        agent.tree.remember(tuple(member for member in progress.members if member.identity not in known))
        return await TreeTermination(plan, self._stages.scanner, self._clock, self._guard, self).run()

    def _guard(self) -> Guard:
        """What must not be signalled, as of now; asked before each round of signals."""
        order = self.opened.order
        guard = self._stages.fleet.guard(order.agent, order.agent.reg.host)
        return replace(guard, sender=order.sender, last_look=self._last_look)

    def _last_look(self) -> None:
        """Right before each signal. From the first one on, no beat withdraws the order. Raises BeatArrived."""
        self._stages.claim.raise_if_beat_arrived(self.opened)
        self.opened.progress.begin()

    async def survived(self) -> None:
        """Something lives on: log that once, and tell those that wait for the outcome."""
        opened = self.opened
        agent, progress = opened.order.agent, opened.progress
        outcome = survivors_outcome(opened.order, progress.result)
        lives_on = outcome.message.removeprefix(NOT_ENDED)
        if self.first_time("unkillable"):
            self._log.event("kill.unkillable", why=lives_on)
        same = progress.outcome is not None and outcome.message == progress.outcome.message
        news = not same and self._survivor_rows < MOST_SURVIVOR_ROWS and self.first_time(outcome.message)
        self._survivor_rows += news
        progress.keep_outcome(outcome)
        agent.ending.survived(lives_on)
        try:
            if news:
                await self._save(progress.step, outcome.json())
            if news or agent.status is not Status.UNKILLABLE:
                await self._stages.close.mark_unkillable(agent, lives_on)
        finally:
            opened.waiters.tell(outcome)

    async def withdraw(self, called_off: Withdrawn) -> KillOutcome:
        """Withdraw the order; its agent keeps running."""
        order, close = self.opened.order, self._stages.close
        if called_off.closed:  # first: as soon as the order is gone the next sweep may give another
            await close.forget_if_closed(order.agent)
        return await close.withdraw(order, self.opened.progress, called_off.why)

    # -- called by the stages: see `AskLog`, `KillLog` and `CloseLog`

    async def asking(self, step: KillStep) -> bool:
        order, progress = self.opened.order, self.opened.progress
        save, kept = self._registry.kills.save_step, progress.kept or None
        saved = await self._registry.write(save, order.request_id, step.value, by=order.holders, evidence=kept)
        if saved:
            progress.asked(step)
        return saved

    async def before_signal(self, step: KillStep, members: list[TreeMember], snapshot: Json | None) -> None:
        order, progress = self.opened.order, self.opened.progress
        self._stages.claim.raise_if_beat_arrived(self.opened)
        progress.intend(step, tuple(members))
        if progress.is_stopping:
            return
        if snapshot is not None:  # it goes with the first intent, or with the proof if there is nothing to signal
            said = await self._stages.evidence.collect(order.agent)
            progress.keep_evidence(snapshot, said)
        elif not await self._save(step):
            raise Conflict(f"kill request {order.request_id} belongs to another daemon now: nothing is signalled")

    def signalled(self, name: str, pids: list[int]) -> None:
        order = self.opened.order
        main = order.agent.identity
        self.opened.progress.signalled(name, main=main is not None and main.pid in pids and name != "SIGSTOP")
        if self.first_time(f"{name} {pids}"):
            why = f"{name} to {len(pids)} process{'' if len(pids) == 1 else 'es'}"
            facts = {"request_id": order.request_id, "pids": pids[:64]}
            self._recorder.record("kill.signal_sent", order.agent, why, f"daemon {os.getpid()}", facts)

    def refused(self, pid: int, why: str) -> None:
        if self.first_time(f"refused {pid} {why}"):
            self._log.event("kill.refused", pid=pid, why=why)

    async def grace_started(self, grace: Grace) -> None:
        progress = self.opened.progress
        with suppress(RegistryUnavailable):
            await self._save(progress.step, progress.grace_json(grace))

    async def proved(self, outcome: KillOutcome, proof: Proof | None) -> bool:
        saved = await self._save(KillStep.CLEANUP, outcome.json(), proof)
        if saved:  # not before: an attempt that finds this step only runs the hooks, and logs no more of the end
            self.opened.waiters.prove(outcome)
        return saved

    def cleaned(self, cleaned: list[Json], cleaning: tuple[str, ...]) -> None:
        self.opened.waiters.clean(cleaned, cleaning)

    async def _save(self, step: KillStep, outcome: Json | None = None, proof: Proof | None = None) -> bool:
        """Commit a step, with the outcome so far and whatever else its row lacks. False: done, or another daemon's."""
        order, progress = self.opened.order, self.opened.progress
        more = {"by": order.holders, "outcome": outcome, "proof": proof, **progress.unsaved}
        saved = await self._registry.write(self._registry.kills.save_step, order.request_id, step.value, **more)
        if saved:
            progress.saved(step)
        return saved
