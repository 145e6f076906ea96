"""The kill worker: a durable order for one agent, from the claim to the closed row.

    request -> claim (drain, compare-and-set, one more look at the beats) -> end the tree, proved
            -> cleanup hooks -> task row -> our row, last

Each step is committed before it is done, and doing it again is harmless, so a daemon that died at any step finishes
the same story after its restart (`resume`). Many orders run at once; each waits on pidfds, not on a thread.
"""

import asyncio
import resource
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from watchdog.agents.fleet import Agent
from watchdog.agents.history import EventRecorder
from watchdog.agents.holds import Holds
from watchdog.agents.tracker import AgentTracker
from watchdog.clock import Clock
from watchdog.concurrency.lanes import Lane, Turns, enter, lane
from watchdog.core.conversations import conversation_of
from watchdog.core.kill import KillOptions, KillStep, Reason, Step
from watchdog.core.process import TreeMember
from watchdog.errors import Conflict, RegistryUnavailable, WatchdogError
from watchdog.helpers.pool import HelperPool
from watchdog.kill.ask import StopRequest
from watchdog.kill.claim import STARTED_US, BeatArrived, Claim, started_us
from watchdog.kill.close import Close, NotOurs, Telling
from watchdog.kill.evidence import collect_evidence
from watchdog.kill.order import ASKING, AUTOMATIC, STOPPING, Order, from_json, member_of, to_json
from watchdog.kill.outcome import result_of, withdrawn
from watchdog.kill.pinned_tree import until_gone
from watchdog.kill.terminate import TerminationResult, TreeTermination
from watchdog.probes import conversation
from watchdog.probes.panes import Panes
from watchdog.probes.process_scan import ProcessScanner
from watchdog.processes.signals import Guard
from watchdog.registry.rows import RequestRow
from watchdog.registry.store import AsyncStore
from watchdog.telemetry import logger
from watchdog.telemetry.logger import EventLogger

OBSERVES = 'the daemon only observes (mode = "observe"): it ends nothing'
DEAD = frozenset({Reason.GONE, Reason.LOST})  # observe mode closes their rows, and signals and cleans nothing
BACK_OFF = (5.0, 15.0, 60.0, 300.0, 900.0)  # seconds between attempts at what cannot be ended


class KillWorker:
    """Runs orders; nothing else in the house ends an agent."""

    def __init__(
        self,
        *,
        store: AsyncStore,
        clock: Clock,
        scanner: ProcessScanner,
        hearing: AgentTracker,
        holds: Holds,
        closing: Close,
        guard: Callable[[Agent], Guard],
        chronicle: EventRecorder,
        owners: HelperPool,
        panes: Panes,
        log: EventLogger,
        observe: bool,
        parallel: int,
        user_of: Callable[[int], int] = lambda uid: uid,  # whose share an agent's kill counts for
        reckon: Callable[[Agent], object] = lambda agent: None,  # its watched time to this moment, before it is told
    ) -> None:
        self._store = store
        self._clock = clock
        self._scanner = scanner
        self._holds = holds
        self._closing = closing
        self._claiming = Claim(store, clock, hearing, holds, closing, guard, log)
        self._asking = StopRequest(store, clock, holds, owners, chronicle)
        self._guard = guard
        self._chronicle = chronicle
        self._owners = owners
        self._panes = panes
        self._log = log
        self.observe = observe
        self._user_of = user_of
        self._reckon = reckon
        self.allow(parallel)
        self._orders: dict[str, Order] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def allow(self, parallel: int) -> None:
        """So many kills at once, or fewer: each holds a descriptor for every process of its tree.

        One user has three quarters of them at most; what root or an admin orders begins at once. Slots that this
        replaces are used up by who waits for them.
        """
        most = max(1, min(parallel, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self.slots = Turns(most, most - most // 4)

    def adopt(self, *, observe: bool) -> None:
        """Only observe from now on, or not any more. An attempt that has begun is finished; no other one begins."""
        self.observe = observe
        for order in self._orders.values():
            former, order.stayed = order.stayed, OBSERVES if observe and order.reason not in DEAD else None
            if order.stayed != former:
                order.again.set()

    async def request(
        self, agent: Agent, reason: Reason, options: KillOptions, by: str, why: str = "", beats: int | None = None
    ) -> str:
        """Commit an order to end one agent and start on it; returns its id.

        `beats` is the agent's `renewed` at the look that decided (None: now); one more withdraws a stall. One is open
        per agent: a second only presses the first. Raises Conflict in observe mode, and for who started us.
        """
        beats = agent.renewed if beats is None else beats
        if by == "daemon" and agent.reg.dropped:  # root started it and gave it into our care: all of it is ended
            options = replace(options, by_root=True)
        if self.observe and reason not in DEAD:
            raise Conflict(OBSERVES)
        if started_us(agent):
            raise Conflict(f"{agent.reg.name}: {STARTED_US}; right: end it from outside, or start the daemon elsewhere")
        async with agent.ordering:  # one at a time for each agent: it is looked up, then committed
            if agent.request_id is not None:
                open_one = self._orders.get(agent.request_id)  # else it is done, and can be asked for
                if open_one and lane().user is None:
                    open_one.lane.user = None  # a user's that root presses, or the daemon, is theirs from now on
                if open_one and (stored := open_one.press(reason, options, by, why)):
                    change, now_by = self._store.store.change_request, open_one.by
                    await self._store.write(change, open_one.request_id, open_one.reason, now_by, stored)
                return agent.request_id
            event = "agent.gone" if reason in DEAD else "kill.requested"  # there is nobody to kill, perhaps leftovers
            if reason in DEAD and agent.first(event):  # a fact and no act: the line of it waits for no disk
                with logger.caused_by(agent.reg.owner_uid):
                    self._logged(agent).event(event, reason=reason, by=by, why=why)
            request_id = secrets.token_hex(8)
            opened = await self._store.write(
                self._store.store.open_request,
                request_id,
                agent.agent_id,
                reason,
                by=by,
                now=self._clock.now().wall,
                identity=agent.identity,
                options=to_json(options, beats, why, finished=agent.finished),
                why=why,
                owner_uid=agent.reg.owner_uid,
                event=event,
            )
            if not opened:
                words = "is open already; one that the log calls row.quarantined has to be mended or deleted"
                raise Conflict(f"another kill request for {agent.reg.name} {words}")
            order = Order(request_id, agent, reason, options, by, why, beats, finished=agent.finished)
            if reason is Reason.ORPHANED:
                self._scanner.ghosts[agent.agent_id] = agent
            self._begin(order)
        if reason not in DEAD:
            self._logged(agent).event(event, request_id=order.request_id, reason=reason, by=by, why=why)
        return order.request_id

    def resume(self, row: RequestRow, agent: Agent, *, lost: bool = False) -> None:
        """Go on with an order that an earlier daemon left; `lost`: in another boot, so that nobody is left to end."""
        options, beats, why = from_json(row.options)
        order = Order(row.request_id, agent, row.reason, options, row.by, why, beats)
        order.step = KillStep.of(row.step)
        order.members = tuple(member_of(member) for member in row.members)
        order.former = row.claimed_by
        finished = row.options.get("finished")
        order.finished = agent.finished if finished is None and not order.step else finished is True
        order.conversation = conversation_of(row.evidence.get("conversation"))
        order.take_over(row.outcome, self._clock.mono())
        if lost and order.step is not KillStep.CLEANUP:
            order.reason, order.why = Reason.LOST, "its boot is gone"
        self._begin(order)
        self._logged(agent).event("kill.resumed", request_id=order.request_id, step=row.step or "requested")

    def veto(self, agent: Agent, why: str) -> None:
        """Call off the daemon's order to end it, if nobody was signalled yet: its silence may be our fault, or none."""
        order = self._orders.get(agent.request_id or "")
        if order is not None and order.reason in AUTOMATIC and order.step in ASKING:
            order.vetoed = why
            order.again.set()

    def let_go(self, row: RequestRow, agent: Agent) -> None:
        """Have whom an earlier daemon stopped or froze go on: in observe mode the order waits."""
        self._claiming.let_go_on(agent, KillStep.of(row.step), (member_of(member) for member in row.members))

    async def finished(self, request_id: str, timeout: float, cleanup: float | None = None) -> dict[str, object] | None:
        """The outcome of an order, or None when it is not done within `timeout` seconds.

        `cleanup`: so many seconds are waited for the hooks once all of it is proved dead; then it is told so far as it
        has come, with the hooks that are left (`cleanup_left`).
        One that is done is the registry's: nobody may ever ask, and an outcome has 15 KB and more.
        """
        if order := self._orders.get(request_id):
            if cleanup is None:
                await _any_of(timeout, order.done)
                return order.result
            await _any_of(timeout, order.done, order.proved)
            if order.proved.is_set():
                await _any_of(cleanup, order.done)
            return order.result or order.so_far
        with suppress(WatchdogError):  # away, or the row is damaged
            row = await self._store.read(self._store.store.request, request_id)
            return None if row is None else result_of(row)
        return None

    @property
    def busy(self) -> int:
        """How many orders are open."""
        return len(self._orders)

    async def close(self) -> None:
        """Stop between two steps; what is open goes on after the next start, and who waits for it hears "not yet"."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for order in self._orders.values():
            order.done.set()

    # -- one order -----------------------------------------------------------------------------------------------

    def _begin(self, order: Order) -> None:
        order.agent.request_id = order.request_id
        self._orders[order.request_id] = order
        order.lane = Lane(lane().user)
        with logger.caused_by(
            order.agent.reg.owner_uid if order.reason in DEAD else logger.cause()
        ):  # it ended by itself
            task = asyncio.create_task(self._run(order), name=f"kill {order.agent.agent_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, order: Order) -> None:
        """Bind whatever goes wrong to this order: say it, wait, go on from the last committed step."""
        enter(order.lane)
        for attempt in range(1_000_000):
            pause = BACK_OFF[min(attempt, len(BACK_OFF) - 1)]
            try:
                if await self._story(order):
                    break
            except RegistryUnavailable as error:
                pause = BACK_OFF[0]  # however long it was away: the order is gone on with when it is back
                if order.first("waiting"):
                    self._logged(order.agent).event("kill.waiting", request_id=order.request_id, why=str(error))
            except Exception as error:  # noqa: BLE001 - one kill's failure must stay this kill's
                if order.first(repr(error)):
                    self._logged(order.agent).event("kill.failed", exc_info=error, request_id=order.request_id)
            await until_gone(() if order.stayed else order.ended.alive, order.again, pause)
        self._orders.pop(order.request_id, None)
        if order.reason is Reason.ORPHANED:
            self._scanner.ghosts.pop(order.agent.agent_id, None)
            order.agent.request_id = None
        order.tell(order.outcome or withdrawn(order.agent.agent_id))

    async def _story(self, order: Order) -> bool:
        """One attempt; False when something of the tree lives on and the attempt is to be repeated.

        1. Have it end by itself, where it is to be asked.
        2. Claim, unless a beat or an end of its own came first.
        3. End the tree and prove it.
        4. Hooks, task, row; of orphans none, since their agent's row is closed.
        """
        orphans = order.reason is Reason.ORPHANED
        if order.step is not KillStep.CLEANUP:
            if order.conversation is None and not orphans:
                order.conversation = await conversation.find_conversation(order.agent, self._owners)
            await self._asking.ask(order)
            async with self.slots.turn(None if order.urgent else self._user_of(order.agent.reg.owner_uid)):
                if order.stayed and order.under_way:
                    return False
                claim = self._claiming.claim_orphans if orphans else self._claiming.claim
                if not await claim(order):
                    return True
                try:
                    ended = TerminationResult() if self._left_alone(order) else await self._end(order)
                except BeatArrived as spoke:
                    await self._claiming.spare(order, str(spoke))
                    return True
            order.ended = ended = ended.after(order.ended)
            order.attempted(ended)
            if ended.reason is not None:
                try:
                    await self._closing.put_aside(order, ended)
                finally:
                    if order.outcome is not None:
                        order.tell(order.outcome)
                return False
        if orphans:
            await self._closing.close_orphans(order)
            return True
        try:
            if order.step is not KillStep.CLEANUP:
                self._reckon(order.agent)
                await self._closing.proved(order)
            await self._closing.put_in_order(order)
        except NotOurs:
            if not await self._closing.let_go(order.agent):
                order.agent.request_id = None
        return True

    def _left_alone(self, order: Order) -> bool:
        """Whether nothing of the tree is ended: there is none, we only observe, or it was never ours to end."""
        agent = order.agent
        not_ours = agent.reg.told_of and Step.KILL not in agent.policy.ladder
        not_ours = not_ours or agent.elsewhere is not None
        return order.reason is Reason.LOST or (order.reason is Reason.GONE and (self.observe or not_ours))

    async def _end(self, order: Order) -> TerminationResult:
        agent = order.agent
        order.plan = order.planned()

        async def intend(step: KillStep, members: list[TreeMember], snapshot: dict[str, object] | None) -> None:
            self._claiming.listen(order)
            order.step, order.members = step, tuple(members)
            stored, same = order.stored[0], order.stored[1] == order.members
            if same and step in STOPPING and stored in STOPPING:
                return  # all that a successor needs to know: whom to let go on, or kill
            if snapshot is not None:
                held = self._holds.reason_for(agent.agent_id, self._clock.now().wall)
                self._reckon(agent)
                said = await collect_evidence(agent, held, self._owners, self._panes)
                order.evidence = {**snapshot, **order.kept, "said": said}
                return  # it goes with the first intent, or with the proof where nobody is left to signal
            if not await self._closing.save(order, step):
                raise Conflict(f"kill request {order.request_id} is not ours any more: nothing is signalled")

        # What an earlier daemon knew of the tree is remembered; the next scan sorts out what still belongs to it.
        known = {member.identity for member in agent.members}
        agent.members += tuple(member for member in order.members if member.identity not in known)
        told = Telling(order, self._chronicle, self._logged(agent))

        def guard() -> Guard:
            last_look = partial(self._claiming.begin, order)
            return replace(self._guard(agent), sender=order.sender, last_look=last_look)

        def signalled(name: str, pids: list[int]) -> None:
            order.signalled |= agent.identity is not None and agent.identity.pid in pids and name != "SIGSTOP"
            order.touched, order.killed = True, order.killed or name == "SIGKILL"
            told.signal(name, pids)

        async def termed(started: float, everybody: bool) -> None:
            with suppress(RegistryUnavailable):
                await self._closing.save_grace(order, started, everybody)

        acts = guard, intend, signalled, told.refused, termed
        return await TreeTermination(order.plan, self._scanner, self._clock, *acts).run()

    def _logged(self, agent: Agent) -> EventLogger:
        return self._log.bind(agent_id=agent.agent_id, name=agent.reg.name)


async def _any_of(timeout: float, *events: asyncio.Event) -> None:
    """Wait for the first of these, or so many seconds."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
