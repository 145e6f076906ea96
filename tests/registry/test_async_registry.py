"""Writes that queue up while the disk is busy are committed together; one caller's mistake affects no other."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from tests.registry.samples import NOW, add
from watchdog.core.agent import Status
from watchdog.core.kill import Reason
from watchdog.errors import Conflict, RegistryUnavailable
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.registry.rows import SweepRow

Asked = list[asyncio.Task[Any]]


class Disk:
    """Holds back the commits of a registry, and counts them."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.commits = 0
        self.free = threading.Event()
        self.reached = threading.Event()
        self.free.set()
        event.listen(registry.engines.durable, "commit", self._commit)

    def _commit(self, _connection: object) -> None:
        self.commits += 1
        self.reached.set()
        assert self.free.wait(60)

    @asynccontextmanager
    async def busy(self, async_registry: AsyncRegistry) -> AsyncIterator[Asked]:
        """While one write waits for the disk, the block's writes queue up behind it; all are answered at the end."""
        self.free.clear()
        self.reached.clear()
        first = asyncio.create_task(
            async_registry.write(self.registry.history.add_event, "t.first", None, "t", "w", NOW)
        )
        asked: Asked = []
        try:
            await asyncio.to_thread(self.reached.wait, 20)
            yield asked
            await asyncio.sleep(0)  # each has put its write into the queue
        finally:
            self.free.set()
        await asyncio.gather(first, *asked, return_exceptions=True)


def order(async_registry: AsyncRegistry, asked: Asked, *calls: Coroutine[Any, Any, Any]) -> None:
    """Queue writes, in this order."""
    asked += [asyncio.create_task(call) for call in calls]


def events_of(registry: Registry) -> list[str]:
    return [row.event for row in registry.history.events(0) if row.event.startswith("t.")]


def words(async_registry: AsyncRegistry, *names: str) -> list[Coroutine[Any, Any, int]]:
    return [async_registry.write(async_registry.history.add_event, name, None, "t", "w", NOW) for name in names]


async def what_waits_is_one_commit(registry: Registry) -> None:
    """Three writes behind a busy disk: one commit for all, in the order of the calls."""
    async_registry, disk = AsyncRegistry(registry), Disk(registry)
    async with disk.busy(async_registry) as asked:
        order(async_registry, asked, *words(async_registry, "t.1", "t.2", "t.3"))
    assert events_of(registry) == ["t.first", "t.1", "t.2", "t.3"]
    assert disk.commits == 2
    ids = [task.result() for task in asked]
    assert ids == sorted(ids)
    async_registry.close()


async def a_conflict_is_its_own(registry: Registry) -> None:
    """An id used twice, a request already open, a change that no longer applies: the other writes are committed."""
    async_registry, disk = AsyncRegistry(registry), Disk(registry)
    add(registry, "a1")
    async with disk.busy(async_registry) as asked:
        order(
            async_registry,
            asked,
            *words(async_registry, "t.1"),
            async_registry.write(lambda: add(registry, "a1")),
            async_registry.write(registry.kills.open_request, "r1", "a1", Reason.STALLED, by="daemon", now=NOW),
            async_registry.write(registry.kills.open_request, "r2", "a1", Reason.STALLED, by="daemon", now=NOW),
            async_registry.write(registry.kills.open_request, "r3", "nobody", Reason.STALLED, by="daemon", now=NOW),
            async_registry.write(
                registry.agents.transition, "a1", {Status.QUEUED}, Status.ENDING, now=NOW, who="t", why="w"
            ),
            async_registry.write(registry.agents.save_sweep, [SweepRow("a1", 7.0, 9.0, 3, True)]),
            *words(async_registry, "t.2"),
        )
    assert isinstance(asked[1].exception(), Conflict)
    assert [asked[2].result(), asked[3].result()] == [True, False]
    assert isinstance(asked[4].exception(), Conflict)
    assert asked[5].result() is False
    assert events_of(registry) == ["t.first", "t.1", "t.2"]
    assert [row.request_id for row in registry.kills.open_requests("h1")[0]] == ["r1"]
    row = registry.agents.get("a1")
    assert row is not None
    assert row.beats == 3
    assert disk.commits == 3  # the agent, the first event, and one for all of these
    async_registry.close()


def test_what_waits_is_one_commit(registry: Registry) -> None:
    asyncio.run(what_waits_is_one_commit(registry))


def test_a_conflict_is_its_own(registry: Registry) -> None:
    asyncio.run(a_conflict_is_its_own(registry))


def test_nobody_is_answered_before_the_commit(registry: Registry, database: Path) -> None:
    """A caller acts on its intent as soon as it is answered: by then another connection must see it."""

    async def story() -> None:
        async_registry, disk = AsyncRegistry(registry), Disk(registry)
        async with disk.busy(async_registry) as asked:
            order(async_registry, asked, *words(async_registry, "t.1", "t.2"))
        seen: list[int] = []

        def look(_task: object) -> None:
            with sqlite3.connect(database) as other:
                seen.append(other.execute("SELECT count(*) FROM lifecycle_event").fetchone()[0])

        async with disk.busy(async_registry) as asked:
            order(async_registry, asked, *words(async_registry, "t.3", "t.4"))
            for task in asked:
                task.add_done_callback(look)
        assert seen == [6, 6]
        async_registry.close()

    asyncio.run(story())


def test_a_full_disk_fails_all_who_waited_and_the_next_one_is_served(registry: Registry) -> None:
    """SQLite ends the whole transaction: no caller may believe that its part of it is saved."""

    async def story() -> None:
        async_registry, disk = AsyncRegistry(registry), Disk(registry)
        async with disk.busy(async_registry) as asked:
            order(async_registry, asked, *words(async_registry, "t.1"))
            order(async_registry, asked, async_registry.write(fill_the_disk))
            order(async_registry, asked, *words(async_registry, "t.2"))
        assert [type(task.exception()) for task in asked] == [RegistryUnavailable] * 3
        assert events_of(registry) == ["t.first"]
        registry.engines.close()  # the limit set below belongs to the connection
        await asyncio.gather(*words(async_registry, "t.3"))
        assert events_of(registry) == ["t.first", "t.3"]
        async_registry.close()

    def fill_the_disk() -> None:
        with registry.engines.begin(registry.engines.durable) as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")
        registry.history.add_event("t.big", None, "t", "x" * 1_000_000, NOW)

    asyncio.run(story())


def test_a_commit_that_fails_fails_all_who_waited(registry: Registry) -> None:
    """Each caller gets an exception of its own."""

    async def story() -> None:
        async_registry, disk = AsyncRegistry(registry), Disk(registry)
        broken = threading.Event()

        @event.listens_for(registry.engines.durable, "commit")
        def fail(connection: Any) -> None:
            if broken.is_set():
                connection.exec_driver_sql("ROLLBACK")
                connection.exec_driver_sql("COMMIT")  # "cannot commit - no transaction is active"

        async with disk.busy(async_registry) as asked:
            broken.set()
            order(async_registry, asked, *words(async_registry, "t.1", "t.2"))
        failures = [task.exception() for task in asked]
        assert [type(failure) for failure in failures] == [RegistryUnavailable] * 2
        assert failures[0] is not failures[1]
        assert events_of(registry) == []  # the first one's commit failed too
        async_registry.close()

    asyncio.run(story())


def test_a_fault_of_our_own_is_its_own(registry: Registry) -> None:
    """A TypeError in one write reaches its caller; the others are committed."""

    async def story() -> None:
        async_registry, disk = AsyncRegistry(registry), Disk(registry)
        async with disk.busy(async_registry) as asked:
            order(
                async_registry,
                asked,
                *words(async_registry, "t.1"),
                async_registry.write(registry.retention.forget, "yesterday", ()),  # type: ignore[arg-type]
            )
            order(async_registry, asked, *words(async_registry, "t.2"))
        assert not isinstance(asked[1].exception(), RegistryUnavailable | None)
        assert events_of(registry) == ["t.first", "t.1", "t.2"]
        async_registry.close()

    asyncio.run(story())


def test_a_caller_that_is_cancelled_does_not_undo_his_write(registry: Registry) -> None:
    """Nor those beside it."""

    async def story() -> None:
        async_registry, disk = AsyncRegistry(registry), Disk(registry)
        async with disk.busy(async_registry) as asked:
            order(async_registry, asked, *words(async_registry, "t.1", "t.2"))
            await asyncio.sleep(0)
            asked[0].cancel()
        async_registry.close()
        assert asked[0].cancelled()
        assert asked[1].result() > 0

    asyncio.run(story())
    again = Registry(str(registry.engines.url)).open()
    assert events_of(again) == ["t.first", "t.1", "t.2"]
    again.close()


@pytest.mark.parametrize("count", [1, 450])
def test_any_number_is_answered(registry: Registry, count: int) -> None:
    """A single write, and more than fit into one transaction."""

    async def story() -> None:
        async_registry = AsyncRegistry(registry)
        await asyncio.gather(*words(async_registry, *[f"t.{number}" for number in range(count)]))
        assert events_of(registry) == [f"t.{number}" for number in range(count)]
        async_registry.close()

    asyncio.run(story())


def test_what_is_asked_for_after_the_end_is_answered(tmp_path: Path) -> None:
    """No caller waits for ever for a writer that has stopped."""

    async def story() -> None:
        async_registry = AsyncRegistry(Registry(f"sqlite:///{tmp_path}/registry.db").open())
        async_registry.close()
        with pytest.raises(RegistryUnavailable, match="is closed"):
            await asyncio.wait_for(
                async_registry.write(async_registry.history.add_event, "t.late", None, "t", "w", NOW), 5
            )

    asyncio.run(story())


def test_a_disk_that_hangs_keeps_nobody_waiting(registry: Registry) -> None:
    """Until the disk answers, each waiting write fails within `patience`, each new one at once, and `close` is bounded.

    The writes that waited are not done afterwards: their callers got an error.
    """

    async def story() -> None:
        async_registry, disk = AsyncRegistry(registry), Disk(registry)
        async_registry.patience = 0.5
        async with disk.busy(async_registry) as asked:
            order(async_registry, asked, *words(async_registry, "t.1", "t.2"))
            for write in asked:
                with pytest.raises(RegistryUnavailable, match="no answer within"):
                    await asyncio.wait_for(write, 60)
            with pytest.raises(RegistryUnavailable):
                await asyncio.wait_for(
                    async_registry.write(registry.history.add_event, "t.3", None, "t", "w", NOW), 0.4
                )
            assert registry.engines.trouble is not None
        async_registry.patience = 60
        await asyncio.gather(*words(async_registry, "t.4"))
        assert events_of(registry) == ["t.first", "t.4"]

        disk.free.clear()
        last = asyncio.create_task(async_registry.write(registry.history.add_event, "t.5", None, "t", "w", NOW))
        await asyncio.sleep(0)
        assert not async_registry.close(0.2), "its writer is left to itself"
        disk.free.set()
        await last

    asyncio.run(story())


def test_a_disk_that_hangs_and_then_is_full_is_served_again(registry: Registry) -> None:
    """Writes whose callers had given up were repeated into the reserve, which ended the writer's thread in the middle
    of its work. The registry then counted as hung until the daemon's restart: no kill, no registration.
    """
    gate = threading.Event()

    def slow_then_full() -> None:
        assert gate.wait(60)
        failure = RegistryUnavailable("database or disk is full")
        failure.full = True
        raise failure

    async def story() -> None:
        async_registry = AsyncRegistry(registry, reserve=lambda: True)
        async_registry.patience = 0.5
        with pytest.raises(RegistryUnavailable, match="no answer within"):
            await asyncio.wait_for(async_registry.write(slow_then_full), 60)
        gate.set()
        async with asyncio.timeout(60):
            while True:
                with suppress(RegistryUnavailable):
                    await asyncio.gather(*words(async_registry, "t.1"))
                    break
                await asyncio.sleep(0.05)
        assert events_of(registry) == ["t.1"]
        async_registry.close()

    asyncio.run(story())


def test_reads_that_hang_keep_two_threads(registry: Registry) -> None:
    """A third read fails at once."""
    gate = threading.Event()

    async def story() -> None:
        async_registry = AsyncRegistry(registry)
        async_registry.patience = 0.3
        for read in [asyncio.create_task(async_registry.read(gate.wait)) for _ in range(2)]:
            with pytest.raises(RegistryUnavailable, match="no answer within"):
                await asyncio.wait_for(read, 60)
        async_registry.patience = 0.0
        with pytest.raises(RegistryUnavailable):
            await async_registry.read(int)
        gate.set()
        async_registry.patience = 60.0
        assert await async_registry.read(int) == 0
        async_registry.close()

    asyncio.run(story())
