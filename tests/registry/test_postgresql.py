"""The same promises on PostgreSQL, on a server of this test's own (skipped where no PostgreSQL is installed)."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from tests.postgresql import BINARIES, running_server
from tests.registry.samples import FULL, NOW, add
from tests.registry.test_group import a_conflict_is_its_own, what_waits_is_one_commit
from watchdog.core.model import Reason, Status
from watchdog.errors import RegistryUnavailable
from watchdog.registry.retention import Kind
from watchdog.registry.rows import SweepRow
from watchdog.registry.schema import metadata
from watchdog.registry.store import Store

pytestmark = pytest.mark.skipif(not BINARIES, reason="PostgreSQL is not installed")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server of this module's own; its URL."""
    with running_server() as running:
        yield running.url()


@pytest.fixture
def store(server: str) -> Iterator[Store]:
    """An open store on an empty database."""
    store = Store(server, busy_timeout=timedelta(seconds=5))
    with store.engines.begin(store.engines.durable) as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    yield store.open()
    store.close()


def test_migrated_and_declared_tables_are_the_same(store: Store) -> None:
    """Alembic finds no difference."""
    with store.engines.begin(store.engines.reading) as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_a_story_reads_the_same(store: Store) -> None:
    """Register, sweep, order, claim, step, finish, end."""
    assert store.add_agent(FULL, Status.RUNNING, NOW, "uid 1000").registration == FULL
    store.save_sweep(
        [SweepRow(FULL.agent_id, 7.0, 9.0, 3, True, last_heartbeat=NOW, note="a\0b", last_progress=float("nan"))]
    )
    assert store.open_request("r1", FULL.agent_id, Reason.STALLED, by="daemon", now=NOW) is not None
    assert store.open_request("r2", FULL.agent_id, Reason.STALLED, by="daemon", now=NOW) is None
    assert store.claim_request("r1", "me", NOW)
    assert store.save_step("r1", "term", members=[{"pid": 4242}])
    assert store.finish_request("r1", "done", {"4242": "TERM"}, now=NOW, who="daemon", why="all dead")
    assert store.transition(FULL.agent_id, {Status.RUNNING}, Status.KILLED, now=NOW, who="daemon", why="stalled")
    row = store.agent(FULL.agent_id)
    assert row is not None
    assert (row.silence_seconds, row.beats, row.completed_at, row.last_progress) == (7.0, 3, NOW, None)
    assert [event.event for event in store.events(0)] == [
        "agent.registered",
        "kill.requested",
        "kill.finished",
        "agent.ended",
    ]
    for kind in Kind:
        assert store.forget(kind, store.due(kind, NOW + timedelta(days=1), FULL.host)) >= 0
    assert (store.agents(ended=True), store.events(0)) == ([], [])


def test_of_many_that_change_a_status_at_once_one_wins(store: Store) -> None:
    """Without BEGIN IMMEDIATE it is the UPDATE's own condition that decides."""
    add(store)
    barrier, won = threading.Barrier(4), []

    def claim(number: int) -> None:
        barrier.wait(10)
        if store.transition("a1", {Status.RUNNING}, Status.ENDING, now=NOW, who=str(number), why="race"):
            won.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(won) == 1


def test_events_are_seen_in_the_order_of_their_ids(store: Store) -> None:
    """A later id is never committed before an earlier one: who reads on from the last id he saw misses nothing."""
    seen: list[int] = []
    stop = threading.Event()

    def follow() -> None:
        while not stop.is_set() or store.events(seen[-1] if seen else 0):
            seen.extend(event.id for event in store.events(seen[-1] if seen else 0))

    def write() -> None:
        for _ in range(50):
            store.add_event("agent.late", None, "t", "w", NOW)

    reader = threading.Thread(target=follow)
    writers = [threading.Thread(target=write) for _ in range(3)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join(60)
    stop.set()
    reader.join(60)
    assert len(seen) == 150
    assert seen == sorted(seen)


def test_a_lost_connection_is_unavailable_and_then_works(store: Store) -> None:
    """The server ended a connection in the middle of a transaction; the next call has a new one."""
    add(store)
    with (
        pytest.raises(RegistryUnavailable, match="57P01"),
        store.engines.begin(store.engines.reading) as connection,
        store.engines.begin(store.engines.durable) as other,
    ):
        own = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        other.execute(text("SELECT pg_terminate_backend(:own, 5000)"), {"own": own})
        connection.execute(text("SELECT 1"))
    assert store.agent("a1") is not None


def test_what_waits_is_one_commit(store: Store) -> None:
    """In the order in which it was asked for."""
    asyncio.run(what_waits_is_one_commit(store))


def test_a_conflict_undoes_nothing_of_its_neighbours(store: Store) -> None:
    """PostgreSQL refuses the rest of a transaction in which a statement failed, but for the savepoint."""
    asyncio.run(a_conflict_is_its_own(store))
