"""SQLite's files removed under an open registry, and connections that were opened at a bad moment."""

import shutil
import socket
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.registry.samples import NOW, add
from watchdog.core.kill import Reason
from watchdog.errors import RegistryUnavailable, UnsafeDirectory
from watchdog.registry.registry import Registry
from watchdog.registry.sqlite import WAL_ROOM


def stored(database: Path) -> list[str]:
    """The requests that a daemon would find that starts after a crash of this one: from a copy of the directory."""
    copy = database.parent / "crash"
    copy.mkdir()
    for path in database.parent.glob("registry.db*"):
        shutil.copy(path, copy)
    with closing(sqlite3.connect(copy / "registry.db")) as other:
        found = [row[0] for row in other.execute("SELECT request_id FROM kill_request ORDER BY request_id")]
    shutil.rmtree(copy)
    return found


@pytest.mark.parametrize("lost", [("-wal",), ("-shm",), ("-wal", "-shm")], ids=" ".join)
def test_what_lay_in_a_removed_wal_is_saved(registry: Registry, database: Path, lost: tuple[str, ...]) -> None:
    """A committed request is on the disk again before anything else is written."""
    add(registry, "a1")
    add(registry, "a2")
    assert registry.kills.open_request("r1", "a1", Reason.STALLED, by="daemon", now=NOW)
    for suffix in lost:
        Path(f"{database}{suffix}").unlink()
    with pytest.raises(RegistryUnavailable, match="-wal or -shm was removed"):
        registry.kills.open_request("r2", "a2", Reason.STALLED, by="daemon", now=NOW)
    assert stored(database) == ["r1"]
    assert registry.kills.open_request("r2", "a2", Reason.STALLED, by="daemon", now=NOW)
    assert stored(database) == ["r1", "r2"]


def test_files_are_made_anew_only_when_nobody_uses_them(registry: Registry, database: Path) -> None:
    """An open transaction continues undisturbed; others are refused until it has ended."""
    add(registry, "a1")
    with registry.engines.begin(registry.engines.durable) as connection:
        connection.execute(text("UPDATE agent_lifecycle SET note = 'mine'"))
        Path(f"{database}-wal").unlink()
        for _ in range(2):
            with pytest.raises(RegistryUnavailable, match="-wal or -shm was removed"):
                registry.agents.get("a1")
        assert not Path(f"{database}-wal").exists()
    with pytest.raises(RegistryUnavailable, match="-wal or -shm was removed"):
        registry.agents.get("a1")
    found = registry.agents.get("a1")
    assert found is not None
    assert found.note == "mine"


def test_closed_and_used_again_is_no_fault(registry: Registry) -> None:
    """Closing the last connection removes both files; that is no foreign interference."""
    add(registry, "a1")
    registry.close()
    assert registry.agents.get("a1") is not None


def test_a_connection_that_may_not_write_is_not_kept(registry: Registry) -> None:
    """A connection opened while the disk was read-only stays read-only, even after the disk is writable again."""
    add(registry, "a1")
    for engine in (registry.engines.durable, registry.engines.quick):
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA query_only=ON")
    with pytest.raises(RegistryUnavailable, match="SQLITE_READONLY"):
        registry.kills.open_request("r1", "a1", Reason.STALLED, by="daemon", now=NOW)
    assert registry.kills.open_request("r1", "a1", Reason.STALLED, by="daemon", now=NOW)


def test_a_trial_leaves_nothing(registry: Registry) -> None:
    """The row is inserted and undone."""
    add(registry, "a1")
    before = registry.history.events(0)
    registry.probe(trial=True)
    assert registry.history.events(0) == before


@pytest.mark.parametrize("what", ["a directory", "a link", "a socket", "below a file"])
def test_what_can_never_be_a_registry_is_a_fault_of_the_configuration(tmp_path: Path, what: str) -> None:
    """Exit status 78, which systemd does not retry every two seconds; for a directory that does not exist it is 75."""
    place = tmp_path / "registry.db"
    match what:
        case "a directory":
            place.mkdir()
        case "a link":
            place.symlink_to(tmp_path / "elsewhere.db")
        case "a socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(place))
        case _:
            place.touch()
            place = place / "registry.db"
    with pytest.raises(UnsafeDirectory, match=rf"registry {place}: .*; use the path of a file") as refused:
        Registry(f"sqlite:///{place}").open()
    assert refused.value.exit_code == 78
    with pytest.raises(RegistryUnavailable):
        Registry(f"sqlite:///{tmp_path}/later/registry.db").open()


@pytest.mark.parametrize("how", ["one that stays", "short ones that overlap"])
def test_a_write_ahead_log_that_grew_under_a_reader_is_cut_when_that_has_gone(
    registry: Registry, database: Path, how: str
) -> None:
    """Case N16: it kept 93 MB. Its initial room stays allocated, as the disk may be full by then."""
    add(registry, "a1")
    log = Path(f"{database}-wal")
    with ExitStack() as readers:
        before = reading(readers, database)
        for _ in range(6):
            write(registry, 3_000_000)
            if how == "short ones that overlap":
                before, former = reading(readers, database), before
                former.close()
        assert log.stat().st_size > WAL_ROOM + (1 << 20)
    for _ in range(3):
        write(registry, 10)
    assert log.stat().st_size == WAL_ROOM


def test_a_write_ahead_log_that_one_transaction_made_large_is_cut(registry: Registry, database: Path) -> None:
    """Like N16, without a reader: the transaction is the reaper's, a migration's, or another program's."""
    add(registry, "a1")
    log = Path(f"{database}-wal")
    write(registry, 2 * WAL_ROOM)
    assert log.stat().st_size > WAL_ROOM
    for _ in range(3):
        write(registry, 10)
    assert log.stat().st_size == WAL_ROOM


def reading(readers: ExitStack, database: Path) -> sqlite3.Connection:
    """A reader in the middle of its transaction."""
    other = readers.enter_context(closing(sqlite3.connect(database, isolation_level=None)))
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM agent_lifecycle").fetchone()
    return other


def write(registry: Registry, size: int) -> None:
    """Write that many bytes in one commit."""
    with registry.engines.begin(registry.engines.durable) as connection:
        connection.execute(text("UPDATE agent_lifecycle SET note = hex(randomblob(:half))"), {"half": size // 2})


def test_each_commit_is_seen_by_whoever_asks_for_the_version(registry: Registry, database: Path) -> None:
    """Ours and another program's; nothing else changes the version, and it starts again with new files."""
    first = registry.engines.version()
    assert first is not None
    assert registry.agents.newest() == []
    assert registry.engines.version() == first
    add(registry, "a1")
    second = registry.engines.version()
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("UPDATE agent_lifecycle SET note = 'theirs'")
    third = registry.engines.version()
    Path(f"{database}-wal").unlink()
    with pytest.raises(RegistryUnavailable, match="-wal or -shm was removed"):
        registry.engines.version()
    assert registry.engines.trouble is not None
    assert len({first, second, third, registry.engines.version()}) == 4


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o640])
def test_what_a_reader_left_beside_a_registry_that_was_shut_is_opened_with_it(
    registry: Registry, database: Path, mode: int
) -> None:
    """A reader of a registry of mode 0444 leaves a -wal and a -shm of that mode: repairing the first is not enough."""
    add(registry, "a1")
    registry.close()
    for suffix in ("-wal", "-shm"):
        beside = Path(f"{database}{suffix}")
        beside.touch()
        beside.chmod(mode)
    again = Registry(f"sqlite:///{database}").open()
    try:
        add(again, "a2")
        assert {Path(f"{database}{suffix}").stat().st_mode & 0o777 for suffix in ("", "-wal", "-shm")} == {0o600}
    finally:
        again.close()


def test_a_file_beside_the_registry_that_is_none_is_named(registry: Registry, database: Path) -> None:
    """A link could lead to any user's file, whose mode we must not change."""
    registry.close()
    Path(f"{database}-shm").symlink_to("/etc/passwd")
    with pytest.raises(UnsafeDirectory, match=r"registry\.db-shm: not a regular file"):
        Registry(f"sqlite:///{database}").open()
