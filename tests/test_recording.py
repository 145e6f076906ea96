"""One alert for one fault of the registry, and none that a probe would have to wait long for."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from tests.control.office import Recorder as Kept
from watchdog.clock import Clock
from watchdog.errors import RegistryUnavailable
from watchdog.fleet import Fleet
from watchdog.recording import PROBE_EVERY, Recorder
from watchdog.registry.schema import REVISION
from watchdog.registry.store import AsyncStore, Store

INTERVAL = 10.0


class Ticking(Clock):
    """Moves on by a sweep interval each time it is told."""

    at = 0.0

    def mono(self) -> float:
        return self.at


class Bench:
    """A recorder on a real file, and as many sweeps as one likes."""

    def __init__(self, path: Path, store: AsyncStore) -> None:
        self.store, self.log, self.clock = store, Kept(), Ticking()
        self._path = path
        self._recorder = Recorder(Fleet(), store, self.clock, self.log)

    def by_hand(self, statement: str) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as other:
            other.execute(statement)

    async def sweep(self) -> bool:
        recorded = await self._recorder.record(INTERVAL)
        self.clock.at += INTERVAL
        return recorded

    def told(self) -> list[object]:
        return [event["event"] for event in self.log.events]


@asynccontextmanager
async def bench(directory: Path) -> AsyncIterator[Bench]:
    store = AsyncStore(Store(f"sqlite:///{directory}/registry.db").open())
    try:
        yield Bench(directory / "registry.db", store)
    finally:
        store.close()


def test_what_no_probe_meets_begins_once_and_ends_once(tmp_path: Path) -> None:
    """A history that fails with each sweep, while all that a probe looks at works."""

    async def story() -> None:
        async with bench(tmp_path) as made:
            refused = (
                "BEFORE INSERT ON lifecycle_event WHEN new.event <> '' BEGIN SELECT abs(-9223372036854775807 - 1); END"
            )
            made.by_hand(f"CREATE TRIGGER refuse {refused}")
            for _ in range(5):
                assert await made.sweep(), "the rest works: orders are tried"
                with pytest.raises(RegistryUnavailable):
                    await made.store.write(
                        made.store.store.add_event, "agent.late", None, "t", "w", made.clock.now().wall
                    )
            assert made.told() == ["registry.unavailable"]
            made.by_hand("DROP TRIGGER refuse")
            for _ in range(2):
                assert await made.sweep()
            assert made.told() == ["registry.unavailable", "registry.recovered"]

    asyncio.run(story())


def test_what_only_a_probe_meets_is_found_within_a_minute(tmp_path: Path) -> None:
    """Six intervals of 10 s; with shorter ones sooner."""

    async def story() -> None:
        async with bench(tmp_path) as made:
            assert await made.sweep()
            made.by_hand("UPDATE alembic_version SET version_num = '9999'")
            recorded = [await made.sweep() for _ in range(PROBE_EVERY)]
            assert recorded == [True] * (PROBE_EVERY - 1) + [False]
            assert made.told() == ["registry.unavailable"]
            made.by_hand(f"UPDATE alembic_version SET version_num = '{REVISION}'")
            assert await made.sweep()
            assert await made.sweep()
            assert made.told() == ["registry.unavailable", "registry.recovered"]

    asyncio.run(story())
