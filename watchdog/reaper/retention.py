"""Deletes agents that ended longer than `retention_days` ago, with their history, a few rows at a time.

The registry has one writer, and a kill's intent waits for it: so each batch is small, and between two batches the
writer is free for longer than the batch took.

SQLite's file keeps its size: the pages of deleted rows are reused by the next agents. `auto_vacuum` would move pages at
each commit, and VACUUM would hold the write lock while it copies the whole file.

Tests: tests/registry/test_retention_queries.py.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from watchdog.clock import Clock
from watchdog.config.settings import Settings
from watchdog.errors import RegistryUnavailable
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.retention_queries import RetentionKind
from watchdog.telemetry.logger import EventLogger

EVERY = timedelta(hours=1)
BATCH = {
    RetentionKind.AGENTS: 200,
    RetentionKind.TASKS: 500,
    RetentionKind.HOLDS: 500,
    RetentionKind.EVENTS: 500,
}  # rows: 3 to 5 ms each
PAUSE = 0.02  # minimum seconds between two batches


class Retention:
    """One round an hour. Rows of living agents and rows that others depend on stay, whatever their age."""

    def __init__(
        self,
        registry: AsyncRegistry,
        clock: Clock,
        log: EventLogger,
        *,
        keep: timedelta,
        host: str,
        credit: Callable[[timedelta], timedelta] = lambda _: timedelta(),
    ) -> None:
        """`credit`: how much longer to keep rows by a wall clock that was set forward (`core.steps.credit`)."""
        self._registry = registry
        self._clock = clock
        self._log = log
        self.keep = keep
        self._host = host
        self._credit = credit

    def apply(self, settings: Settings) -> None:
        """Use the retention of these settings from now on."""
        self.keep = settings.retention

    async def round(self) -> None:
        """Delete all that is due; log one line if anything was deleted."""
        began = self._clock.now()
        before = began.wall - self.keep - self._credit(self.keep)
        counts = dict.fromkeys(RetentionKind, 0)
        try:
            for kind in RetentionKind:
                while (count := await self._some(kind, before)) > 0:
                    counts[kind] += count
        except RegistryUnavailable:
            pass  # the next sweep reports it, the next round continues
        if any(counts.values()):
            took = round(self._clock.mono() - began.mono, 1)
            forgotten: dict[str, Any] = {kind.value: count for kind, count in counts.items()}
            self._log.event("registry.trimmed", **forgotten, before=f"{before:%Y-%m-%dT%H:%M:%SZ}", seconds=took)

    async def _some(self, kind: RetentionKind, before: datetime) -> int:
        """Delete what one query finds; return the number of rows, 0 when nothing was found or could be deleted."""
        registry, count = self._registry, 0
        keys = await registry.read(registry.retention.due, kind, before, self._host)
        for start in range(0, len(keys), BATCH[kind]):
            began = self._clock.mono()
            count += await registry.write(registry.retention.forget, kind, keys[start : start + BATCH[kind]])
            await asyncio.sleep(max(PAUSE, 2 * (self._clock.mono() - began)))
        return count
