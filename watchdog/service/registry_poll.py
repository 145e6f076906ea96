"""What others commit to the registry for agents of this host, looked for now and then: orders, holds, lost rows."""

from watchdog.agents.holds import Holds
from watchdog.agents.registration import Registrar
from watchdog.errors import Conflict, RegistryUnavailable
from watchdog.registry.rows import HoldRow, Problem, RequestRow
from watchdog.service.stored_orders import StoredOrders
from watchdog.telemetry.logger import EventLogger

# The registry's version before all else was read, holds, the rowless, and orders.
_Stored = tuple[object | None, list[HoldRow], set[str], tuple[list[RequestRow], list[Problem]]]


class RegistryPoll:
    """Reads only where somebody has written since the last look found nothing to do."""

    def __init__(self, registrar: Registrar, holds: Holds, orders: StoredOrders, log: EventLogger) -> None:
        self._registrar = registrar
        self._fleet = registrar.fleet
        self._registry = registrar.registry
        self._host = registrar.host
        self._holds = holds
        self._orders = orders
        self._log = log
        self._rowless: dict[str, int] = {}  # agents without a row, and their beats when that was seen
        self._idle: object | None = None  # the registry's version in which there was nothing to do

    async def poll(self) -> None:
        """Orders that somebody else committed for agents of ours, from time to time."""
        known, ids = self._holds.ids(), [agent.agent_id for agent in self._fleet]
        try:
            stored = await self._registry.read(self._stored, ids, self._idle)
            if stored is None:
                return
            version, held, lost, (requests, problems) = stored
            self._idle = None if held or lost or requests or problems else version
            self._agree_on_holds(held, known)  # first: who was held before he was to be ended is not ended
            await self._restore_rowless(lost)
            self._orders.quarantine(problems)
            for request in requests:
                agent = self._fleet.get(request.agent_id)
                if agent is not None and agent.ending.request_id is None:
                    async with agent.ending.ordering:
                        await self._orders.take(request.request_id, agent)
        except RegistryUnavailable:
            return  # told by the next sweep
        except Conflict as error:  # somebody broke the row since
            self._log.event("row.quarantined", why=str(error))

    def _stored(self, ids: list[str], idle: object | None) -> _Stored | None:
        """In a reader's thread, all in one turn (it costs as much as a query). None: nobody has committed since `idle`.

        Orders are read first: a hold that was put before one of them is then seen.
        """
        registry = self._registry
        version = registry.sync.engines.version()
        if version is not None and version == idle:
            return None
        orders = registry.kills.open_requests(self._host)
        return version, registry.history.active_holds(self._host), registry.agents.without_row(ids, self._host), orders

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
