"""Agents reported by `[[source]]`s: each other program's registry (`foreign_registry`), read beside the sweep."""

import asyncio
from contextlib import suppress

from watchdog.agents.history import EventRecorder
from watchdog.agents.registration import Registrar
from watchdog.clock import Clock
from watchdog.config.settings import Settings
from watchdog.discovery.custody import Custodians
from watchdog.discovery.foreign_registry import ForeignRegistry, ImportParts, Json
from watchdog.discovery.stale_entries import StaleEntries
from watchdog.errors import WatchdogError
from watchdog.helpers.nss import UserLookup
from watchdog.helpers.pool import HelperPool


class SourceImporter:
    """Reads each source within its own deadline; one that hangs or fails delays no other."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        registrar: Registrar,
        stale: StaleEntries,
        custodians: Custodians,
        helpers: HelperPool,
        recorder: EventRecorder,
    ) -> None:
        self._settings = settings
        self._parts = ImportParts(clock, registrar, stale, custodians, helpers, UserLookup(), recorder)
        self._registries: dict[tuple[str, str], ForeignRegistry] = {}  # by kind and path

    def apply(self, settings: Settings) -> None:
        """Apply these settings from the next read on."""
        self._settings = settings

    async def look(self) -> None:
        """Read each source once; if it is configured twice, the last configuration counts."""
        named = {(source.kind, source.place()): source for source in self._settings.sources}
        self._registries = {key: self._registries.get(key) or ForeignRegistry(*key, self._parts) for key in named}
        looks = (self._registries[key].look(source.after_seconds, source.user) for key, source in named.items())
        await asyncio.gather(*looks)
        for registry in self._registries.values():
            for write in registry.writes():
                with suppress(WatchdogError):  # the sweep reports that the registry takes nothing
                    await write

    def shown(self) -> list[Json]:
        """Entries that are not watched (remote, without a pid, another user's), as `list` shows them."""
        return [one for registry in self._registries.values() for one in registry.shown]
