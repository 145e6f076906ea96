"""The declared and the migrated schema are the same, and a newer registry is left alone."""

import os
import re
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect

from tests.registry.samples import add
from watchdog.errors import ConfigError
from watchdog.registry.registry import Registry
from watchdog.registry.schema import REVISION, metadata


def test_migrated_and_declared_tables_are_the_same(registry: Registry, tmp_path: Path) -> None:
    """Alembic finds no difference; CHECK constraints and defaults, which it does not compare, are the same, too."""
    with registry.engines.begin(registry.engines.reading) as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, metadata) == []
        migrated = _details(connection)
    declared = create_engine(f"sqlite:///{tmp_path}/declared.db")
    metadata.create_all(declared)
    with declared.connect() as connection:
        assert _details(connection) == migrated
    declared.dispose()


def _details(connection: Connection) -> dict[str, str]:
    found = inspect(connection)
    checks = {
        str(check["name"]): re.sub(r"\s+", " ", check["sqltext"])
        for table in metadata.tables
        for check in found.get_check_constraints(table)
    }
    columns = {
        f"{table}.{column['name']}": f"{column['type']} {column['nullable']} {column['default']}"
        for table in metadata.tables
        for column in found.get_columns(table)
    }
    return checks | columns


def test_the_constant_names_the_newest_revision() -> None:
    """A migration newer than the constant would never run; a constant newer than those would never be reached."""
    config = Config()
    config.set_main_option("script_location", "watchdog:registry/migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == REVISION


def test_a_migrated_registry_is_opened_without_alembic(registry: Registry, database: Path) -> None:
    """Alembic takes half a second to import; it is imported only to migrate."""
    script = (
        "import sys; from watchdog.registry.registry import Registry;"
        f"Registry('sqlite:///{database}').open().close(); print('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_what_an_older_version_wrote_is_there_after_the_step(registry: Registry, database: Path) -> None:
    """From the first revision: a hold stays, for every host as before; an agent has no cgroup of its own."""
    add(registry, "a1")
    hold = registry.history.add_hold(None, "backup", 0, datetime.now(UTC), host="h1")
    registry.close()
    config = Config()
    config.set_main_option("script_location", "watchdog:registry/migrations")
    with registry.engines.begin(registry.engines.durable) as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
    newer = Registry(f"sqlite:///{database}").open()
    assert newer.history.active_holds("h2") == [hold]
    kept = newer.agents.get("a1")
    assert kept is not None and kept.registration.cgroup is None and kept.registration.transcript is None
    newer.close()


def test_a_newer_registry_is_refused_and_left_alone(registry: Registry, database: Path) -> None:
    """The message says what to do after a downgrade; nothing is changed."""
    other = sqlite3.connect(database)
    other.execute("UPDATE alembic_version SET version_num = '0999'")
    other.commit()
    with pytest.raises(ConfigError, match=r"revision '0999'.*newer agent-watchdogd") as caught:
        Registry(f"sqlite:///{database}").open()
    assert caught.value.exit_code == 78
    assert other.execute("SELECT version_num FROM alembic_version").fetchall() == [("0999",)]
    other.close()


def test_the_file_is_for_its_owner_alone(registry: Registry, database: Path) -> None:
    """0600 whatever the umask, also for -wal and -shm; a file that others could open is closed to them."""
    with registry.engines.begin(registry.engines.durable):
        modes = {path.name: path.stat().st_mode & 0o777 for path in database.parent.glob("registry.db*")}
    assert set(modes.values()) == {0o600}
    assert "registry.db-wal" in modes
    os.chmod(database, 0o666)
    Registry(f"sqlite:///{database}").open().close()
    assert database.stat().st_mode & 0o777 == 0o600


def test_times_can_be_compared_in_plain_sql(registry: Registry, database: Path) -> None:
    """People read the file with sqlite3, whose datetime() must understand what we write."""
    registry.history.add_event("agent.late", None, "t", "w", datetime.now(UTC))
    other = sqlite3.connect(database)
    age = other.execute("SELECT strftime('%s', 'now') - strftime('%s', at) FROM lifecycle_event").fetchone()[0]
    other.close()
    assert 0 <= age < 60
