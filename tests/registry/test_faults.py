"""Hostile rows, a busy writer, a full disk, a file that vanished or is no database."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import event

from tests.registry.samples import HERE, NOW, add
from watchdog.core.agent import Status
from watchdog.core.kill import Reason
from watchdog.errors import Conflict, RegistryUnavailable, UnsafeDirectory
from watchdog.registry.registry import Registry
from watchdog.registry.rows import SweepRow


@contextmanager
def by_hand(database: Path) -> Iterator[sqlite3.Connection]:
    """A person with sqlite3 and no respect for constraints."""
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    yield connection
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("pid = 'abc'", "pid: 'abc' is not a whole number"),
        ("pid = 1", "pid: 1 is not between 2"),
        ("pid = 4.5", "pid: 4.5"),
        ("start_ticks = NULL", "start_ticks: None"),
        ("status = 'weird'", "status: 'weird' must be one of queued"),
        ("status = x'ff'", "status: "),
        ("status = 'running', state = 'dancing'", "state: 'dancing' must be one of working"),
        ("tags = 'x,y'", "tags: no JSON"),
        ("tags = '[1]'", "tags: a JSON list of str"),
        ("created_at = 'yesterday'", "created_at: 'yesterday' is not a time"),
        ("silence_seconds = -1", "silence_seconds"),
        ("silence_seconds = 9e999", "silence_seconds"),
        ("name = x'ff00'", "name: b'.*' is not text"),
        ("owner_uid = -5", "owner_uid"),
        ("stall_after_seconds = 'soon'", "stall_after_seconds"),
    ],
)
def test_a_row_that_cannot_be_read_does_not_stop_the_others(
    registry: Registry, database: Path, assignment: str, message: str
) -> None:
    """It is reported with its column; the healthy rows are returned and can still be changed."""
    add(registry, "bad", identity=HERE)
    add(registry, "good")
    with by_hand(database) as connection:
        connection.execute(f"UPDATE agent_lifecycle SET {assignment} WHERE agent_id = 'bad'")
    rows, problems = registry.agents.live("h1")
    assert [row.agent_id for row in rows] == ["good"]
    assert [problem.agent_id for problem in problems] == ["bad"]
    with pytest.raises(Conflict, match=message):
        registry.agents.get("bad")
    registry.agents.save_sweep([SweepRow("bad", 1, 1, 1, True), SweepRow("good", 1, 1, 1, True)])
    assert registry.agents.transition("good", {Status.RUNNING}, Status.ENDING, now=NOW, who="t", why="w")


def test_text_that_is_no_utf8_spoils_its_own_value_only(registry: Registry, database: Path) -> None:
    """sqlite3 would fail the whole query."""
    add(registry, "bad")
    add(registry, "good")
    with by_hand(database) as connection:
        connection.execute("UPDATE agent_lifecycle SET note = CAST(x'41ff' AS TEXT) WHERE agent_id = 'bad'")
    rows, problems = registry.agents.live("h1")
    assert {row.agent_id: row.note for row in rows} == {"bad": "A\N{REPLACEMENT CHARACTER}", "good": None}
    assert problems == []


def test_a_request_that_cannot_be_read_does_not_stop_the_others(registry: Registry, database: Path) -> None:
    """The same for kill requests."""
    for agent in ("bad", "good"):
        add(registry, agent)
        registry.kills.open_request(f"r-{agent}", agent, Reason.STALLED, by="daemon", now=NOW)
    with by_hand(database) as connection:
        connection.execute("UPDATE kill_request SET members = '{}' WHERE agent_id = 'bad'")
    rows, problems = registry.kills.open_requests("h1")
    assert [row.agent_id for row in rows] == ["good"]
    assert problems[0].agent_id == "bad"


def test_what_an_sql_only_orchestrator_writes_is_understood(registry: Registry, database: Path) -> None:
    """CURRENT_TIMESTAMP has no fraction and no zone: UTC."""
    add(registry)
    with by_hand(database) as connection:
        connection.execute(
            "UPDATE agent_lifecycle SET status = 'killed', completed_at = CURRENT_TIMESTAMP, error_message = 'x'"
        )
    row = registry.agents.get("a1")
    assert row is not None
    assert row.completed_at is not None
    assert row.completed_at.tzinfo is UTC


def test_a_busy_database_is_unavailable_after_the_timeout_and_then_works(registry: Registry, database: Path) -> None:
    """A writer that is stopped inside its transaction blocks our writes, not our reads; nothing is half-written."""
    add(registry)
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(RegistryUnavailable, match="SQLITE_BUSY"):
        registry.kills.open_request("r1", "a1", Reason.STALLED, by="daemon", now=NOW)
    with pytest.raises(RegistryUnavailable, match="SQLITE_BUSY"):
        registry.agents.save_sweep([SweepRow("a1", 1, 1, 1, True)])
    assert [row.agent_id for row in registry.agents.live("h1")[0]] == ["a1"]
    other.execute("ROLLBACK")
    other.close()
    assert registry.kills.open_request("r1", "a1", Reason.STALLED, by="daemon", now=NOW)


def test_a_full_disk_is_unavailable_and_loses_nothing(registry: Registry) -> None:
    """SQLITE_FULL in the middle of a transaction: all of it is undone, and reading works."""
    add(registry)

    @event.listens_for(registry.engines.durable, "begin")
    def limit(connection: object) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # type: ignore[attr-defined]

    with pytest.raises(RegistryUnavailable, match="SQLITE_FULL"):
        for number in range(1000):
            add(registry, f"a{number + 2}", command="x" * 4000)
    rows, problems = registry.agents.live("h1")
    assert problems == []
    assert len(rows) == sum(event.event == "agent.registered" for event in registry.history.events(0, limit=2000))


def test_a_registry_that_was_deleted_is_an_error_and_no_empty_one(registry: Registry, database: Path) -> None:
    """In a new empty file every agent would be unknown."""
    add(registry)
    registry.close()
    for path in database.parent.glob("registry.db*"):
        path.unlink()
    with pytest.raises(RegistryUnavailable, match="removed or replaced"):
        registry.agents.live("h1")
    assert not database.exists()


def test_a_file_that_is_no_database_is_said_so(tmp_path: Path) -> None:
    """It is never overwritten."""
    path = tmp_path / "registry.db"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(RegistryUnavailable, match="SQLITE_NOTADB"):
        Registry(f"sqlite:///{path}").open()
    assert path.read_bytes().startswith(b"not a database")


def test_a_link_in_place_of_the_registry_is_not_followed(tmp_path: Path) -> None:
    """Root's daemon must not create or chmod the target of a link."""
    (tmp_path / "registry.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeDirectory):
        Registry(f"sqlite:///{tmp_path}/registry.db").open()
    (tmp_path / "directory").mkdir()
    with pytest.raises(UnsafeDirectory):
        Registry(f"sqlite:///{tmp_path}/directory").open()
    with pytest.raises(RegistryUnavailable):
        Registry(f"sqlite:///{tmp_path}/missing/registry.db").open()
    assert not (tmp_path / "elsewhere").exists()


def test_a_time_without_a_zone_cannot_be_stored(registry: Registry) -> None:
    """It would be read back as UTC. A time in another zone is the same moment."""
    with pytest.raises(Exception, match="without a zone"):
        registry.history.add_event("agent.late", None, "t", "w", datetime(2026, 1, 1))
    berlin = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=1)))
    registry.history.add_event("agent.late", None, "t", "w", berlin)
    assert registry.history.events(0)[0].at == berlin
