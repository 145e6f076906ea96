"""What is asked for while the disk is busy is committed together, and nobody's fate hangs on another's mistake."""

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
from watchdog.registry.rows import SweepRow
from watchdog.registry.store import AsyncStore, Store

Asked = list[asyncio.Task[Any]]


class Disk:
    """Holds the commits of a store back, and counts them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.commits = 0
        self.free = threading.Event()
        self.reached = threading.Event()
        self.free.set()
        event.listen(store.engines.durable, "commit", self._commit)

    def _commit(self, _connection: object) -> None:
        self.commits += 1
        self.reached.set()
        assert self.free.wait(60)

    @asynccontextmanager
    async def busy(self, registry: AsyncStore) -> AsyncIterator[Asked]:
        """One write is at the disk; what the block asks for waits behind it, and is answered before we go on."""
        self.free.clear()
        self.reached.clear()
        first = asyncio.create_task(registry.write(self.store.add_event, "t.first", None, "t", "w", NOW))
        asked: Asked = []
        try:
            await asyncio.to_thread(self.reached.wait, 20)
            yield asked
            await asyncio.sleep(0)  # each has put its write into the queue
        finally:
            self.free.set()
        await asyncio.gather(first, *asked, return_exceptions=True)


def order(registry: AsyncStore, asked: Asked, *calls: Coroutine[Any, Any, Any]) -> None:
    """Ask for writes, in this order."""
    asked += [asyncio.create_task(call) for call in calls]


def events_of(store: Store) -> list[str]:
    return [row.event for row in store.events(0) if row.event.startswith("t.")]


def words(registry: AsyncStore, *names: str) -> list[Coroutine[Any, Any, int]]:
    return [registry.write(registry.store.add_event, name, None, "t", "w", NOW) for name in names]


async def what_waits_is_one_commit(store: Store) -> None:
    """Three writes behind a busy disk: one commit for all, in the order in which they were asked for."""
    registry, disk = AsyncStore(store), Disk(store)
    async with disk.busy(registry) as asked:
        order(registry, asked, *words(registry, "t.1", "t.2", "t.3"))
    assert events_of(store) == ["t.first", "t.1", "t.2", "t.3"]
    assert disk.commits == 2
    ids = [task.result() for task in asked]
    assert ids == sorted(ids)
    registry.close()


async def a_conflict_is_its_own(store: Store) -> None:
    """An id used twice, a request open already, a change that no longer fits: the neighbours are committed."""
    registry, disk = AsyncStore(store), Disk(store)
    add(store, "a1")
    async with disk.busy(registry) as asked:
        order(
            registry,
            asked,
            *words(registry, "t.1"),
            registry.write(lambda: add(store, "a1")),
            registry.write(store.open_request, "r1", "a1", Reason.STALLED, by="daemon", now=NOW),
            registry.write(store.open_request, "r2", "a1", Reason.STALLED, by="daemon", now=NOW),
            registry.write(store.open_request, "r3", "nobody", Reason.STALLED, by="daemon", now=NOW),
            registry.write(store.transition, "a1", {Status.QUEUED}, Status.ENDING, now=NOW, who="t", why="w"),
            registry.write(store.save_sweep, [SweepRow("a1", 7.0, 9.0, 3, True)]),
            *words(registry, "t.2"),
        )
    assert isinstance(asked[1].exception(), Conflict)
    assert [asked[2].result(), asked[3].result()] == [True, False]
    assert isinstance(asked[4].exception(), Conflict)
    assert asked[5].result() is False
    assert events_of(store) == ["t.first", "t.1", "t.2"]
    assert [row.request_id for row in store.open_requests("h1")[0]] == ["r1"]
    row = store.agent("a1")
    assert row is not None
    assert row.beats == 3
    assert disk.commits == 3  # the agent, the first word, and one for all of these
    registry.close()


def test_what_waits_is_one_commit(store: Store) -> None:
    asyncio.run(what_waits_is_one_commit(store))


def test_a_conflict_is_its_own(store: Store) -> None:
    asyncio.run(a_conflict_is_its_own(store))


def test_nobody_is_answered_before_the_commit(store: Store, database: Path) -> None:
    """An intent is acted on when its caller is answered: by then another connection must see it."""

    async def story() -> None:
        registry, disk = AsyncStore(store), Disk(store)
        async with disk.busy(registry) as asked:
            order(registry, asked, *words(registry, "t.1", "t.2"))
        seen: list[int] = []

        def look(_task: object) -> None:
            with sqlite3.connect(database) as other:
                seen.append(other.execute("SELECT count(*) FROM lifecycle_event").fetchone()[0])

        async with disk.busy(registry) as asked:
            order(registry, asked, *words(registry, "t.3", "t.4"))
            for task in asked:
                task.add_done_callback(look)
        assert seen == [6, 6]
        registry.close()

    asyncio.run(story())


def test_a_full_disk_fails_all_who_waited_and_the_next_one_is_served(store: Store) -> None:
    """SQLite ends the whole transaction: nobody may believe that his part of it is written."""

    async def story() -> None:
        registry, disk = AsyncStore(store), Disk(store)
        async with disk.busy(registry) as asked:
            order(registry, asked, *words(registry, "t.1"))
            order(registry, asked, registry.write(fill_the_disk))
            order(registry, asked, *words(registry, "t.2"))
        assert [type(task.exception()) for task in asked] == [RegistryUnavailable] * 3
        assert events_of(store) == ["t.first"]
        store.engines.close()  # the limit below was the connection's
        await asyncio.gather(*words(registry, "t.3"))
        assert events_of(store) == ["t.first", "t.3"]
        registry.close()

    def fill_the_disk() -> None:
        with store.engines.begin(store.engines.durable) as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")
        store.add_event("t.big", None, "t", "x" * 1_000_000, NOW)

    asyncio.run(story())


def test_a_commit_that_fails_fails_all_who_waited(store: Store) -> None:
    """Each is told in an exception of his own."""

    async def story() -> None:
        registry, disk = AsyncStore(store), Disk(store)
        broken = threading.Event()

        @event.listens_for(store.engines.durable, "commit")
        def fail(connection: Any) -> None:
            if broken.is_set():
                connection.exec_driver_sql("ROLLBACK")
                connection.exec_driver_sql("COMMIT")  # "cannot commit - no transaction is active"

        async with disk.busy(registry) as asked:
            broken.set()
            order(registry, asked, *words(registry, "t.1", "t.2"))
        failures = [task.exception() for task in asked]
        assert [type(failure) for failure in failures] == [RegistryUnavailable] * 2
        assert failures[0] is not failures[1]
        assert events_of(store) == []  # the first one's commit failed too
        registry.close()

    asyncio.run(story())


def test_a_fault_of_our_own_is_its_own(store: Store) -> None:
    """A TypeError in one write reaches its caller; the others are committed."""

    async def story() -> None:
        registry, disk = AsyncStore(store), Disk(store)
        async with disk.busy(registry) as asked:
            order(registry, asked, *words(registry, "t.1"), registry.write(store.forget, "yesterday", ()))  # type: ignore[arg-type]
            order(registry, asked, *words(registry, "t.2"))
        assert not isinstance(asked[1].exception(), RegistryUnavailable | None)
        assert events_of(store) == ["t.first", "t.1", "t.2"]
        registry.close()

    asyncio.run(story())


def test_a_caller_that_is_cancelled_does_not_undo_his_write(store: Store) -> None:
    """Nor his neighbours'."""

    async def story() -> None:
        registry, disk = AsyncStore(store), Disk(store)
        async with disk.busy(registry) as asked:
            order(registry, asked, *words(registry, "t.1", "t.2"))
            await asyncio.sleep(0)
            asked[0].cancel()
        registry.close()
        assert asked[0].cancelled()
        assert asked[1].result() > 0

    asyncio.run(story())
    again = Store(str(store.engines.url)).open()
    assert events_of(again) == ["t.first", "t.1", "t.2"]
    again.close()


@pytest.mark.parametrize("count", [1, 450])
def test_any_number_is_answered(store: Store, count: int) -> None:
    """One alone, and more than one transaction takes."""

    async def story() -> None:
        registry = AsyncStore(store)
        await asyncio.gather(*words(registry, *[f"t.{number}" for number in range(count)]))
        assert events_of(store) == [f"t.{number}" for number in range(count)]
        registry.close()

    asyncio.run(story())


def test_what_is_asked_for_after_the_end_is_answered(tmp_path: Path) -> None:
    """Nobody waits for ever for a writer that has gone."""

    async def story() -> None:
        registry = AsyncStore(Store(f"sqlite:///{tmp_path}/registry.db").open())
        registry.close()
        with pytest.raises(RegistryUnavailable, match="is closed"):
            await asyncio.wait_for(registry.write(registry.store.add_event, "t.late", None, "t", "w", NOW), 5)

    asyncio.run(story())


def test_a_disk_that_hangs_keeps_nobody_waiting(store: Store) -> None:
    """All that wait are told within `patience`, and each new write at once, until the disk answers; the end is bounded.

    What waited behind it is not done afterwards, as its caller was told that it was not.
    """

    async def story() -> None:
        registry, disk = AsyncStore(store), Disk(store)
        registry.patience = 0.5
        async with disk.busy(registry) as asked:
            order(registry, asked, *words(registry, "t.1", "t.2"))
            for write in asked:
                with pytest.raises(RegistryUnavailable, match="no answer within"):
                    await asyncio.wait_for(write, 60)
            with pytest.raises(RegistryUnavailable):
                await asyncio.wait_for(registry.write(store.add_event, "t.3", None, "t", "w", NOW), 0.4)
            assert store.engines.trouble is not None
        registry.patience = 60
        await asyncio.gather(*words(registry, "t.4"))
        assert events_of(store) == ["t.first", "t.4"]

        disk.free.clear()
        last = asyncio.create_task(registry.write(store.add_event, "t.5", None, "t", "w", NOW))
        await asyncio.sleep(0)
        assert not registry.close(0.2), "its writer is left to itself"
        disk.free.set()
        await last

    asyncio.run(story())


def test_a_disk_that_hangs_and_then_is_full_is_served_again(store: Store) -> None:
    """What nobody waited for any more was done once more into the reserve; that ended the writer's thread in the middle
    of its work, and the registry counted as hung until the daemon's restart: no kill, no registration.
    """
    gate = threading.Event()

    def slow_then_full() -> None:
        assert gate.wait(60)
        failure = RegistryUnavailable("database or disk is full")
        failure.full = True
        raise failure

    async def story() -> None:
        registry = AsyncStore(store, reserve=lambda: True)
        registry.patience = 0.5
        with pytest.raises(RegistryUnavailable, match="no answer within"):
            await asyncio.wait_for(registry.write(slow_then_full), 60)
        gate.set()
        async with asyncio.timeout(60):
            while True:
                with suppress(RegistryUnavailable):
                    await asyncio.gather(*words(registry, "t.1"))
                    break
                await asyncio.sleep(0.05)
        assert events_of(store) == ["t.1"]
        registry.close()

    asyncio.run(story())


def test_reads_that_hang_keep_two_threads(store: Store) -> None:
    """The third one is refused at once."""
    gate = threading.Event()

    async def story() -> None:
        registry = AsyncStore(store)
        registry.patience = 0.3
        for read in [asyncio.create_task(registry.read(gate.wait)) for _ in range(2)]:
            with pytest.raises(RegistryUnavailable, match="no answer within"):
                await asyncio.wait_for(read, 60)
        registry.patience = 0.0
        with pytest.raises(RegistryUnavailable):
            await registry.read(int)
        gate.set()
        registry.patience = 60.0
        assert await registry.read(int) == 0
        registry.close()

    asyncio.run(story())
