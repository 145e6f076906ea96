"""The faults of a PostgreSQL server, of the way to it, and of what it holds. Each is undone again by its block."""

import os
import pwd
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.faults.registry.detour import Detour
from tests.faults.registry.story import End, Fault
from tests.postgresql import Server
from tests.world import World, wait_for
from watchdog.registry.schema import REVISION, metadata

IN_ORDER = 0x41574447  # the lock that every write of an event takes (registry/engines.py)


@dataclass
class Site:
    """One database with a role of its own on the server, and the way there."""

    world: World
    server: Server
    way: Detour
    name: str  # of the database and of its role
    password: str

    @property
    def url(self) -> str:
        """As the daemon is told it."""
        return f"postgresql://{self.name}:{self.password}@/{self.name}?host={self.way.dir}"

    def sql(self, *statements: str) -> list[tuple[object, ...]]:
        """Statements of the administrator in this database; what the last one answers."""
        return [self.server.sql(statement, self.server.url(self.name)) for statement in statements][-1]

    def cut(self) -> int:
        """End the daemon's connections, as an administrator does; how many there were."""
        query = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = "
        return len(self.server.sql(f"{query}'{self.name}'"))


def make_site(world: World, server: Server, way: Detour) -> Site:
    """A new role, and a database that belongs to it."""
    site = Site(world, server, way, f"site_{secrets.token_hex(6)}", "first")
    server.sql(f"CREATE ROLE {site.name} LOGIN PASSWORD 'first'")
    server.sql(f"CREATE DATABASE {site.name} OWNER {site.name} TEMPLATE template0 STRATEGY file_copy")
    world.configure(registry={"url": site.url})
    return site


# -- the server


@contextmanager
def stopped(site: Site, how: str) -> Iterator[None]:
    """It is not there, and started again."""
    site.server.stop(how)
    try:
        yield
    finally:
        site.server.start()


@contextmanager
def started_anew(site: Site) -> Iterator[None]:
    """Away for a moment, as for an update."""
    site.server.stop("fast")
    site.server.start()
    yield


@contextmanager
def crashed(site: Site) -> Iterator[None]:
    """One backend was killed: the server ends all others, recovers, and takes connections again."""
    query = f"SELECT min(pid) FROM pg_stat_activity WHERE usename = '{site.name}'"
    ((pid,),) = site.server.sql(query)
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    yield


@contextmanager
def frozen(site: Site) -> Iterator[None]:
    """SIGSTOP: it takes connections, and answers nobody."""
    site.server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        site.server.signal(signal.SIGCONT)


@contextmanager
def crowded(site: Site) -> Iterator[None]:
    """Others have all connections. The daemon is stopped while they take its own: it could be quicker than they."""
    daemon = site.world.daemon
    assert daemon is not None
    with ExitStack() as others:

        def taken() -> bool:
            site.cut()
            try:
                while True:
                    others.enter_context(psycopg.connect(site.server.url(site.name).replace("postgres@", "crowd@")))
            except psycopg.OperationalError:
                return site.server.sql(f"SELECT FROM pg_stat_activity WHERE usename = '{site.name}'") == []

        site.server.sql("CREATE ROLE crowd LOGIN")
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            wait_for(taken, "all connections are somebody else's")
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        yield
    site.server.sql("DROP ROLE crowd")


# -- the way there, and who may go it


@contextmanager
def refused(site: Site) -> Iterator[None]:
    """Connection refused, and accepted again."""
    site.way.refuse()
    yield
    Path(site.way.dir, ".s.PGSQL.5432").unlink()
    site.way.listen()


@contextmanager
def silent(site: Site) -> Iterator[None]:
    """Bytes go in and nothing comes out; the connections of that time are dead for ever."""
    site.way.silent = True
    yield
    site.way.refuse()
    Path(site.way.dir, ".s.PGSQL.5432").unlink()
    site.way.silent = False
    site.way.listen()


@contextmanager
def altered(site: Site, do: str, undo: str) -> Iterator[None]:
    """The administrator says something of {name}, and ends what is connected, until somebody says the opposite."""
    site.server.sql(do.format(name=site.name))
    site.cut()
    try:
        yield
    finally:
        site.server.sql(undo.format(name=site.name))


@contextmanager
def by_rule(site: Site, method: str) -> Iterator[None]:
    """A rule of pg_hba.conf for this database."""
    path = Path(site.server.dir, "data/pg_hba.conf")
    before = path.read_text()
    path.write_text(f"local {site.name} {site.name} {method}\n{before}")

    def obeyed() -> bool:
        site.cut()
        try:
            psycopg.connect(site.server.url(site.name).replace("postgres@", f"{site.name}:wrong@")).close()
        except psycopg.OperationalError:
            return True
        return False

    site.server.sql("SELECT pg_reload_conf()")
    try:
        wait_for(obeyed, "the rule is read")
        site.cut()
        yield
    finally:
        path.write_text(before)
        site.server.sql("SELECT pg_reload_conf()")


@contextmanager
def password_changed(site: Site) -> Iterator[None]:
    """The server asks for a password from now on, and the one that the daemon has is an old one."""
    site.server.sql(f"ALTER ROLE {site.name} PASSWORD 'second'")
    with by_rule(site, "scram-sha-256"):
        yield
        site.server.sql(f"ALTER ROLE {site.name} PASSWORD 'first'")


# -- a transaction that breaks


@contextmanager
def terminated(site: Site) -> Iterator[None]:
    """All connections at once."""
    assert site.cut()
    yield


@contextmanager
def terminated_inside(site: Site) -> Iterator[None]:
    """The connection is ended in the middle of a transaction: it waits for us before its last statement."""
    waits = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        f" WHERE usename = '{site.name}' AND wait_event_type = 'Lock' AND wait_event = 'advisory'"
    )
    with psycopg.connect(site.server.url(site.name), autocommit=True) as other:
        other.execute(b"SELECT pg_advisory_lock(%d)" % IN_ORDER)
        wait_for(lambda: site.server.sql(waits), "the daemon is inside a transaction")
    yield


@contextmanager
def unanswered(site: Site) -> Iterator[None]:
    """The server commits the order, and the connection breaks before the daemon hears of it."""
    site.way.swallow = b"COMMIT"
    assert site.way.swallowed.wait(60)
    yield


@contextmanager
def held(site: Site, *statements: str) -> Iterator[None]:
    """Somebody stopped inside a transaction, for longer than the limit on a lock."""
    with psycopg.connect(site.server.url(site.name)) as other:
        for statement in statements:
            other.execute(statement.encode())
        yield
        other.rollback()


# -- what is in it


@contextmanager
def changed(site: Site, do: str, undo: str) -> Iterator[None]:
    """Somebody changed the schema by hand, or another version did."""
    site.sql(do.format(name=site.name))
    yield
    site.sql(undo.format(name=site.name))


@contextmanager
def dropped(site: Site, table: str) -> Iterator[None]:
    """A table is gone, and made again, empty."""
    from sqlalchemy import create_engine

    site.sql(f"DROP TABLE {table}")
    yield
    engine = create_engine(site.url.replace("postgresql:", "postgresql+psycopg:"))
    metadata.tables[table].create(engine)
    engine.dispose()


# -- the disk


@contextmanager
def small_disk(site: Site) -> Iterator[None]:
    """The database in a tablespace of 24 MiB. The daemon has to be gone before it can be taken away."""
    place = Path(site.server.dir, "small")
    owner = pwd.getpwnam("postgres")
    place.mkdir()
    options = f"size=24m,mode=700,uid={owner.pw_uid},gid={owner.pw_gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], check=True)
    try:
        site.server.sql(f"CREATE TABLESPACE small LOCATION '{place}'")
        site.server.sql(f"ALTER DATABASE {site.name} SET TABLESPACE small")
        yield
    finally:
        site.world.close()
        site.server.sql(f"DROP DATABASE {site.name} WITH (FORCE)")
        site.server.sql("DROP TABLESPACE small")
        subprocess.run(["umount", "--lazy", place], check=True)
        place.rmdir()


@contextmanager
def full(site: Site) -> Iterator[None]:
    """ENOSPC: no table can have another page, and the history's last page is full."""
    ballast = Path(site.server.dir, "small/ballast")
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 4096)
    fill = "INSERT INTO lifecycle_event (at, event, who, why) VALUES (now(), 'test.ballast', 't', repeat('x', {}))"
    for length in (800, 100, 1):
        with pytest.raises(psycopg.errors.DiskFull):
            while True:
                site.sql(fill.format(length))
    yield
    ballast.unlink()


FAULTS: list[Fault[Site]] = [
    Fault("stopped, fast", lambda s: stopped(s, "fast"), End.AWAY),
    Fault("stopped, immediate", lambda s: stopped(s, "immediate")),
    Fault("started anew", started_anew, End.BRIEF),
    Fault("a backend killed", crashed, End.BRIEF),
    Fault("frozen (SIGSTOP)", frozen),
    Fault("too many connections", crowded),
    Fault("connection refused", refused),
    Fault("the way there silent", silent),
    Fault(
        "connection limit of the role",
        lambda s: altered(s, "ALTER ROLE {name} CONNECTION LIMIT 0", "ALTER ROLE {name} CONNECTION LIMIT -1"),
    ),
    Fault(
        "the role may not log in",
        lambda s: altered(s, "ALTER ROLE {name} NOLOGIN", "ALTER ROLE {name} LOGIN"),
    ),
    Fault(
        "the database takes no connections",
        lambda s: altered(
            s, "ALTER DATABASE {name} ALLOW_CONNECTIONS false", "ALTER DATABASE {name} ALLOW_CONNECTIONS true"
        ),
    ),
    Fault(
        "the database read-only",
        lambda s: altered(
            s,
            "ALTER DATABASE {name} SET default_transaction_read_only = on",
            "ALTER DATABASE {name} RESET default_transaction_read_only",
        ),
    ),
    Fault("its password changed", password_changed),
    Fault("rejected by pg_hba.conf", lambda s: by_rule(s, "reject")),
    Fault("connections terminated", terminated, End.BRIEF),
    Fault("terminated inside a transaction", terminated_inside, End.BRIEF),
    Fault("the answer to a commit lost", unanswered, End.BRIEF),
    Fault("agents locked exclusively", lambda s: held(s, "LOCK TABLE agent_lifecycle IN ACCESS EXCLUSIVE MODE")),
    Fault("orders locked against writes", lambda s: held(s, "LOCK TABLE kill_request IN SHARE MODE")),
    Fault("history locked by a writer", lambda s: held(s, f"SELECT pg_advisory_xact_lock({IN_ORDER})")),
    Fault(
        "the right to order revoked",
        lambda s: changed(s, "REVOKE INSERT ON kill_request FROM {name}", "GRANT INSERT ON kill_request TO {name}"),
    ),
    Fault(
        "all rights revoked",
        lambda s: changed(
            s,
            "REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {name}",
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}",
        ),
    ),
    Fault(
        "a table renamed",
        lambda s: changed(s, "ALTER TABLE kill_request RENAME TO lost", "ALTER TABLE lost RENAME TO kill_request"),
    ),
    Fault("a table dropped", lambda s: dropped(s, "operator_hold")),
    Fault(
        "a newer revision",
        lambda s: changed(
            s,
            "UPDATE alembic_version SET version_num = '9999'",
            f"UPDATE alembic_version SET version_num = '{REVISION}'",
        ),
    ),
    Fault("disk full", full, ready=small_disk, root=True),
]
