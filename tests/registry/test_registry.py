"""A probe finds the faults that otherwise only a hook or an exit would meet. On PostgreSQL: test_postgresql.py."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.registry.samples import add
from watchdog.errors import RegistryUnavailable
from watchdog.registry.registry import Registry


def by_hand(database: Path, statement: str) -> None:
    with closing(sqlite3.connect(database)) as other:
        other.execute(statement)
        other.commit()


def everything(database: Path) -> list[str]:
    """All rows, as text."""
    with closing(sqlite3.connect(database)) as other:
        return [line for line in other.iterdump() if "sqlite_sequence" not in line]  # AUTOINCREMENT counters


@pytest.mark.parametrize("trial", [False, True])
def test_a_look_at_a_whole_registry_changes_nothing(registry: Registry, database: Path, trial: bool) -> None:
    """It does commit: that is how a full disk is found."""
    add(registry)
    before = everything(database)
    registry.probe(trial=trial)
    assert everything(database) == before


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("drop table cleanup_run", "cleanup_run"),
        ("alter table operator_hold drop column reason", "reason"),
        ("update alembic_version set version_num = '9999'", "another version of agent-watchdogd has migrated it"),
    ],
)
def test_what_only_a_hook_or_an_exit_would_meet_is_found(
    registry: Registry, database: Path, statement: str, words: str
) -> None:
    """Before anything depends on it."""
    by_hand(database, statement)
    with pytest.raises(RegistryUnavailable, match=words):
        registry.probe()


def test_a_trouble_is_over_when_everything_works_again(registry: Registry, database: Path) -> None:
    """And not earlier."""
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(RegistryUnavailable):
            registry.probe()
        assert registry.engines.trouble is not None
        other.execute("rollback")
    registry.probe(trial=True)
    assert registry.engines.trouble is None


def test_an_sqlite_registry_is_one_hosts(registry: Registry) -> None:
    """The lock on the state directory keeps other daemons away."""
    assert not registry.shared
    assert registry.daemon_heard("h2") is None
    registry.keep_host()
