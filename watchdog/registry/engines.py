"""Connections to the database, and the migration from an older revision to this code's.

Three engines on SQLite: `durable` (synchronous=FULL) for intents and changes of status, `quick` (NORMAL) for the
batch of each sweep, `reading` (query_only). Every write begins with BEGIN IMMEDIATE: a deferred transaction that turns
into a write fails at once with SQLITE_BUSY_SNAPSHOT, and the busy timeout is not used (sqlite.org/isolation.html).

Several writes may share one durable transaction (`group`): each is a savepoint in it, so that refusing one undoes no
other, and one flush to disk serves all.

Every failure of the database leaves this module as `RegistryUnavailable` with SQLite's or PostgreSQL's own name for it;
what a constraint refused leaves it as `Conflict`.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, Engine, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from watchdog.clock import Clock
from watchdog.core.redaction import hide_password
from watchdog.errors import ConfigError, Conflict, RegistryUnavailable
from watchdog.registry import postgresql, sqlite
from watchdog.registry.schema import REVISION

if TYPE_CHECKING:
    from alembic.config import Config

_LOCK = 0x41574447  # "AWDG": PostgreSQL advisory lock, see `in_order`
# After these errors the connection itself is suspect: its file was replaced, is unreadable or gone; or it was opened
# while the disk or the server (25006) was read-only, and stays read-only. A new connection is made.
_STALE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_IOERR", "25006")
_UNIQUE = frozenset({"SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY", "23505"})

# SQLITE_IOERR_SHM*: the -shm could not grow (sqlite.org/rescode.html); 53100: disk_full of PostgreSQL.
_FULL = frozenset({"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_SHMMAP", "53100"})

SLOW = 0.5  # seconds: after a failure that took longer, other calls fail at once for a while
REFUSE = 1.0  # seconds; that while


class Duplicate(Conflict):
    """A unique index refused the row."""


class Undone(RegistryUnavailable):
    """The failure of one part ended the whole group (SQLITE_FULL, SQLITE_IOERR, connection lost)."""


class _Shared(threading.local):
    """The group that this thread has open."""

    connection: Connection | None = None


class Engines:
    """The three engines of one database."""

    def __init__(self, url: str, busy_timeout: timedelta = timedelta(seconds=5)) -> None:
        """Opens nothing yet. Raises ConfigError for an invalid URL."""
        self.url = parse_url(url)
        self.place = self.url.render_as_string(hide_password=True)
        self._files: sqlite.Files | None = None
        if self.url.get_backend_name() == "sqlite":
            path = self.url.database or ""
            self.durable = sqlite.make_engine(path, busy_timeout, "PRAGMA synchronous=FULL", "BEGIN IMMEDIATE")
            self.quick = sqlite.make_engine(path, busy_timeout, "PRAGMA synchronous=NORMAL", "BEGIN IMMEDIATE")
            self.reading = sqlite.make_engine(path, busy_timeout, "PRAGMA query_only=ON", "BEGIN")
            self._files = sqlite.Files(path, busy_timeout, (self.durable, self.quick, self.reading))
        else:
            self.durable = postgresql.make_engine(self.url, busy_timeout, "")
            self.quick = postgresql.make_engine(self.url, busy_timeout, "-c synchronous_commit=off")
            self.reading = postgresql.make_engine(self.url, busy_timeout, "-c default_transaction_read_only=on")
        self._clock = Clock()
        self._refusing: dict[bool, tuple[float, str]] = {}  # key: whether reading; value: until when, and the error
        self._heard: postgresql.Heard | None = None
        self.trouble: str | None = None  # the last failure, until a probe succeeds
        self._shared = _Shared()

    def open(self) -> None:
        """Create the file (0600) if there is none, and migrate.

        Raises ConfigError for a newer revision, and for a database whose encoding is not UTF-8.
        """
        if self._files is not None:
            self._files.make()
        with self.begin(self.durable) as connection:
            if self._files is None:
                postgresql.require_utf8(connection)
            migrate(connection, self.place)
        if self._files is not None:
            self._files.opened()

    def be_heard(self, host: str | None, patience: timedelta) -> None:
        """Take the PostgreSQL lock that shows that this host's daemon is connected; without `host`, check it.

        Raises AlreadyRunning, RegistryUnavailable.
        """
        if host is not None and self.durable.dialect.name == "postgresql":
            self._heard = postgresql.Heard(self.durable, host)
        if self._heard is not None:
            self._heard.take(patience)

    def close(self) -> None:
        """Close every idle connection; the engines open new ones when they are used again."""
        if self._heard is not None:
            self._heard.close()
        for engine in (self.durable, self.quick, self.reading):
            engine.dispose()
        if self._files is not None:
            self._files.close()

    def version(self) -> object | None:
        """A value that changes with each commit of any process; None where the database has none (PostgreSQL).

        A transaction through SQLAlchemy costs twenty times as much. Raises RegistryUnavailable.
        """
        try:
            return None if self._files is None else self._files.version()
        except RegistryUnavailable as error:
            self.trouble = str(error)
            raise

    @contextmanager
    def begin(self, engine: Engine) -> Iterator[Connection]:
        """One transaction: committed at the end, rolled back on any exception. Inside a `group`, one part of it.

        After a slow failure, other reads (or writes) fail at once for a second. Otherwise everything queued behind it
        (a thousand lines of history, then the sweep) would wait as long again, each in turn.
        """
        kind, began = engine is self.reading, self._clock.mono()
        until, why = self._refusing.get(kind, (0.0, ""))
        if began < until:
            raise RegistryUnavailable(why)
        try:
            with self._transaction(engine) as connection:
                yield connection
        except RegistryUnavailable as error:
            self.trouble = str(error)
            ended = self._clock.mono()
            if ended - began > SLOW:
                self._refusing[kind] = (ended + REFUSE, str(error))
            raise

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Connection]:
        shared = self._shared.connection
        with self._named(engine if shared is None else self.durable):
            if shared is not None:
                with _part(shared):
                    yield shared
            else:
                with self._files.in_use() if self._files else nullcontext(), engine.begin() as connection:
                    yield connection

    @contextmanager
    def group(self) -> Iterator[None]:
        """One durable transaction for everything that this thread does inside, including reads.

        A part that raises is undone alone. Raises Undone if the database undid the whole group with it: then stop.
        """
        with self.begin(self.durable) as connection:
            in_order(connection)  # first, so that two groups cannot deadlock
            self._shared.connection = connection
            try:
                yield
            finally:
                self._shared.connection = None

    def _failure(self, name: str, error: DBAPIError) -> str:
        """One line for a person: the place, the error's name and its text."""
        if self._files is not None:
            return f"registry {self.place}: {name}: {error.orig}{sqlite.advice(name)}"
        code = "" if name.isalpha() else f"{name}: "  # without an SQLSTATE the name is that of a psycopg class
        return f"registry {postgresql.address(self.url)}: {code}{postgresql.reason(error)}"

    @contextmanager
    def _named(self, engine: Engine) -> Iterator[None]:
        """Turn SQLAlchemy's exceptions into ours."""
        try:
            yield
        except IntegrityError as error:
            kind = Duplicate if _name(error) in _UNIQUE else Conflict
            raise kind(f"refused by the registry: {error.orig}") from error
        except DBAPIError as error:
            name = _name(error)
            if name.startswith(_STALE) or error.connection_invalidated:
                engine.dispose()
            unavailable = RegistryUnavailable(self._failure(name, error))
            unavailable.full = name in _FULL
            raise unavailable from error
        except PoolTimeout as error:  # every connection is in use, each waiting for the database
            raise RegistryUnavailable(f"registry {self.place}: {error}") from error


@contextmanager
def _part(connection: Connection) -> Iterator[None]:
    """A savepoint. Raises Undone if it cannot be rolled back: on a full disk SQLite ends the transaction."""
    try:
        connection.exec_driver_sql("SAVEPOINT part")
        yield
        connection.exec_driver_sql("RELEASE SAVEPOINT part")
    except BaseException as failure:
        try:
            connection.exec_driver_sql("ROLLBACK TO SAVEPOINT part")
            connection.exec_driver_sql("RELEASE SAVEPOINT part")
        except SQLAlchemyError:
            undone = Undone(f"registry: a group of writes was undone: {failure}")
            undone.full = isinstance(failure, DBAPIError) and _name(failure) in _FULL
            raise undone from failure
        raise


def parse_url(url: str) -> URL:
    """The URL with its driver named: `postgresql://` means another driver in each SQLAlchemy (psycopg2 in 2.0)."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigError(
            [f"registry.url: {hide_password(url)!r} is not a database URL; use sqlite:////var/lib/x.db"]
        ) from None
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            if not parsed.database or not parsed.database.startswith("/"):
                raise ConfigError(
                    [
                        f"registry.url: {hide_password(url)!r} does not name an absolute file; use"
                        " sqlite:////var/lib/x.db"
                    ]
                )
            return parsed.set(drivername="sqlite")
        case "postgresql" | "postgres" | "postgresql+psycopg":
            return parsed.set(drivername="postgresql+psycopg")
        case other:
            raise ConfigError([f"registry.url: {other!r} is not supported; use sqlite or postgresql"])


def in_order(connection: Connection) -> None:
    """Take the lock that makes ids of `lifecycle_event` commit in order; held until the transaction ends.

    A sequence in PostgreSQL hands out numbers before the commit: without the lock a reader could see 8, continue from
    there, and miss 7. SQLite has only one writer anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})


def migrate(connection: Connection, place: str) -> None:
    """Bring the database to `REVISION` in the caller's transaction: a daemon that dies half-way changes nothing.

    The common case costs one SELECT; Alembic (half a second to import) is imported only when the revision differs.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK + 1})
    stored = _stored_revision(connection)
    if stored == REVISION:
        return
    if connection.dialect.name == "postgresql":
        postgresql.require_tables(connection)
        # Half a second of CPU, which takes ten on a busy host.
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = '60s'"))
    from alembic import command

    config = _migrations()
    if stored is not None and stored not in known_revisions():
        raise ConfigError(
            [
                f"registry {place} has revision {stored!r}, this version knows none newer than {REVISION!r}:"
                " a newer agent-watchdogd wrote it; install that one again, or restore the copy from before the upgrade"
            ]
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def known_revisions() -> frozenset[str]:
    """Every revision that this version's migrations know."""
    from alembic.script import ScriptDirectory

    return frozenset(script.revision for script in ScriptDirectory.from_config(_migrations()).walk_revisions())


def _migrations() -> "Config":
    from alembic.config import Config  # takes half a second to import

    config = Config()
    config.set_main_option("script_location", "watchdog:registry/migrations")
    return config


def _stored_revision(connection: Connection) -> str | None:
    """The revision in Alembic's table, read without Alembic; None for an empty database."""
    catalogue = {
        "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'",
        "postgresql": "SELECT count(*) FROM pg_class WHERE oid = to_regclass('alembic_version')",
    }[connection.dialect.name]
    if not connection.execute(text(catalogue)).scalar():
        return None
    revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if revision is None else str(revision)


def _name(error: DBAPIError) -> str:
    """SQLite's or PostgreSQL's own name of an error: SQLITE_BUSY, SQLITE_FULL, 40001."""
    origin = error.orig
    if isinstance(origin, sqlite3.Error):
        return getattr(origin, "sqlite_errorname", None) or type(origin).__name__
    return str(getattr(origin, "sqlstate", None) or type(origin).__name__)
