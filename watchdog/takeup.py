"""Takes up what the registry holds for this host: at start all that an earlier daemon left, later what others ordered.

Hosts that share a registry order kills for each other's agents: such an order is a row like any other, and waits until
the daemon of that host finds it here. So does an order of our own whose commit succeeded though we were told it failed.
"""

from watchdog.claimant import gone
from watchdog.clock import Clock
from watchdog.config import Settings
from watchdog.core.model import KillOptions, Reason
from watchdog.errors import Conflict, RegistryUnavailable
from watchdog.fleet import Agent, Fleet
from watchdog.hearing import Hearing
from watchdog.holds import Holds
from watchdog.kill_worker import DEAD, KillWorker
from watchdog.logs import Log
from watchdog.registry.rows import Problem, RequestRow
from watchdog.registry.store import AsyncStore

OPEN = frozenset({"open", "claimed", "unkillable"})


class TakeUp:
    """Reads rows of its own host only, and gives them to whoever deals with them."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        store: AsyncStore,
        clock: Clock,
        settings: Settings,
        hearing: Hearing,
        holds: Holds,
        worker: KillWorker,
        log: Log,
        host: str,
        boot_id: str,
    ) -> None:
        self._fleet = fleet
        self._store = store
        self._clock = clock
        self.settings = settings
        self._hearing = hearing
        self._holds = holds
        self._worker = worker
        self._log = log
        self._host = host
        self._boot_id = boot_id
        self._quarantined: set[Problem] = set()  # said already

    async def everything(self) -> None:
        """Agents and open orders, at start. An agent of another boot is lost.

        None of its processes can live, so only its hooks are run. A row that cannot be read is said and left alone.
        """
        store = self._store.store
        rows, problems = await self._store.read(store.live_agents, self._host)
        requests, others = await self._store.read(store.requests, OPEN, self._host)
        self._quarantine([*problems, *others])
        for row in rows:
            agent = Agent(row.registration, self.settings.policy_for(row.registration), row.status, row.notify_socket)
            agent.restore(row)
            self._hearing.readmit(agent, row)
        for request in requests:
            found = self._fleet.get(request.agent_id)
            if found is not None:
                self._begin(request, found)
            elif request.agent_id not in {problem.agent_id for problem in problems}:
                # Its row was closed; only this request's own end was not written any more.
                await self._finish(request, "done", request.outcome, "its agent's row is closed")
        for agent in self._fleet:
            if agent.reg.boot_id != self._boot_id and agent.request_id is None:
                await self._worker.request(agent, Reason.LOST, KillOptions(), "daemon", "its boot is gone")

    async def orders(self) -> None:
        """Orders that somebody else committed for agents of ours, from time to time."""
        store = self._store.store
        try:
            await self._agree_on_holds()  # first: who was held before he was to be ended is not ended
            requests, problems = await self._store.read(store.requests, OPEN, self._host)
            self._quarantine(problems)
            for request in requests:
                agent = self._fleet.get(request.agent_id)
                if agent is not None and agent.request_id is None:
                    async with agent.ordering:
                        await self._take(request.request_id, agent)
        except RegistryUnavailable:
            return  # told by the next sweep
        except Conflict as error:  # somebody broke the row since
            self._log.event("row.quarantined", why=str(error))

    async def _agree_on_holds(self) -> None:
        """Holds on agents of ours that another host's operator put or lifted."""
        known = self._holds.ids()
        stored = await self._store.read(self._store.store.active_holds, self._host)
        begun, ended = self._holds.agree(stored, known)
        for event, rows in (("hold.started", begun), ("hold.ended", ended)):
            for row in rows:
                agent = self._fleet.get(row.agent_id) if row.agent_id else None
                name = agent.reg.name if agent else None
                self._log.event(event, agent_id=row.agent_id, name=name, reason="operator", why=row.reason)

    async def _take(self, request_id: str, agent: Agent) -> None:
        """Look anew, now that nobody else can begin an order for this agent."""
        request = await self._store.read(self._store.store.request, request_id)
        if request is None or request.status not in OPEN or agent.request_id is not None:
            return
        held = self._holds.reason_for(agent.agent_id, self._clock.now().wall)
        if held is not None and request.step is None:
            why = f"{agent.reg.name} is held on host {self._host}: {held}"
            outcome = {"success": False, "error": "held", "agent_id": agent.agent_id, "message": why}
            await self._finish(request, "withdrawn", outcome, why)
            return
        self._begin(request, agent)

    def _begin(self, request: RequestRow, agent: Agent) -> None:
        """Go on with it. Observe mode ends nobody who may live, and a living daemon's claim is its own."""
        if (self.settings.observe and request.reason not in DEAD) or not gone(request.claimed_by, self._host):
            return
        self._worker.resume(request, agent)

    async def _finish(self, request: RequestRow, status: str, outcome: dict[str, object], why: str) -> None:
        write, store = self._store.write, self._store.store
        now = self._clock.now().wall
        await write(store.finish_request, request.request_id, status, outcome, now=now, who="daemon", why=why)

    def _quarantine(self, problems: list[Problem]) -> None:
        for problem in set(problems) - self._quarantined:
            self._log.event("row.quarantined", agent_id=problem.agent_id, why=problem.message)
        self._quarantined |= set(problems)
