"""What was watched goes into the registry, once a sweep; and whether the registry works is told, once a change."""

from watchdog.clock import Clock
from watchdog.errors import RegistryUnavailable
from watchdog.fleet import Fleet
from watchdog.logs import Log
from watchdog.registry.store import AsyncStore

PROBE_EVERY = 6  # sweep intervals; a probe of the registry takes a few milliseconds


class Recorder:
    """Writes the fleet down. Whoever else fails at the registry keeps it to himself: it is told here."""

    def __init__(self, fleet: Fleet, store: AsyncStore, clock: Clock, log: Log) -> None:
        self._fleet = fleet
        self._store = store
        self._clock = clock
        self._log = log
        self._down = False
        self._probed = float("-inf")

    async def record(self, interval: float) -> bool:
        """Write what was watched, for all in one statement; False while the registry is away. `interval`: seconds.

        A failure anywhere since the last time is told now. Its end is told when a probe of the whole registry works
        and nothing failed since the last time: what no probe meets (a full page) else begins and ends with each sweep.
        """
        store = self._store.store
        try:
            await self._store.read(store.keep_host)
            if rows := [agent.row() for agent in self._fleet]:
                await self._store.write(store.save_sweep, rows)
            for agent in self._fleet:
                if agent.owner_saved != agent.reg.owner_uid:
                    await self._store.write(store.set_owner, agent.agent_id, agent.reg.owner_uid)
                    agent.owner_saved = agent.reg.owner_uid
            trouble, now = store.engines.trouble, self._clock.mono()
            if trouble is not None:
                self._tell(trouble)
            if trouble is not None or self._down or now - self._probed >= PROBE_EVERY * interval:
                await self._store.write(store.probe, trial=trouble is not None or self._down)
                self._probed = now
        except RegistryUnavailable as error:
            self._tell(str(error))
            return False
        if self._down and trouble is None:
            self._down = False
            self._log.event("registry.recovered")
        return True

    def _tell(self, error: str) -> None:
        if not self._down:
            self._down = True
            self._log.event("registry.unavailable", error=error)
