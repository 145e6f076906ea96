"""The same guarantees on PostgreSQL, on a server of this test's own (skipped where PostgreSQL is not installed)."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from tests.postgresql import BINARIES, Server, running_server
from tests.registry.samples import FULL, NOW, add
from tests.registry.test_async_registry import a_conflict_is_its_own, what_waits_is_one_commit
from watchdog.core.agent import Status
from watchdog.core.kill import Reason
from watchdog.errors import AlreadyRunning, ConfigError, RegistryUnavailable
from watchdog.registry import engines
from watchdog.registry.engines import REFUSE, Engines
from watchdog.registry.registry import Registry
from watchdog.registry.retention_queries import RetentionKind
from watchdog.registry.rows import SweepRow
from watchdog.registry.schema import metadata

pytestmark = pytest.mark.skipif(not BINARIES, reason="PostgreSQL is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    """A server of this module's own."""
    with running_server() as running:
        yield running


@pytest.fixture(scope="module")
def server(cluster: Server) -> str:
    """Its URL."""
    return cluster.url()


@pytest.fixture
def registry(server: str) -> Iterator[Registry]:
    """An open registry on an empty database."""
    registry = Registry(server, busy_timeout=timedelta(seconds=5))
    with registry.engines.begin(registry.engines.durable) as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    yield registry.open()
    registry.close()


def test_migrated_and_declared_tables_are_the_same(registry: Registry) -> None:
    """Alembic finds no difference."""
    with registry.engines.begin(registry.engines.reading) as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_a_story_reads_the_same(registry: Registry) -> None:
    """Register, sweep, request, claim, step, finish, end."""
    assert registry.agents.add(FULL, Status.RUNNING, NOW, "uid 1000").registration == FULL
    registry.agents.save_sweep(
        [SweepRow(FULL.agent_id, 7.0, 9.0, 3, True, last_heartbeat=NOW, note="a\0b", last_progress=float("nan"))]
    )
    assert registry.kills.open_request("r1", FULL.agent_id, Reason.STALLED, by="daemon", now=NOW)
    assert not registry.kills.open_request("r2", FULL.agent_id, Reason.STALLED, by="daemon", now=NOW)
    assert registry.kills.claim_request("r1", "me", NOW)
    assert registry.kills.save_step("r1", "term", members=[{"pid": 4242}])
    assert registry.kills.finish_request("r1", "done", {"4242": "TERM"}, now=NOW, who="daemon", why="all dead")
    assert registry.agents.transition(
        FULL.agent_id, {Status.RUNNING}, Status.KILLED, now=NOW, who="daemon", why="stalled"
    )
    row = registry.agents.get(FULL.agent_id)
    assert row is not None
    assert (row.silence_seconds, row.beats, row.completed_at, row.last_progress) == (7.0, 3, NOW, None)
    assert [event.event for event in registry.history.events(0)] == [
        "agent.registered",
        "kill.requested",
        "kill.finished",
        "agent.ended",
    ]
    for kind in RetentionKind:
        assert registry.retention.forget(kind, registry.retention.due(kind, NOW + timedelta(days=1), FULL.host)) >= 0
    assert (registry.agents.newest(ended=True), registry.history.events(0)) == ([], [])


def test_of_many_that_change_a_status_at_once_one_wins(registry: Registry) -> None:
    """Without BEGIN IMMEDIATE, the UPDATE's own condition decides."""
    add(registry)
    barrier, won = threading.Barrier(4), []

    def claim(number: int) -> None:
        barrier.wait(60)
        if registry.agents.transition("a1", {Status.RUNNING}, Status.ENDING, now=NOW, who=str(number), why="race"):
            won.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(won) == 1


def test_events_are_seen_in_the_order_of_their_ids(registry: Registry) -> None:
    """A later id is never committed before an earlier one: a client that continues from the last id misses nothing."""
    seen: list[int] = []
    stop = threading.Event()

    def follow() -> None:
        while not stop.is_set() or registry.history.events(seen[-1] if seen else 0):
            seen.extend(event.id for event in registry.history.events(seen[-1] if seen else 0))

    def write() -> None:
        for _ in range(50):
            registry.history.add_event("agent.late", None, "t", "w", NOW)

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


def test_a_lost_connection_is_unavailable_and_then_works(registry: Registry) -> None:
    """The server ended a connection in the middle of a transaction; the next call gets a new one."""
    add(registry)
    with (
        pytest.raises(RegistryUnavailable, match="57P01"),
        registry.engines.begin(registry.engines.reading) as connection,
        registry.engines.begin(registry.engines.durable) as other,
    ):
        own = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        other.execute(text("SELECT pg_terminate_backend(:own, 5000)"), {"own": own})
        connection.execute(text("SELECT 1"))
    assert registry.agents.get("a1") is not None


def test_what_waits_is_one_commit(registry: Registry) -> None:
    """In the order of the calls."""
    asyncio.run(what_waits_is_one_commit(registry))


def test_a_conflict_undoes_nothing_of_its_neighbours(registry: Registry) -> None:
    """PostgreSQL refuses the rest of a transaction after a statement has failed, unless it returns to a savepoint."""
    asyncio.run(a_conflict_is_its_own(registry))


@contextmanager
def locked(server: str, table: str) -> Iterator[None]:
    """Locked by a session that the server does not end: it would end a daemon's after half the limit, with the lock."""
    with psycopg.connect(server) as other:
        other.execute(f"LOCK TABLE {table}".encode())
        yield


def test_a_lock_of_another_session_is_waited_for_no_longer_than_the_limit(registry: Registry, server: str) -> None:
    """Afterwards the same write works."""
    add(registry)
    exclusive = "agent_lifecycle IN ACCESS EXCLUSIVE MODE"
    with locked(server, exclusive), pytest.raises(RegistryUnavailable, match=r"55P03|57014"):
        registry.agents.save_sweep([SweepRow("a1", 1.0, 1.0, 1, True)])
    time.sleep(REFUSE)  # other calls are refused for so long after a slow failure
    registry.agents.save_sweep([SweepRow("a1", 1.0, 1.0, 1, True)])


def test_who_is_stopped_in_a_transaction_keeps_nobody_else_waiting(registry: Registry, server: str) -> None:
    """All hosts' daemons write events one at a time: one that was SIGSTOPped there kept the others from killing."""
    add(registry)
    stopped, other = (Registry(server, busy_timeout=timedelta(seconds=3)) for _ in range(2))
    with pytest.raises(RegistryUnavailable, match="idle-in-transaction"), stopped.engines.group():
        other.history.add_event("agent.late", "a1", "daemon", "waited for its turn", NOW)
        stopped.agents.save_sweep([SweepRow("a1", 1.0, 1.0, 1, True)])
    time.sleep(REFUSE)
    stopped.agents.save_sweep([SweepRow("a1", 1.0, 1.0, 1, True)])
    for one in (stopped, other):
        one.close()


def test_a_probe_asks_for_locks_and_changes_nothing(registry: Registry, server: str) -> None:
    """A lock that blocks only writes is found before a kill meets it; the trial after a failure leaves no row."""
    add(registry)
    before = registry.history.events(0)
    with locked(server, "kill_request IN SHARE MODE"), pytest.raises(RegistryUnavailable, match=r"55P03|57014"):
        registry.probe()
    time.sleep(REFUSE)
    registry.probe(trial=True)
    assert (registry.engines.trouble, registry.history.events(0)) == (None, before)


def test_a_connection_from_when_the_server_was_read_only_is_not_kept(registry: Registry) -> None:
    """ALTER DATABASE, or a standby that was promoted since: its session would refuse writes for ever."""
    add(registry)
    with registry.engines.durable.connect() as connection:
        connection.exec_driver_sql("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        connection.commit()
    with pytest.raises(RegistryUnavailable, match="25006"):
        registry.kills.open_request("r1", "a1", Reason.STALLED, by="daemon", now=NOW)
    assert registry.kills.open_request("r1", "a1", Reason.STALLED, by="daemon", now=NOW)


REFUSED = 5.0  # seconds instead of one: a starved test may need that long until its next call


def test_a_stopped_server_is_noticed_and_works_again_when_it_goes_on(
    registry: Registry, server: str, cluster: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP: the kernel still acknowledges, so nothing in libpq ends the wait."""
    add(registry)
    hasty = Registry(server, busy_timeout=timedelta(seconds=4))  # half of it may pass between two statements of a probe
    assert hasty.agents.get("a1") is not None
    cluster.signal(signal.SIGSTOP)
    monkeypatch.setattr(engines, "REFUSE", REFUSED)
    began = time.monotonic()
    try:
        with pytest.raises(RegistryUnavailable):
            hasty.agents.get("a1")
        slow = time.monotonic() - began
        assert slow < 60
        began = time.monotonic()
        with pytest.raises(RegistryUnavailable):
            hasty.agents.get("a1")  # right behind the slow failure: at once
        assert time.monotonic() - began < max(0.5, slow / 2)
    finally:
        cluster.signal(signal.SIGCONT)
    time.sleep(REFUSED)  # other calls are refused for so long after a slow failure
    assert hasty.agents.get("a1") is not None
    trouble = hasty.engines.trouble
    assert trouble
    hasty.probe()
    assert hasty.engines.trouble is None
    hasty.close()


def test_one_daemon_of_a_host_is_heard_at_a_time(registry: Registry, server: str) -> None:
    """A host's second daemon is refused while the first is connected; one of another host, or a later one, is not."""
    second, elsewhere = Registry(server), Registry(server)
    registry.claim_host("h1")
    registry.keep_host()
    with pytest.raises(AlreadyRunning, match=r"host 'h1' is connected.*daemon\.host"):
        second.claim_host("h1", timedelta())
    elsewhere.claim_host("h2", timedelta())
    registry.close()
    second.claim_host("h1", timedelta(seconds=5))
    for one in (second, elsewhere):
        one.close()


@pytest.mark.parametrize("query", ["nonsense=1", "options=a&options=b"])
def test_a_url_that_no_connection_can_be_made_of_is_a_fault_of_the_configuration(query: str) -> None:
    """Exit 78 instead of retrying for ever. The message has no part of a password."""
    with pytest.raises(ConfigError, match=query.partition("=")[0]) as caught:
        Engines(f"postgresql://me:secret@127.0.0.1:1/d?{query}")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "EUC_JP"])
def test_a_database_that_cannot_hold_every_word_is_a_fault_of_the_configuration(cluster: Server, encoding: str) -> None:
    """Case O7: the daemon ended with a TypeError of its driver, or at the first name that the encoding did not have."""
    name = encoding.lower()
    locale = "LC_COLLATE 'C' LC_CTYPE 'C'"
    cluster.sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' {locale}")
    refused = Registry(cluster.url(name))

    with pytest.raises(ConfigError, match=f"{name} has encoding {encoding}, .*; use a database with ENCODING 'UTF8'"):
        refused.open()
    refused.close()


def test_a_database_whose_user_may_make_no_tables_is_a_fault_of_the_configuration(cluster: Server) -> None:
    """O7: it was "42501", retried for ever. The remedy in the message works."""
    cluster.sql("CREATE ROLE weak LOGIN")
    cluster.sql("CREATE DATABASE strict")
    refused = Registry(cluster.url("strict").replace("postgres@", "weak@"))
    with pytest.raises(ConfigError, match="user weak may not create tables in schema public; as owner ") as fault:
        refused.open()
    allowed = str(fault.value).rpartition(", run ")[2]
    assert allowed == "GRANT ALL ON SCHEMA public TO weak"

    owner = Registry(cluster.url("strict"))
    with owner.engines.begin(owner.engines.durable) as connection:
        connection.execute(text(allowed))
    owner.close()
    refused.open()
    refused.close()


@pytest.mark.parametrize("told", ["SQL_ASCII", "LATIN1"])
@pytest.mark.parametrize("by", ["the environment", "the URL", "its options"])
def test_words_are_utf8_whatever_the_client_is_told(
    cluster: Server, monkeypatch: pytest.MonkeyPatch, by: str, told: str
) -> None:
    """Like O7, with a UTF-8 database and a connection that was told another encoding."""
    url = cluster.database()
    match by:
        case "the environment":
            monkeypatch.setenv("PGCLIENTENCODING", told)
        case "the URL":
            url += f"&client_encoding={told}"
        case _:
            url += f"&options=-c%20client_encoding%3D{told}"
    registry = Registry(url).open()
    add(registry, "a1", name="Ärger-名前")

    assert [row.registration.name for row in registry.agents.by_name("Ärger-名前")] == ["Ärger-名前"]
    registry.close()
