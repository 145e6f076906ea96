"""Takes an agent's row for an order, unless a beat or a hold withdraws it; a beat does up to the first signal."""

import asyncio
import os
from collections.abc import Callable, Iterable

from watchdog.agents.fleet import Agent
from watchdog.agents.holds import Holds
from watchdog.agents.tracker import AgentTracker
from watchdog.clock import Clock
from watchdog.core.agent import Status
from watchdog.core.kill import KillStep, Reason
from watchdog.core.process import Presence, TreeMember
from watchdog.kill.close import Close
from watchdog.kill.order import (
    ASKING,
    AUTOMATIC,
    BEFORE_SIGNALS,
    STOPPING,
    WITHDRAWN_BY_BEAT,
    Order,
    daemon_identity,
)
from watchdog.kill.outcome import withdrawn
from watchdog.kill.pinned_tree import release
from watchdog.processes import cgroups
from watchdog.processes.identity import presence
from watchdog.processes.signals import Guard, is_ancestor
from watchdog.registry.store import AsyncStore
from watchdog.telemetry.logger import EventLogger

STARTED_US = "its process started this daemon, which cannot end it"
LAST_WORD = 0.75  # seconds; `run` passes beats on at most every 0.5 s


def started_us(agent: Agent) -> bool:
    """Whether this daemon runs below it: it would be spared as our ancestor, and all else of its tree be ended."""
    main = agent.identity
    return main is not None and is_ancestor(main.pid) and presence(main, agent.pidfd) is not Presence.ABSENT


class BeatArrived(Exception):
    """It beat before the first signal."""


class Claim:
    """Claims by compare-and-set; signals nobody."""

    def __init__(
        self,
        store: AsyncStore,
        clock: Clock,
        hearing: AgentTracker,
        holds: Holds,
        closing: Close,
        guard: Callable[[Agent], Guard],
        log: EventLogger,
    ) -> None:
        self._store = store
        self._clock = clock
        self._hearing = hearing
        self._holds = holds
        self._closing = closing
        self._guard = guard
        self._log = log
        self._me = f"daemon {os.getpid()}"

    async def claim(self, order: Order) -> bool:
        """Take the agent's row; False when the order was withdrawn instead."""
        agent = order.agent
        if order.resumed and order.reason in WITHDRAWN_BY_BEAT and order.step in BEFORE_SIGNALS:
            # What it said while no daemon listened is only reaching us now.
            return await self.spare(order, "the daemon was restarted before the first signal: it is judged anew")
        await self._hearing.follow(agent, self._store)  # while its process can be asked: its hooks run as that uid
        self._hearing.sockets.drain(agent.agent_id)
        if why := order.reprieve(self._holds, self._clock.now().wall):
            return await self.spare(order, why)
        self._note_end(order)
        me, now = daemon_identity(agent.reg.host), self._clock.now().wall
        again = agent.status is Status.UNKILLABLE  # its row stays so: coming and going would fill the history
        taken = await self._store.write(
            self._store.store.claim_agent,
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
            await self._closing.let_go(agent)  # first: as soon as the order is gone the next look may give another
            await self._withdraw(order, "its row was closed by somebody else")
            return False
        if order.reason in WITHDRAWN_BY_BEAT and order.step in ASKING and agent.reg.source == "run":
            await asyncio.sleep(LAST_WORD)
        # No await from here to the end of the claim: a beat that came meanwhile, or lay with `run`, counts, as does
        # a hold; to later ones the status says that they come too late.
        self._note_end(order)
        self._hearing.sockets.drain(agent.agent_id)
        if why := order.reprieve(self._holds, self._clock.now().wall):
            return await self.spare(order, why)
        agent.status = agent.status if again else Status.ENDING
        return True

    async def claim_orphans(self, order: Order) -> bool:
        """Take an order whose agent's row is closed already, and stays as it is; False when it was withdrawn."""
        if why := order.reprieve(self._holds, self._clock.now().wall):
            return await self._withdraw(order, why)
        me, now = daemon_identity(order.agent.reg.host), self._clock.now().wall
        claim = self._store.store.claim_request
        if await self._store.write(claim, order.request_id, me, now, takeover_from=order.former):
            return True
        return await self._withdraw(order, "its order is not ours any more")

    def listen(self, order: Order) -> None:
        """Until the first signal goes out, its word still withdraws what the want of one asked for. Raises Spoke."""
        if order.reason in WITHDRAWN_BY_BEAT and not order.begun:
            self._hearing.sockets.drain(order.agent.agent_id)
            if why := order.spoke():
                raise BeatArrived(why)

    def begin(self, order: Order) -> None:
        """The last look, right before a signal; from then on what is begun is finished. Raises Spoke."""
        self.listen(order)
        order.begun = True

    def _note_end(self, order: Order) -> None:
        """Who ended by itself between the decision and the claim has not been ended by us, whatever he left."""
        if order.reason in AUTOMATIC and order.step in ASKING and self._present(order.agent) is Presence.ABSENT:
            order.reason = Reason.GONE
            order.why = f"it exited by itself {'when it was asked to stop' if order.asked else 'before the kill began'}"

    async def spare(self, order: Order, why: str) -> bool:
        """Withdraw the order. The agent's row goes on, also where a former daemon died right after the claim."""
        agent = order.agent
        before = Status.STARTING if agent.identity is None else Status.RUNNING
        former = before if agent.status is Status.ENDING else agent.status
        await self._store.write(
            self._store.store.transition,
            agent.agent_id,
            {Status.ENDING},
            former,
            now=self._clock.now().wall,
            who=self._me,
            why=why,
            event="agent.recovered" if order.spoke() else "agent.spared",
        )
        agent.status = former
        return await self._withdraw(order, why)

    def let_go_on(self, agent: Agent, step: KillStep, members: Iterable[TreeMember]) -> None:
        """Have whom an attempt that came to `step` stopped or froze go on: it is not finished, now or never."""
        if step in STOPPING:
            release(members, self._guard(agent))
            cgroups.thaw_if_ours(agent.cgroup)

    async def _withdraw(self, order: Order, why: str) -> bool:
        agent = order.agent
        self.let_go_on(agent, order.step, order.members)
        await self._closing.finish_request(order, "withdrawn", {"why": why}, why)
        agent.request_id = agent.asked = None
        order.outcome = withdrawn(agent.agent_id, why)
        self._log.event(
            "kill.withdrawn", agent_id=agent.agent_id, name=agent.reg.name, request_id=order.request_id, why=why
        )
        return False

    def _present(self, agent: Agent) -> Presence:
        return presence(agent.identity, agent.pidfd) if agent.identity else Presence.NO_PID
