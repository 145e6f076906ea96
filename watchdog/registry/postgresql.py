"""PostgreSQL: connections that never wait for ever, and the lock that shows that a host's daemon is connected.

Four things can keep a caller waiting, and each has its own limit:

- another session's lock, a slow statement: the server ends the statement (`lock_timeout`, `statement_timeout`);
- another host's daemon that was stopped in a transaction and so holds a lock that all need: the server ends its session
  (`idle_in_transaction_session_timeout`);
- a server that cannot be reached: `connect_timeout`;
- a server that was reached and went silent (stopped, its host or the network gone): libpq does not notice while the
  peer's kernel acknowledges what we send, so `Bounded` watches each wait and closes the connection. Idle connections
  rely on TCP's keepalives.
"""

import hashlib
import time
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from watchdog.errors import AlreadyRunning, ConfigError, RegistryUnavailable

CONNECT_SECONDS = 3  # psycopg waits at least 2; it applies to each host in the URL
SILENCE_SECONDS = 1.0  # beyond the server's own limit on a statement
# libpq: a dead peer is noticed after 10 + 3 x 5 s on an idle connection, after 15 s while data is unacknowledged
KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 15_000}


def make_engine(url: URL, limit: timedelta, options: str) -> Engine:
    """An engine whose statements end after the limit and whose times are UTC.

    Raises ConfigError without psycopg, and for a parameter that libpq does not know: no retry could succeed.
    """
    try:
        bounded = _bounded()
    except ImportError:
        raise ConfigError(
            [
                "registry.url: PostgreSQL needs psycopg 3; run make install EXTRAS=postgres"
                " (an environment of your own: pip install 'agent-watchdogd[postgres]')"
            ]
        ) from None
    for key, value in url.query.items():
        if key not in _keywords() or (not isinstance(value, str) and key != "host"):  # SQLAlchemy takes several hosts
            raise ConfigError([f"registry.url: {key!r} in it is unknown to libpq, or is given twice"])
    milliseconds = int(limit.total_seconds() * 1000)
    own = f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds} -c timezone=UTC {options}".strip()
    own += f" -c idle_in_transaction_session_timeout={milliseconds // 2}"  # half: waits for its locks do not time out
    given = url.query.get("options", "")
    keepalive = {key: value for key, value in KEEPALIVE.items() if key not in url.query}  # a value in the URL wins
    engine = create_engine(
        url.difference_update_query(["options"]),
        connect_args={
            "connect_timeout": CONNECT_SECONDS,
            **keepalive,
            "client_encoding": "UTF8",  # whatever the database, the URL or the environment says
            "options": f"{given} {own}".strip(),
        },
        pool_pre_ping=True,
        pool_timeout=limit.total_seconds() + 1,
        pool_size=2,
        max_overflow=2,
    )
    silence = limit.total_seconds() + SILENCE_SECONDS

    def connect(dialect: object, record: object, words: list[Any], keys: dict[str, Any]) -> object:
        connection = bounded.connect(*words, **keys)
        connection.silence = silence
        return connection

    event.listen(engine, "do_connect", connect)
    return engine


@cache
def _bounded() -> Any:
    """psycopg's connection class with a limit on each wait for the server. Raises ImportError without psycopg."""
    import psycopg
    from psycopg.types.datetime import TimestamptzLoader

    class Time(TimestamptzLoader):
        """A time that Python cannot represent (infinity, BC, year 10000) makes only its own row unreadable."""

        def load(self, data: Any) -> Any:
            try:
                return super().load(data)
            except psycopg.DataError:
                return bytes(data).decode()

    class Bounded(psycopg.Connection[Any]):
        """Raises OperationalError, and is closed, when the server has not answered for `silence` seconds."""

        silence = 60.0

        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            deadline = time.monotonic() + self.silence
            return super().wait(self._watched(gen, deadline), *args, **kwargs)

        def _watched(self, gen: Any, deadline: float) -> Any:
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted
                    if not ready and time.monotonic() > deadline:  # psycopg checks every 0.1 s
                        self.close()
                        raise psycopg.OperationalError(f"no answer of the server within {self.silence:g} s")
                    wanted = gen.send(ready)
            except StopIteration as ended:
                return ended.value

    psycopg.adapters.register_loader("timestamptz", Time)
    return Bounded


def require_utf8(connection: Connection) -> None:
    """A registry has to hold any name, path or message of an agent. Raises ConfigError for another encoding."""
    encoding = connection.execute(text("SHOW server_encoding")).scalar()
    if encoding != "UTF8":
        raise ConfigError(
            [
                f"registry.url: {address(connection.engine.url)} has encoding {encoding},"
                " which cannot hold every name and path; use a database with ENCODING 'UTF8'"
                " (createdb -T template0 -E UTF8 NAME)"
            ]
        )


def require_tables(connection: Connection) -> None:
    """Since PostgreSQL 15 only a database's owner may create tables in its `public` schema. Raises ConfigError."""
    asked = "SELECT current_user, current_schema(), has_schema_privilege(current_schema(), 'CREATE')"
    user, schema, may = connection.execute(text(asked)).one()
    if not may:
        schema = schema or "public"
        raise ConfigError(
            [
                f"registry.url: {address(connection.engine.url)}: user {user} may not create tables in schema {schema};"
                f" as owner of the database, run GRANT ALL ON SCHEMA {schema} TO {user}"
            ]
        )


@cache
def _keywords() -> frozenset[str]:
    """The parameters that a URL may have (libpq, "Parameter Key Words")."""
    from psycopg import pq

    return frozenset(option.keyword.decode() for option in pq.Conninfo.get_defaults())


# Without the locks of other databases on the same server.
_HOLDER = text(
    "SELECT a.client_addr, a.client_port, a.backend_start FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE l.locktype = 'advisory' AND l.classid::bigint = :high AND l.objid::bigint = :low AND l.granted"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def _key(host: str) -> int:
    return int.from_bytes(hashlib.sha256(f"agent-watchdogd {host}".encode()).digest()[:8], "big", signed=True)


def _halves(key: int) -> dict[str, int]:
    """An advisory lock's key as `pg_locks` shows it."""
    return {"high": key >> 32 & 0xFFFFFFFF, "low": key & 0xFFFFFFFF}


def is_heard(connection: Connection, host: str) -> bool:
    """Whether a daemon of that host is connected."""
    return connection.execute(_HOLDER, _halves(_key(host))).first() is not None


def address(url: URL) -> str:
    """The server and database, for a message to a person."""
    asked = url.host or url.query.get("host")
    named = ", ".join(asked) if isinstance(asked, tuple) else asked or ""
    host = "on this host" if not named or named.startswith("/") else named
    return f"PostgreSQL {host}{f':{url.port}' if url.port else ''}, {url.database}"


def reason(error: DBAPIError) -> str:
    """The server's own message in one line, without libpq's context and guesses."""
    lines = [line for line in str(error.orig).splitlines() if not line.startswith("\t")]  # its guesses are indented
    said = " ".join(" ".join(lines or [str(error.orig)]).split())
    for began in ("consuming input failed: ", "sending query failed: ", "connection is bad: ", "connection failed: "):
        said = said.removeprefix(began)
    return said


class Heard:
    """An advisory lock that shows that a daemon of this host is connected. It ends with its connection.

    No lease and no clock: while the server considers the connection alive, no other daemon can take the lock.
    """

    def __init__(self, engine: Engine, host: str) -> None:
        self._engine = engine
        self._host = host
        self._key = _key(host)
        self._held: Connection | None = None

    def take(self, patience: timedelta) -> None:
        """Take the lock, or check that we still hold it.

        The server may consider the connection of a daemon that has just died alive for a moment: wait that long. Raises
        AlreadyRunning if another daemon holds it after that, RegistryUnavailable if the server does not answer.
        """
        deadline = time.monotonic() + patience.total_seconds()
        try:
            while not self._try():
                if time.monotonic() > deadline:
                    raise AlreadyRunning(
                        f"another agent-watchdogd of host {self._host!r} is connected to this registry"
                        f" ({self._who()}); stop one of them, or give each its own daemon.host"
                    )
                time.sleep(0.25)
        except DBAPIError as error:
            self.close()
            raise RegistryUnavailable(f"registry {address(self._engine.url)}: {reason(error)}") from error

    def close(self) -> None:
        """Release it."""
        held, self._held = self._held, None
        if held is not None:
            with suppress(DBAPIError):
                held.invalidate()  # the lock ends with the connection, which therefore must not go back to the pool
                held.close()

    def _try(self) -> bool:
        if self._held is not None:
            self._held.execute(text("SELECT 1"))  # raises if the connection was lost, and the lock with it
            return True
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            taken = bool(connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": self._key}).scalar())
            if taken:
                # The server's own keepalives: it notices within 25 s that a host is gone (TCP only).
                for name, value in (("idle", 10), ("interval", 5), ("count", 3)):
                    connection.execute(text(f"SET tcp_keepalives_{name} = {value}"))
                self._held = connection
        finally:
            if self._held is not connection:
                connection.close()
        return taken

    def _who(self) -> str:
        with self._engine.connect() as connection:
            found = connection.execute(_HOLDER, _halves(self._key)).first()
        if found is None:
            return "gone just now"
        where = (
            f"from {found.client_addr} port {found.client_port}" if found.client_addr else "on the server's own host"
        )
        return f"{where}, since {found.backend_start:%Y-%m-%d %H:%M:%S} UTC"
