"""Takes up what the registry holds for this host: at start all that an earlier daemon left, later what others ordered.

Hosts that share a registry order kills for each other's agents: such an order is a row like any other, and waits until
the daemon of that host finds it here. So does an order of our own whose commit succeeded though we were told it failed.
"""

from watchdog.agents.agent import ZERO, Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.holds import Holds
from watchdog.agents.own_cgroup import CgroupPlacement
from watchdog.agents.persistence import restore
from watchdog.agents.registration import Registrar
from watchdog.agents.tracker import AgentTracker
from watchdog.clock import Clock
from watchdog.config.settings import Settings
from watchdog.core.agent import Registration, State
from watchdog.core.kill import KillOptions, KillStep, Reason
from watchdog.core.observed_activity import Sight
from watchdog.core.ownership import ROOT
from watchdog.core.process import Presence
from watchdog.discovery.custody import Custodians
from watchdog.errors import Conflict, RegistryUnavailable
from watchdog.kill.claim import STARTED_US, started_us
from watchdog.kill.order import claim_is_stale
from watchdog.kill.worker import DEAD, KillWorker
from watchdog.probes.permission_prompts import TOLD
from watchdog.processes.identity import presence
from watchdog.registry.rows import AgentRow, HoldRow, Problem, RequestRow
from watchdog.registry.store import AsyncStore
from watchdog.telemetry.logger import EventLogger

EXPIRY = ("agent.expires_soon",)
HUMAN = ("agent.needs_human", "agent.human_answered")
OPEN = frozenset({"open", "claimed", "unkillable"})
# The registry's version before all else was read, holds, the rowless, and orders.
_Stored = tuple[object | None, list[HoldRow], set[str], tuple[list[RequestRow], list[Problem]]]


class Recovery:
    """Reads rows of its own host only, and gives them to whoever deals with them."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        store: AsyncStore,
        clock: Clock,
        settings: Settings,
        hearing: AgentTracker,
        placement: CgroupPlacement,
        holds: Holds,
        worker: KillWorker,
        registrar: Registrar,
        custodians: Custodians,
        log: EventLogger,
        host: str,
        boot_id: str,
    ) -> None:
        self._fleet = fleet
        self._store = store
        self._clock = clock
        self.settings = settings
        self._hearing = hearing
        self._placement = placement
        self._holds = holds
        self._worker = worker
        self._registrar = registrar
        self._custodians = custodians
        self._log = log
        self._host = host
        self._boot_id = boot_id
        self._quarantined: set[Problem] = set()  # said already
        self._rowless: dict[str, int] = {}  # agents without a row, and their beats when that was seen
        self._idle: object | None = None  # the registry's version in which there was nothing to do

    async def everything(self, *, begun_anew: bool = False) -> None:
        """Agents and open orders, at start. An agent of another boot is lost.

        None of its processes can live, so only its hooks are run. A row that cannot be read is said and left alone.
        `begun_anew`: the former registry was lost, so who lives gets its row again.
        """
        store, copies = self._store.store, self._hearing.read_copies()
        rows, problems = await self._store.read(store.live_agents, self._host)
        requests, others = await self._store.read(store.open_requests, self._host)
        self._quarantine([*problems, *others])
        known = {copy.agent_id: copy.registration for copy in copies}
        connected = await self._hearing.connected(rows)
        for row in rows:
            agent = Agent(row.registration, self.settings.policy_for(row.registration), row.status, row.notify_socket)
            restore(agent, row)
            agent.owner.drops_to(_dropped_since(row.registration, known.get(row.agent_id)))
            if agent.heartbeat.said.state is State.WAITING or agent.reg.pane is not None:
                last = await self._store.read(store.last_event, agent.agent_id, HUMAN)
                agent.told.human(needed=last == HUMAN[0])
                if agent.heartbeat.said.state is State.WAITING:
                    told = agent.policy.prompt_limit if agent.told.needed_human else ZERO
                    agent.heartbeat.ages.in_state_for(told)
                elif agent.told.needed_human:
                    agent.sights.asks(Sight(TOLD, agent.policy.prompt_limit))
            if agent.ttl.ends_soon:
                announced = await self._store.read(store.last_event, agent.agent_id, EXPIRY) is not None
                agent.told.expiry(told=announced)
            self._hearing.readmit(agent, row, connected)
            self._custodians.settle(agent)
            if started_us(agent):
                self._quarantine([Problem(agent.agent_id, f"pid: {STARTED_US}")])
        await self._readopt(copies, {problem.agent_id for problem in problems}, begun_anew=begun_anew)
        self._placement.take_up()
        for request in requests:
            found = self._fleet.get(request.agent_id)
            if found is not None:
                if (self.settings.observe or started_us(found)) and claim_is_stale(request.claimed_by, self._host):
                    self._worker.let_go(request, found)
                self._begin(request, found)
                if found.owner.elsewhere is not None:  # another daemon took it over; an operator's order goes on
                    self._worker.veto(found, f"watched by {found.owner.elsewhere}")
            elif request.reason is Reason.ORPHANED and claim_is_stale(request.claimed_by, self._host):
                await self._let_orphans_go(request)
            elif request.agent_id not in {problem.agent_id for problem in problems}:
                # Its row was closed; only this request's own end was not written any more.
                why = str(request.outcome.get("message") or "its agent's row is closed")
                await self._finish(request, "done", request.outcome, why)
        for agent in self._fleet:
            if agent.reg.boot_id != self._boot_id and agent.ending.request_id is None:
                await self._worker.request(agent, Reason.LOST, KillOptions(), "daemon", "its host was restarted")

    async def _readopt(self, copies: list[AgentRow], unread: set[str], *, begun_anew: bool) -> None:
        """Registered agents that live and that the registry does not know, or not with their process.

        It was put back from an older copy while nobody was there. They are watched, and told of by `orders`; without
        a row none of them can be ended. One that was begun anew knows nobody, so nobody's row was taken on purpose.
        """
        lost = await self._store.read(self._store.store.without_row, [row.agent_id for row in copies], self._host)
        for row in copies:
            reg, agent = row.registration, self._fleet.get(row.agent_id)
            seen = Presence.ABSENT if reg.identity is None else presence(reg.identity, None, host=self._host)
            if agent is not None and agent.identity is None and seen is Presence.ALIVE:
                await self._registrar.restore_identity(agent, reg)
            elif reg.source != "register":
                if agent is None and seen is Presence.ABSENT:
                    self._hearing.forget_copy(row.agent_id)
            elif agent is None and row.agent_id in lost and seen is Presence.ALIVE:
                await self._registrar.readopt(row, with_row=begun_anew)
            elif agent is None and (seen is Presence.ABSENT or row.agent_id not in lost | unread):
                self._hearing.forget_copy(row.agent_id)

    async def orders(self) -> None:
        """Orders that somebody else committed for agents of ours, from time to time."""
        known, ids = self._holds.ids(), [agent.agent_id for agent in self._fleet]
        try:
            stored = await self._store.read(self._stored, ids, self._idle)
            if stored is None:
                return
            version, held, lost, (requests, problems) = stored
            self._idle = None if held or lost or requests or problems else version
            self._agree_on_holds(held, known)  # first: who was held before he was to be ended is not ended
            await self._restore_rowless(lost)
            self._quarantine(problems)
            for request in requests:
                agent = self._fleet.get(request.agent_id)
                if agent is not None and agent.ending.request_id is None:
                    async with agent.ending.ordering:
                        await self._take(request.request_id, agent)
        except RegistryUnavailable:
            return  # told by the next sweep
        except Conflict as error:  # somebody broke the row since
            self._log.event("row.quarantined", why=str(error))

    def _stored(self, ids: list[str], idle: object | None) -> _Stored | None:
        """In a reader's thread, all in one turn (it costs as much as a query). None: nobody has committed since `idle`.

        Orders are read first: a hold that was put before one of them is then seen.
        """
        store = self._store.store
        version = store.engines.version()
        if version is not None and version == idle:
            return None
        orders = store.open_requests(self._host)
        return version, store.active_holds(self._host), store.without_row(ids, self._host), orders

    def _agree_on_holds(self, stored: list[HoldRow], known: frozenset[int]) -> None:
        """Holds on agents of ours that another host's operator put or lifted; `known` before they were read."""
        begun, ended = self._holds.agree(stored, known)
        for event, rows in (("hold.started", begun), ("hold.ended", ended)):
            for row in rows:
                agent = self._fleet.get(row.agent_id) if row.agent_id else None
                name = agent.reg.name if agent else None
                self._log.event(event, agent_id=row.agent_id, name=name, reason="operator", why=row.reason)

    async def _restore_rowless(self, lost: set[str]) -> None:
        """Living agents whose row somebody removed: told once, and written anew when they beat; no process is touched.

        Without a row nothing could be ordered for them, and a daemon after us would not know them.
        """
        self._rowless = {agent_id: beats for agent_id, beats in self._rowless.items() if agent_id in lost}
        for agent in filter(None, map(self._fleet.get, sorted(lost))):
            log = self._log.bind(agent_id=agent.agent_id, name=agent.reg.name)
            if agent.agent_id not in self._rowless:
                log.event("agent.row_lost")
                self._rowless[agent.agent_id] = agent.heartbeat.rhythm.beats
            elif agent.heartbeat.rhythm.beats > self._rowless[agent.agent_id] and agent.ending.request_id is None:
                await self._registrar.write_row(agent)
                agent.heartbeat.write_soon()  # the next sweep writes down what it has said
                log.event("agent.row_restored")

    async def _take(self, request_id: str, agent: Agent) -> None:
        """Look anew, now that nobody else can begin an order for this agent."""
        request = await self._store.read(self._store.store.request, request_id)
        if request is None or request.status not in OPEN or agent.ending.request_id is not None:
            return
        held = self._holds.reason_for(agent.agent_id, self._clock.now().wall)
        if held is not None and request.step is None:
            why = f"{agent.reg.name} is held on host {self._host}: {held}"
            outcome = {"success": False, "error": "held", "agent_id": agent.agent_id, "message": why}
            await self._finish(request, "withdrawn", outcome, why)
            return
        self._begin(request, agent)

    def _begin(self, request: RequestRow, agent: Agent) -> None:
        """Go on with it. Observe mode ends nobody who may live, and a living daemon's claim is its own.

        That of an agent that started this daemon waits until it has ended.
        """
        lost = agent.reg.boot_id != self._boot_id
        if self.settings.observe and not lost and request.reason not in DEAD:
            return
        seen = Presence.NO_PID if agent.identity is None else presence(agent.identity, agent.tree.pidfd)
        if request.step == KillStep.CLEANUP and seen is Presence.ALIVE:
            self._quarantine([Problem(agent.agent_id, "step: 'cleanup', but its main process lives")])
        elif claim_is_stale(request.claimed_by, self._host) and not started_us(agent):
            self._worker.resume(request, agent, lost=lost)

    async def _let_orphans_go(self, request: RequestRow) -> None:
        """Whom an earlier daemon stopped goes on; the reaper's next round looks who is left, and orders it anew."""
        row = await self._store.read(self._store.store.agent, request.agent_id)
        if row is not None:
            policy = self.settings.policy_for(row.registration)
            self._worker.let_go(request, Agent(row.registration, policy, row.status))
        why = "the daemon was restarted; processes that outlived their agent are looked for again"
        await self._finish(request, "withdrawn", {"why": why}, why)

    async def _finish(self, request: RequestRow, status: str, outcome: dict[str, object], why: str) -> None:
        write, store = self._store.write, self._store.store
        now = self._clock.now().wall
        await write(store.finish_request, request.request_id, status, outcome, now=now, who="daemon", why=why)

    def _quarantine(self, problems: list[Problem]) -> None:
        for problem in set(problems) - self._quarantined:
            self._log.event("row.quarantined", agent_id=problem.agent_id, why=problem.message)
        self._quarantined |= set(problems)


def _dropped_since(row: Registration, copy: Registration | None) -> int | None:
    """The user to whom the process of a row that is still root's has dropped, as its copy says.

    The registry was put back from an older copy: from the process alone a user's sudo looks like root again.
    """
    if copy is None or copy.identity is None or row.identity is None or not row.identity.same_process(copy.identity):
        return None
    return copy.owner_uid if row.owner_uid == ROOT != copy.owner_uid else None
