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
        """Look at every table and column, and commit durably what changes nothing. Raises RegistryUnavailable.

        So a fault that only a hook or an exit would meet (a table dropped or locked, a right revoked, another revision)
        is found when nobody has to wait for it yet, and its end is told only when everything works again. `trial`:
        after a failure, also insert an event, and undo it: a full disk may have room for updates and for no new row.
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
            for table in metadata.sorted_tables:  # of no row: rights and locks are asked for all the same
                key = next(iter(table.primary_key))
                connection.execute(insert(table).from_select([key.name], select(key).where(false())))
                connection.execute(update(table).where(false()).values({key: key}))
                connection.execute(delete(table).where(false()))
            if trial:
                in_order(connection)  # as every event is written
                part = connection.begin_nested()
                why = secrets.token_hex(750)  # as long as a long event, and not to be compressed
                connection.execute(insert(lifecycle_event).values(at=datetime.now(UTC), event="", who="", why=why))
                part.rollback()
        if self.engines.trouble == seen:
            self.engines.trouble = None

    @property
    def shared(self) -> bool:
        """Whether other hosts may use this registry, too. SQLite has one daemon, by the lock on its directory."""
        return self.engines.durable.dialect.name == "postgresql"

    def claim_host(self, host: str, patience: timedelta = timedelta(seconds=15)) -> None:
        """Be the only daemon of this host on a database that hosts share. Raises AlreadyRunning, RegistryUnavailable.

        SQLite needs none of it: the file lies in the state directory, which is locked (`lock`). A former daemon whose
        connection the server has not given up yet is waited for.
        """
        self.engines.be_heard(host, patience)

    def daemon_heard(self, host: str) -> bool | None:
        """Whether a daemon of that host is connected to this registry. None: SQLite, which only one can use."""
        with self.engines.begin(self.engines.reading) as connection:
            return postgresql.is_heard(connection, host) if self.shared else None

    def keep_host(self) -> None:
        """Look whether we are still heard, and be heard again after the server was away. Raises RegistryUnavailable."""
        try:
            self.engines.be_heard(None, timedelta())
        except AlreadyRunning as error:
            raise RegistryUnavailable(str(error)) from error
