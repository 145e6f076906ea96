"""The way to PostgreSQL, in the test's hands: a socket of the same name that passes bytes on, as long as it is let."""

import select
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

NAME = ".s.PGSQL.5432"


class Detour:
    """Passes on what comes, one thread for each connection.

    `silent`: takes connections and bytes, and passes nothing on. `swallow`: bytes of a client after which the
    connection is cut before the server's answer comes back, once.
    """

    def __init__(self, directory: str, server: str) -> None:
        self.dir = directory
        self._server = f"{server}/{NAME}"
        self._path = f"{directory}/{NAME}"
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self.silent = False
        self.swallow: bytes | None = None
        self.swallowed = threading.Event()

    def listen(self) -> None:
        """Take connections from now on."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen(50)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        """Cut all connections, and refuse new ones: the socket stays, nothing listens on it."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        self._open |= {client, server}
        try:
            server.connect(self._server)
            while self._one_step(client, server):
                pass
        except OSError:
            pass
        finally:
            self._open -= {client, server}
            client.close()
            server.close()

    def _one_step(self, client: socket.socket, server: socket.socket) -> bool:
        ready, _, _ = select.select([client, server], [], [], 0.2)
        for source in ready:
            got = source.recv(65536)
            if not got:
                return False
            if self.silent:
                continue
            (server if source is client else client).sendall(got)
            if source is client and self.swallow and self.swallow in got:
                self.swallow = None
                server.settimeout(5)
                server.recv(65536)  # done, and nobody hears of it
                self.swallowed.set()
                return False
        return True


@contextmanager
def detour(server: str) -> Iterator[Detour]:
    """One for as long as the block lasts."""
    directory = tempfile.mkdtemp(prefix="awway.", dir="/tmp")
    way = Detour(directory, server)
    way.listen()
    try:
        yield way
    finally:
        way.refuse()
        shutil.rmtree(directory)
