"""Polls the registry for changes by other programs to agents of this host: orders, holds, removed rows."""

from watchdog.agents.holds import Holds
from watchdog.agents.registration import Registrar
from watchdog.errors import Conflict, RegistryUnavailable
from watchdog.registry.rows import HoldRow, Problem, RequestRow
from watchdog.service.stored_orders import StoredOrders
from watchdog.telemetry.logger import EventLogger

# The registry's version before everything else was read, holds, agents without a row, and orders.
_Stored = tuple[object | None, list[HoldRow], set[str], tuple[list[RequestRow], list[Problem]]]


class RegistryPoll:
    """Reads only if the registry was written since the last poll found nothing to do."""

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
        """Find orders that other programs committed for agents of ours, from time to time."""
        known, ids = self._holds.ids(), [agent.agent_id for agent in self._fleet]
        try:
            stored = await self._registry.read(self._stored, ids, self._idle)
            if stored is None:
                return
            version, held, lost, (requests, problems) = stored
            self._idle = None if held or lost or requests or problems else version
            self._agree_on_holds(held, known)  # first: an agent held before its kill order must not be killed
            await self._restore_rowless(lost)
            self._orders.quarantine(problems)
            for request in requests:
                agent = self._fleet.get(request.agent_id)
                if agent is not None and agent.ending.request_id is None:
                    async with agent.ending.ordering:
                        await self._orders.take(request.request_id, agent)
        except RegistryUnavailable:
            return  # reported by the next sweep
        except Conflict as error:  # the row was damaged meanwhile
            self._log.event("row.quarantined", why=str(error))

    def _stored(self, ids: list[str], idle: object | None) -> _Stored | None:
        """In a reader's thread, in one turn (which costs as much as a query). None: no commit since `idle`.

        Orders are read first: a hold that was put before one of them is then seen.
        """
        registry = self._registry
        version = registry.sync.engines.version()
        if version is not None and version == idle:
            return None
        orders = registry.kills.open_requests(self._host)
        return version, registry.history.active_holds(self._host), registry.agents.without_row(ids, self._host), orders

    def _agree_on_holds(self, stored: list[HoldRow], known: frozenset[int]) -> None:
        """Follow changes of holds on our agents by other hosts' operators; `known`: ids before the read."""
        begun, ended = self._holds.sync_with_registry(stored, known)
        for event, rows in (("hold.started", begun), ("hold.ended", ended)):
            for row in rows:
                agent = self._fleet.get(row.agent_id) if row.agent_id else None
                name = agent.reg.name if agent else None
                self._log.event(event, agent_id=row.agent_id, name=name, reason="operator", why=row.reason)

    async def _restore_rowless(self, lost: set[str]) -> None:
        """Living agents whose row was removed: reported once, and written again when they beat; no process is touched.

        Without a row no kill could be ordered for them, and the next daemon would not know them.
        """
        self._rowless = {agent_id: beats for agent_id, beats in self._rowless.items() if agent_id in lost}
        for agent in filter(None, map(self._fleet.get, sorted(lost))):
            log = self._log.bind(agent_id=agent.agent_id, name=agent.reg.name)
            if agent.agent_id not in self._rowless:
                log.event("agent.row_lost")
                self._rowless[agent.agent_id] = agent.heartbeat.rhythm.beats
            elif agent.heartbeat.rhythm.beats > self._rowless[agent.agent_id] and agent.ending.request_id is None:
                await self._registrar.write_row(agent)
                agent.heartbeat.write_soon()  # the next sweep stores its beats
                log.event("agent.row_restored")
