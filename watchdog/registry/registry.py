"""`Registry`: the database, with one object for each subject of its queries. The event loop uses `AsyncRegistry`."""

import secrets
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, false, insert, select, text, update

from watchdog.errors import AlreadyRunning, RegistryUnavailable
from watchdog.registry import postgresql
from watchdog.registry.agent_detail_queries import AgentDetailQueries
from watchdog.registry.agent_queries import AgentQueries
from watchdog.registry.engines import Engines, in_order
from watchdog.registry.history_queries import HistoryQueries
from watchdog.registry.kill_request_queries import KillRequestQueries
from watchdog.registry.reaper_queries import LeftoverQueries
from watchdog.registry.retention_queries import RetentionQueries
from watchdog.registry.schema import REVISION, lifecycle_event, metadata
from watchdog.registry.share_queries import ShareQueries


class Registry:
    """One database: `registry.agents.find(...)`, `registry.kills.save_step(...)`, `registry.history.events(...)`.

    Every query is one transaction and raises RegistryUnavailable when the database fails it. The methods here are about
    the database itself: open, close, whether it is fit for use, and which host's daemon is connected to it.
    """

    def __init__(self, url: str, *, busy_timeout: timedelta = timedelta(seconds=5)) -> None:
        """Name the database; `open()` opens it. Raises ConfigError for a URL that cannot be used."""
        self.engines = Engines(url, busy_timeout)
        self.agents = AgentQueries(self.engines)
        self.agent_details = AgentDetailQueries(self.engines)
        self.kills = KillRequestQueries(self.engines)
        self.history = HistoryQueries(self.engines)
        self.leftovers = LeftoverQueries(self.engines)
        self.retention = RetentionQueries(self.engines)
        self.shares = ShareQueries(self.engines)

    def open(self) -> "Registry":
        """Create or migrate. Raises ConfigError for a newer revision, UnsafeDirectory for a foreign file."""
        self.engines.open()
        return self

    def close(self) -> None:
        """Close the connections."""
        self.engines.close()

    def probe(self, *, trial: bool = False) -> None:
        """Read every table and column, and commit durably statements that change nothing. Raises RegistryUnavailable.

        So a fault that otherwise only a hook or an exit would meet (a table dropped or locked, a right revoked, another
        revision) is found early, and counts as over only when everything works again. `trial`: after a failure, also
        insert an event and undo it: a full disk may have room for updates and none for a new row.
        """
        seen = self.engines.trouble
        with self.engines.begin(self.engines.reading) as connection:
            stored = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
            if stored != REVISION:
                raise RegistryUnavailable(
                    f"registry {self.engines.place} has revision {stored!r} now, this version works with {REVISION!r}:"
                    " another version of agent-watchdogd has migrated it; install that one here, too"
                )
            for table in metadata.sorted_tables:
                connection.execute(select(table).limit(1))
        with self.engines.begin(self.engines.durable) as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = version_num"))
            for table in metadata.sorted_tables:  # of no row: rights and locks are checked anyway
                key = next(iter(table.primary_key))
                connection.execute(insert(table).from_select([key.name], select(key).where(false())))
                connection.execute(update(table).where(false()).values({key: key}))
                connection.execute(delete(table).where(false()))
            if trial:
                in_order(connection)  # as every event is written
                part = connection.begin_nested()
                why = secrets.token_hex(750)  # as long as a long event, and incompressible
                connection.execute(insert(lifecycle_event).values(at=datetime.now(UTC), event="", who="", why=why))
                part.rollback()
        if self.engines.trouble == seen:
            self.engines.trouble = None

    @property
    def shared(self) -> bool:
        """Whether other hosts may use this registry, too. SQLite has one daemon, by the lock on the state directory."""
        return self.engines.durable.dialect.name == "postgresql"

    def claim_host(self, host: str, patience: timedelta = timedelta(seconds=15)) -> None:
        """Be the only daemon of this host on a shared database. Raises AlreadyRunning, RegistryUnavailable.

        SQLite does not need it: `host.instance_lock` has locked the file's directory. `patience`: how long to wait for
        the server to drop a former daemon's connection.
        """
        self.engines.be_heard(host, patience)

    def daemon_heard(self, host: str) -> bool | None:
        """Whether a daemon of that host is connected to this registry. None: SQLite, which only one host can use."""
        with self.engines.begin(self.engines.reading) as connection:
            return postgresql.is_heard(connection, host) if self.shared else None

    def keep_host(self) -> None:
        """Check that we still hold this host's lock, or take it again after an outage. Raises RegistryUnavailable."""
        try:
            self.engines.be_heard(None, timedelta())
        except AlreadyRunning as error:
            raise RegistryUnavailable(str(error)) from error
