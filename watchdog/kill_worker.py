"""The kill worker: a durable order for one agent, from the claim to the closed row.

    request -> claim (drain, compare-and-set, one more look at the beats) -> end the tree, proved
            -> cleanup hooks -> task row -> our row, last

Each step is committed before it is done, and doing it again is harmless, so a daemon that died at any step finishes
the same story after its restart (`resume`). Many orders run at once; each waits on pidfds, not on a thread.
"""

import asyncio
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, replace

from watchdog.chronicle import Chronicle
from watchdog.claimant import claimant
from watchdog.clock import Clock
from watchdog.closing import Closing
from watchdog.core.model import KillOptions, Polite, Presence, Reason, Status, TreeMember
from watchdog.ending import Ended, Ending, Plan
from watchdog.errors import Conflict, RegistryUnavailable
from watchdog.fleet import Agent
from watchdog.hearing import Hearing
from watchdog.logs import Log
from watchdog.orders import OWN, Order, from_json, member_of, to_json
from watchdog.processes.identity import presence
from watchdog.processes.signals import Guard
from watchdog.registry.rows import RequestRow
from watchdog.registry.store import AsyncStore
from watchdog.scan import Scanner
from watchdog.telling import Telling

NOTHING = Ended(members=(), reason=None, gracefully=True, signalled=False, main_signalled=False)
DEAD = frozenset({Reason.GONE, Reason.LOST})  # observe mode closes their rows, and signals and cleans nothing
LAST_WORD = 0.75  # seconds; `run` passes beats on at most every 0.5 s
BACK_OFF = (5.0, 15.0, 60.0, 300.0, 900.0)  # seconds between attempts at what cannot be ended


class KillWorker:
    """Runs orders; nothing else in the house ends an agent."""

    def __init__(
        self,
        *,
        store: AsyncStore,
        clock: Clock,
        scanner: Scanner,
        hearing: Hearing,
        closing: Closing,
        guard: Callable[[str], Guard],
        chronicle: Chronicle,
        log: Log,
        observe: bool,
        parallel: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._scanner = scanner
        self._hearing = hearing
        self._closing = closing
        self._guard = guard
        self._chronicle = chronicle
        self._log = log
        self._me = f"daemon {os.getpid()}"
        self.observe = observe
        self.slots = asyncio.Semaphore(parallel)  # one that a reload replaces is used up by who waits for it
        self._orders: dict[str, Order] = {}
        self._finished: dict[str, dict[str, object]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def request(
        self, agent: Agent, reason: Reason, options: KillOptions, by: str, why: str = "", beats: int | None = None
    ) -> str:
        """Commit an order to end one agent and start on it; returns its id.

        `beats` is the agent's count at the look that decided (None: now); one more withdraws a stall. One is open per
        agent: a second only raises `force` of the first. Raises Conflict in observe mode.
        """
        beats = agent.beats if beats is None else beats
        if self.observe and reason not in DEAD:
            raise Conflict('the daemon only observes (mode = "observe"): it ends nothing')
        async with agent.ordering:  # one at a time for each agent: it is looked up, then committed
            if agent.request_id is not None:
                self._press(self._orders[agent.request_id], options)
                return agent.request_id
            event = "agent.gone" if reason in DEAD else "kill.requested"  # there is nobody to kill, perhaps leftovers
            row = await self._store.write(
                self._store.store.open_request,
                secrets.token_hex(8),
                agent.agent_id,
                reason,
                by=by,
                now=self._clock.now().wall,
                identity=agent.identity,
                options=to_json(options, beats, why),
                why=why,
                owner_uid=agent.reg.owner_uid,
                event=event,
            )
            if row is None:
                raise Conflict(f"another kill request for {agent.reg.name} is open already")
            order = Order(row.request_id, agent, reason, options, by, why, beats)
            self._begin(order)
        self._logged(agent).event(event, request_id=order.request_id, reason=reason, by=by, why=why)
        return order.request_id

    def resume(self, row: RequestRow, agent: Agent) -> None:
        """Go on with an order that an earlier daemon left."""
        options, beats, why = from_json(row.options)
        order = Order(row.request_id, agent, row.reason, options, row.by, why, beats)
        order.step, order.outcome = row.step or "", dict(row.outcome)
        order.members = tuple(member_of(member) for member in row.members)
        order.former, order.resumed = row.claimed_by, True
        order.signalled = order.step not in ("", "looked", "term_rest")
        self._begin(order)
        self._logged(agent).event("kill.resumed", request_id=order.request_id, step=order.step or "requested")

    async def finished(self, request_id: str, timeout: float) -> dict[str, object] | None:
        """The outcome of an order, or None when it is not done within `timeout` seconds."""
        order = self._orders.get(request_id)
        if order is not None:
            try:
                await asyncio.wait_for(order.done.wait(), timeout)
            except TimeoutError:
                return None
        return self._finished.get(request_id)

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
        task = asyncio.create_task(self._run(order), name=f"kill {order.agent.agent_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, order: Order) -> None:
        """Bind whatever goes wrong to this order: say it, wait, go on from the last committed step."""
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
            await asyncio.sleep(pause)
        self._orders.pop(order.request_id, None)
        self._finished[order.request_id] = order.outcome or {"success": False, "message": "withdrawn"}
        while len(self._finished) > 1000:
            self._finished.pop(next(iter(self._finished)))
        order.done.set()

    async def _story(self, order: Order) -> bool:
        """One attempt; False when something of the tree lives on and the attempt is to be repeated.

        1. Claim, unless a beat or an end of its own came first.
        2. End the tree and prove it.
        3. Hooks, task, row.
        """
        if order.step != "cleanup":
            async with self.slots:
                if not await self._claim(order):
                    return True
                ended = NOTHING if self.observe else await self._end(order)
            if ended.reason is not None:
                await self._unkillable(order, ended)
                return False
            await self._closing.prove(order, ended)
        await self._closing.put_in_order(order)
        return True

    async def _claim(self, order: Order) -> bool:
        """Take the agent's row, unless the reason has gone; a beat withdraws a stall up to the last moment."""
        agent = order.agent
        if order.resumed and order.reason is Reason.STALLED and order.step in ("", "looked"):
            # What it said while no daemon listened is only reaching us now.
            return await self._spare(order, "the daemon was restarted before the first signal: it is judged anew")
        self._hearing.sockets.drain(agent.agent_id)
        if order.reason is Reason.STALLED and not order.step and agent.beats != order.beats:
            return await self._spare(order, "a heartbeat came before the claim")
        self._note_end(order)
        me, now = claimant(agent.reg.host), self._clock.now().wall
        claimed = await self._store.write(
            self._store.store.claim_request, order.request_id, me, now, takeover_from=order.former
        )
        again = agent.status is Status.UNKILLABLE  # its row stays so: coming and going would fill the history
        taken = claimed and await self._store.write(
            self._store.store.transition,
            agent.agent_id,
            {Status.QUEUED, Status.STARTING, Status.RUNNING, Status.UNKILLABLE, Status.ENDING},
            Status.UNKILLABLE if again else Status.ENDING,
            now=now,
            who=order.by,
            why=order.why,
            say=not again,
        )
        if not taken:
            await self._withdraw(order, "its row was closed by somebody else")
            await self._closing.let_go(agent)
            return False
        if order.reason is Reason.STALLED and not order.step and agent.reg.source == "run":
            await asyncio.sleep(LAST_WORD)
        # No await from here to the end of the claim: a beat that came meanwhile, or lay with `run`, counts.
        self._note_end(order)
        self._hearing.sockets.drain(agent.agent_id)
        if order.reason is Reason.STALLED and not order.step and agent.beats != order.beats:
            return await self._spare(order, "a heartbeat came during the claim")
        agent.status = agent.status if again else Status.ENDING
        return True

    def _note_end(self, order: Order) -> None:
        """Who ended by itself between the decision and the claim has not been ended by us, whatever he left."""
        if order.reason in OWN and not order.step and self._present(order.agent) is Presence.ABSENT:
            order.reason = Reason.GONE
            order.why = "it ended by itself before the kill began"

    async def _spare(self, order: Order, why: str) -> bool:
        """Withdraw the order. The agent's row runs on, also where a former daemon died right after the claim."""
        agent = order.agent
        await self._store.write(
            self._store.store.transition,
            agent.agent_id,
            {Status.ENDING},
            Status.RUNNING,
            now=self._clock.now().wall,
            who=self._me,
            why=why,
            event="agent.recovered",
        )
        agent.status = Status.RUNNING
        return await self._withdraw(order, why)

    async def _withdraw(self, order: Order, why: str) -> bool:
        agent = order.agent
        await self._closing.finish_request(order, "withdrawn", {"why": why}, why)
        agent.request_id = None
        order.outcome = {"success": False, "error": "withdrawn", "agent_id": agent.agent_id, "message": why}
        self._logged(agent).event("kill.withdrawn", request_id=order.request_id, why=why)
        return False

    async def _end(self, order: Order) -> Ended:
        agent, policy = order.agent, order.agent.policy
        grace = policy.grace if order.options.grace is None else order.options.grace
        gone = order.reason is Reason.GONE
        order.plan = Plan(
            agent_id=agent.agent_id,
            main=agent.identity,
            grace=grace,
            verify=policy.verify,
            polite=Polite.ALL if gone else policy.polite,
            force=order.options.force,
        )

        async def intend(step: str, members: list[TreeMember], snapshot: dict[str, object] | None) -> None:
            order.step, order.members = step, tuple(members)
            members_json = [asdict(member) for member in order.members]
            saved = await self._store.write(
                self._store.store.save_step, order.request_id, step, members=members_json, evidence=snapshot
            )
            if not saved:
                raise Conflict(f"kill request {order.request_id} is not ours any more: nothing is signalled")

        # What an earlier daemon knew of the tree is remembered; the next scan sorts out what still belongs to it.
        known = {member.identity for member in agent.members}
        agent.members += tuple(member for member in order.members if member.identity not in known)
        told = Telling(order, self._chronicle, self._logged(agent))
        return await Ending(
            order.plan, self._scanner, self._clock, self._guard, intend, told.signal, told.refused
        ).run()

    async def _unkillable(self, order: Order, ended: Ended) -> None:
        """Say once that something lives on; no cleanup while it does."""
        agent = order.agent
        alive = [f"{m.seen.name}[{m.seen.identity.pid}] {m.how()}" for m in ended.members if not m.dead]
        news = Telling(order, self._chronicle, self._logged(agent)).left(str(ended.reason), alive)
        outcome = order.outcome or {}
        order.done.set()
        self._finished[order.request_id] = outcome
        if news:
            await self._store.write(self._store.store.save_step, order.request_id, order.step, outcome=outcome)
        elif agent.status is Status.UNKILLABLE:
            return
        if await self._store.write(
            self._store.store.transition,
            agent.agent_id,
            {Status.ENDING, Status.UNKILLABLE},
            Status.UNKILLABLE,
            now=self._clock.now().wall,
            who=self._me,
            why=str(outcome["message"]).removeprefix("not ended, "),
        ):
            agent.status = Status.UNKILLABLE

    def _logged(self, agent: Agent) -> Log:
        return self._log.bind(agent_id=agent.agent_id, name=agent.reg.name)

    def _present(self, agent: Agent) -> Presence:
        return presence(agent.identity, agent.pidfd) if agent.identity else Presence.NO_PID

    def _press(self, order: Order, options: KillOptions) -> None:
        """A second request while one is open: only more force counts."""
        if options.force and not order.options.force:
            order.options = replace(order.options, force=True)
            if order.plan is not None:
                order.plan.hurry.set()
