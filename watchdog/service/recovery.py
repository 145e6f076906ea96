"""Restores at start what an earlier daemon left in the registry for this host: its agents, and their kill orders."""

from watchdog.agents.agent import ZERO, Agent
from watchdog.agents.own_cgroup import CgroupPlacement
from watchdog.agents.persistence import restore
from watchdog.agents.registration import Registrar
from watchdog.config.settings import Settings
from watchdog.core.agent import Registration, State
from watchdog.core.observed_activity import Sight
from watchdog.core.ownership import ROOT
from watchdog.core.process import Presence
from watchdog.discovery.custody import Custodians
from watchdog.kill.claim import STARTED_US, started_us
from watchdog.probes.permission_prompts import TOLD
from watchdog.processes.identity import presence
from watchdog.registry.rows import AgentRow, Problem
from watchdog.service.stored_orders import StoredOrders

EXPIRY = ("agent.expires_soon",)
HUMAN = ("agent.needs_human", "agent.human_answered")


class Recovery:
    """Reads rows of its own host only, and passes them to the parts that handle them."""

    def __init__(
        self,
        settings: Settings,
        registrar: Registrar,
        placement: CgroupPlacement,
        custodians: Custodians,
        orders: StoredOrders,
        *,
        registry_lost: bool = False,
    ) -> None:
        """`registry_lost`: the former registry was lost, so living agents get their rows again."""
        self._settings = settings
        self._registrar = registrar
        self._fleet = registrar.fleet
        self._registry = registrar.registry
        self._tracker = registrar.tracker
        self._host = registrar.host
        self._placement = placement
        self._custodians = custodians
        self._orders = orders
        self._registry_lost = registry_lost

    def apply(self, settings: Settings) -> None:
        """Apply these settings from now on."""
        self._settings = settings

    async def restore_all(self) -> None:
        """Restore agents and open orders, at start. An agent of another boot is lost.

        None of its processes can live, so only its hooks are run. An unreadable row is reported and left alone.
        """
        registry, copies = self._registry, self._tracker.read_copies()
        rows, problems = await registry.read(registry.agents.live, self._host)
        requests, others = await registry.read(registry.kills.open_requests, self._host)
        self._orders.quarantine([*problems, *others])
        known = {copy.agent_id: copy.registration for copy in copies}
        connected = await self._tracker.connected(rows)
        for row in rows:
            agent = Agent(row.registration, self._settings.policy_for(row.registration), row.status, row.notify_socket)
            restore(agent, row)
            agent.owner.drops_to(_dropped_since(row.registration, known.get(row.agent_id)))
            if agent.heartbeat.said.state is State.WAITING or agent.reg.pane is not None:
                last = await registry.read(registry.history.last_event, agent.agent_id, HUMAN)
                agent.reported.human(needed=last == HUMAN[0])
                if agent.heartbeat.said.state is State.WAITING:
                    told = agent.policy.prompt_limit if agent.reported.needed_human else ZERO
                    agent.heartbeat.ages.in_state_for(told)
                elif agent.reported.needed_human:
                    agent.sights.asks(Sight(TOLD, agent.policy.prompt_limit))
            if agent.ttl.ends_soon:
                announced = await registry.read(registry.history.last_event, agent.agent_id, EXPIRY) is not None
                agent.reported.expiry(reported=announced)
            self._tracker.readmit(agent, row, connected)
            self._custodians.settle(agent)
            if started_us(agent):
                self._orders.quarantine([Problem(agent.agent_id, f"pid: {STARTED_US}")])
        await self._readopt(copies, {problem.agent_id for problem in problems}, registry_lost=self._registry_lost)
        self._placement.take_up()
        unread = {problem.agent_id for problem in problems}
        for request in requests:
            await self._orders.take_up(request, readable=request.agent_id not in unread)
        for agent in self._fleet:
            await self._orders.lose(agent)

    async def _readopt(self, copies: list[AgentRow], unread: set[str], *, registry_lost: bool) -> None:
        """Take in registered agents that live and that the registry does not have, or not with their process.

        It was restored from an older copy while no daemon ran. They are watched, and reported by `registry_poll`;
        without a row none of them can be killed. A newly created registry has no agents: no row was removed on
        purpose.
        """
        lost = await self._registry.read(
            self._registry.agents.without_row, [row.agent_id for row in copies], self._host
        )
        for row in copies:
            reg, agent = row.registration, self._fleet.get(row.agent_id)
            seen = Presence.ABSENT if reg.identity is None else presence(reg.identity, None, host=self._host)
            if agent is not None and agent.identity is None and seen is Presence.ALIVE:
                await self._registrar.restore_identity(agent, reg)
            elif reg.source != "register":
                if agent is None and seen is Presence.ABSENT:
                    self._tracker.forget_copy(row.agent_id)
            elif agent is None and row.agent_id in lost and seen is Presence.ALIVE:
                await self._registrar.readopt(row, with_row=registry_lost)
            elif agent is None and (seen is Presence.ABSENT or row.agent_id not in lost | unread):
                self._tracker.forget_copy(row.agent_id)


def _dropped_since(row: Registration, copy: Registration | None) -> int | None:
    """The uid that a process has dropped to while its row still says root, by the registration backup.

    The registry was restored from an older copy: judged by the process alone, a user's sudo looks like root again.
    """
    if copy is None or copy.identity is None or row.identity is None or not row.identity.same_process(copy.identity):
        return None
    return copy.owner_uid if row.owner_uid == ROOT != copy.owner_uid else None
