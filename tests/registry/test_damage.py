"""A registry that cannot be opened is moved aside; a file that somebody may need stays where it is."""

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.registry.samples import add
from watchdog.agents import registration_backup
from watchdog.host import clock_steps
from watchdog.registry.damage import TRACES, put_aside
from watchdog.registry.registry import Registry

AT = datetime(2026, 11, 29, 20, 15, tzinfo=UTC)


@pytest.fixture
def filled(registry: Registry, database: Path) -> Path:
    """A registry of several pages whose daemon has ended."""
    for number in range(40):
        add(registry, f"a{number}")
    registry.close()
    return database


def by_hand(database: Path, statement: str) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute(statement)


def halve(database: Path) -> None:
    os.truncate(database, database.stat().st_size // 2)


def scribble(database: Path) -> None:
    """Write random bytes over all pages but the first."""
    with database.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(database.stat().st_size - 4096))


def write_text(database: Path) -> None:
    database.write_text("this is no database\n" * 100)


def drop_a_table(database: Path) -> None:
    by_hand(database, "DROP TABLE operator_hold")


def drop_a_column(database: Path) -> None:
    by_hand(database, "ALTER TABLE operator_hold DROP COLUMN reason")


def other_tables(database: Path) -> None:
    database.unlink()
    by_hand(database, "CREATE TABLE bookmarks (url TEXT)")


def no_tables(database: Path) -> None:
    database.unlink()
    by_hand(database, "PRAGMA journal_mode=WAL")


def no_revision(database: Path) -> None:
    by_hand(database, "DELETE FROM alembic_version")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (halve, "SQLite"),
        (scribble, "SQLite"),
        (write_text, "SQLite cannot read it: SQLITE_NOTADB"),
        (drop_a_table, "table operator_hold is gone"),
        (drop_a_column, "table operator_hold has no column reason"),
        (other_tables, "it has tables of something else: bookmarks"),
        (no_tables, "it has no tables"),
        (no_revision, "it has tables of something else: agent_lifecycle"),
    ],
)
def test_what_is_damaged_is_put_aside_whole(filled: Path, damage: object, why: str) -> None:
    """Its bytes and its -wal are kept under a name with the time, and a new registry opens in its place."""
    assert callable(damage)
    damage(filled)
    was = filled.read_bytes()
    Path(f"{filled}-wal").write_bytes(b"")
    lost = put_aside(f"sqlite:///{filled}", str(filled.parent), AT)
    assert lost is not None and lost.why.startswith(why)
    assert lost.kept_as == f"{filled}.damaged-20261129T201500Z"
    assert Path(lost.kept_as).read_bytes() == was
    assert not filled.exists() and not Path(f"{filled}-wal").exists()
    with closing(Registry(f"sqlite:///{filled}").open()) as opened:
        assert opened.agents.live("here") == ([], [])


def test_a_second_one_in_the_same_second_replaces_nothing(filled: Path) -> None:
    """As with a daemon that starts again and again on a bad disk."""
    for name in ("registry.db.damaged-20261129T201500Z", "registry.db.damaged-20261129T201500Z+"):
        write_text(filled)
        lost = put_aside(f"sqlite:///{filled}", str(filled.parent), AT)
        assert lost is not None and lost.kept_as == str(filled.parent / name)


def test_a_sound_registry_stays(filled: Path) -> None:
    """Even if some commits are only in its -wal, as after a crash."""
    assert put_aside(f"sqlite:///{filled}", str(filled.parent), AT) is None
    with closing(Registry(f"sqlite:///{filled}").open()) as opened:
        add(opened, "late")
        copy = filled.parent / "crashed"
        copy.mkdir()
        for path in filled.parent.glob("registry.db*"):
            (copy / path.name).write_bytes(path.read_bytes())
    assert put_aside(f"sqlite:///{copy}/registry.db", str(copy), AT) is None
    with closing(Registry(f"sqlite:///{copy}/registry.db").open()) as opened:
        assert opened.agents.get("late") is not None


def test_one_that_is_locked_or_of_another_revision_stays(registry: Registry, database: Path) -> None:
    """A lock is no damage; `open` refuses the registry of a newer version and migrates that of an older one."""
    with registry.engines.begin(registry.engines.durable) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'ffff'"))
    registry.close()
    assert put_aside(f"sqlite:///{database}", str(database.parent), AT) is None
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert put_aside(f"sqlite:///{database}", str(database.parent), AT) is None


def test_nothing_of_somebody_else_is_moved(tmp_path: Path) -> None:
    """Outside the state directory: a person's notes, and another program's database."""
    home = tmp_path / "home"
    notes, theirs = tmp_path / "notes.txt", tmp_path / "theirs.db"
    notes.write_text("my thesis\n" * 1000)
    by_hand(theirs, "CREATE TABLE bookmarks (url TEXT)")
    for path in (notes, theirs):
        assert put_aside(f"sqlite:///{path}", str(home), AT) is None
        assert path.exists()
    for word in ("postgresql:///agents", f"sqlite:///{tmp_path}/missing.db"):
        assert put_aside(word, str(home), AT) is None


def test_our_own_outside_the_state_directory_is_put_aside(filled: Path, tmp_path: Path) -> None:
    """`registry.url` names a file elsewhere, which has our tables."""
    scribble(filled)
    assert put_aside(f"sqlite:///{filled}", str(tmp_path / "home"), AT) is not None


def test_an_empty_file_is_a_lost_registry(database: Path) -> None:
    """It was emptied: the operators' holds are lost, and there is nothing to keep."""
    database.touch()
    lost = put_aside(f"sqlite:///{database}", str(database.parent), AT)
    assert lost is not None and lost.kept_as is None
    assert database.exists()


@pytest.mark.parametrize("trace", [*TRACES, "registry.db-wal", "registry.db-shm"])
def test_a_missing_registry_that_there_was_is_a_lost_one(tmp_path: Path, trace: str) -> None:
    """Each trace alone proves that there was one. What is left beside the file is kept, as SQLite would delete it."""
    (tmp_path / trace).write_text("kept")
    lost = put_aside(f"sqlite:///{tmp_path}/registry.db", str(tmp_path), AT)
    assert lost is not None and lost.why.endswith(f"shown by {tmp_path}/{trace}")
    beside = trace.startswith("registry.db")
    kept_as = f"{tmp_path}/{trace.replace('.db', '.db.damaged-20261129T201500Z')}" if beside else None
    assert lost.kept_as == kept_as
    assert Path(kept_as or tmp_path / trace).read_text() == "kept"


def test_a_missing_registry_elsewhere_is_lost_where_the_state_directory_tells_of_one(tmp_path: Path) -> None:
    """Its disk is not mounted, so no file lies beside it; or only its lock does."""
    home, disk = tmp_path / "home", tmp_path / "disk"
    home.mkdir()
    disk.mkdir()
    assert put_aside(f"sqlite:///{disk}/r.db", str(home), AT) is None
    lost = put_aside(f"sqlite:///{disk}/r.db", str(home), AT, had_lock=True)
    assert lost is not None and f"{disk}/r.db.lock" in lost.why
    (home / "reserve").touch()
    assert put_aside(f"sqlite:///{disk}/r.db", str(home), AT) is not None


def test_a_state_directory_without_traces_is_a_first_start(tmp_path: Path) -> None:
    """What a start leaves behind before it opens a registry proves nothing, nor do other programs' files."""
    for name in ("agent-watchdogd.lock", "trash", "notes"):
        (tmp_path / name).touch()
    assert put_aside(f"sqlite:///{tmp_path}/registry.db", str(tmp_path), AT) is None


def test_the_traces_are_what_a_daemon_leaves() -> None:
    """Each has the name that its module gives it."""
    assert {registration_backup.NAME, clock_steps.NAME} < {*TRACES}


def test_an_empty_file_keeps_what_was_committed_beside_it(database: Path) -> None:
    """SQLite deletes the `-wal` of an empty database when it opens it."""
    database.touch()
    Path(f"{database}-wal").write_text("committed")
    lost = put_aside(f"sqlite:///{database}", str(database.parent), AT)
    assert lost is not None and lost.kept_as is not None
    assert database.exists() and not Path(f"{database}-wal").exists()
    assert Path(f"{database}.damaged-20261129T201500Z-wal").read_text() == "committed"
