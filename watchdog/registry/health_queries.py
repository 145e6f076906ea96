"""Whether the registry is fit for use, and whether this daemon is the only one of its host on it."""

import secrets
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, false, insert, select, text, update

from watchdog.errors import AlreadyRunning, RegistryUnavailable
from watchdog.registry import postgresql
from watchdog.registry.engines import in_order
from watchdog.registry.query_base import Queries
from watchdog.registry.schema import REVISION, lifecycle_event, metadata


class HealthQueries(Queries):
    """The part of `Store` that is about the database itself."""

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
