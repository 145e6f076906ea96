"""A PostgreSQL server of the test's own, on a socket below /tmp. PostgreSQL refuses to run as root."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class Server:
    """One cluster; a database is made for whoever asks."""

    def __init__(self, directory: str, options: str = "") -> None:
        self.dir = directory
        self._options = options
        self._user = "postgres" if os.geteuid() == 0 else None

    def url(self, database: str = "postgres") -> str:
        """How a registry names it."""
        return f"postgresql://postgres@/{database}?host={self.dir}"

    def make(self) -> None:
        """initdb; as user postgres when we are root."""
        if self._user:
            os.chown(self.dir, pwd.getpwnam(self._user).pw_uid, -1)
        self._run("initdb", "-A", "trust", "-U", "postgres", "--no-sync")

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        self._run(
            "pg_ctl", "-w", "-l", f"{self.dir}/log", "-o", f"-k {self.dir} -h '' -c fsync=off {self._options}", "start"
        )

    def stop(self, how: str = "immediate") -> None:
        """End it as a power cut would: connections break, what was committed is there again afterwards. Or `fast`."""
        self._run("pg_ctl", "-m", how, "stop")

    def database(self) -> str:
        """A new, empty database; its URL."""
        name = f"world_{uuid.uuid4().hex[:12]}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY file_copy")
        return self.url(name)

    def sql(self, statement: str, url: str | None = None) -> list[tuple[object, ...]]:
        """One statement by somebody else than the daemon."""
        with psycopg.connect(url or self.url(), autocommit=True) as connection:
            done = connection.execute(statement.encode())
            return list(done) if done.description else []

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and to each of its processes (they are our own children's)."""
        main = int(Path(self.dir, "data/postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        for pid in (main, *(int(child) for child in children)):
            os.kill(pid, number)

    def _run(self, program: str, *words: str) -> None:
        argv = [str(BINARIES[-1] / program), "-D", f"{self.dir}/data", *words]
        null = subprocess.DEVNULL
        subprocess.run(
            argv, user=self._user, cwd=self.dir, check=True, timeout=60, stdin=null, stdout=null, stderr=null
        )


@contextmanager
def running_server(options: str = "") -> Iterator[Server]:
    """A server for as long as the block lasts; `options` as its command line has them."""
    directory = tempfile.mkdtemp(prefix="awpg.", dir="/tmp")
    try:
        server = Server(directory, options)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory)
