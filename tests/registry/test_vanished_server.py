"""A PostgreSQL server over TCP that is reachable and silent, from the start or later. No caller waits for ever."""

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest

from tests.postgresql import BINARIES, Server, running_server
from tests.registry.samples import NOW, add
from watchdog.errors import RegistryUnavailable
from watchdog.registry.engines import REFUSE
from watchdog.registry.postgresql import CONNECT_SECONDS, KEEPALIVE, SILENCE_SECONDS
from watchdog.registry.registry import Registry

pytestmark = pytest.mark.skipif(not BINARIES, reason="PostgreSQL is not installed")
LIMIT = timedelta(seconds=2)
SOON = 15.0  # seconds that a busy machine may add


class Way:
    """A proxy to a server: a TCP port of its own, which can go silent without closing anything."""

    def __init__(self, server: Server) -> None:
        self._target = f"{server.dir}/.s.PGSQL.5432"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.open = threading.Event()
        self.open.set()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def url(self, more: str = "") -> str:
        """The registry's URL through it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?sslmode=disable{more}"

    def close(self) -> None:
        self._over.set()
        self.open.set()
        for thread in self._threads:
            thread.join(60)
        self._listener.close()

    def _start(self, what: object, *arguments: object) -> None:
        thread = threading.Thread(target=what, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        self._listener.settimeout(0.1)
        while not self._over.is_set():
            with suppress(TimeoutError):
                self._start(self._relay, self._listener.accept()[0])

    def _relay(self, near: socket.socket) -> None:
        far = socket.socket(socket.AF_UNIX)
        with near, far, suppress(OSError):
            far.connect(self._target)
            while not self._over.is_set():
                for ready in select.select([near, far], [], [], 0.1)[0]:
                    self.open.wait()  # silent: what comes is acknowledged by the kernel, and goes no further
                    piece = ready.recv(65536)
                    if not piece:
                        return
                    (far if ready is near else near).sendall(piece)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of this module's own."""
    with running_server() as running:
        yield running


@pytest.fixture
def way(server: Server) -> Iterator[Way]:
    """A proxy that forwards everything."""
    made = Way(server)
    yield made
    made.close()


def test_a_listener_that_never_answers_is_left_after_the_limit_for_connecting() -> None:
    """The kernel accepts the connection, and no process reads from it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        registry = Registry(f"postgresql://postgres@127.0.0.1:{listener.getsockname()[1]}/x", busy_timeout=LIMIT)
        began = time.monotonic()
        with pytest.raises(RegistryUnavailable):
            registry.open()
        took = time.monotonic() - began
        registry.close()
    assert CONNECT_SECONDS - 1 <= took < CONNECT_SECONDS + SOON


def test_a_port_where_nobody_listens_is_told_at_once() -> None:
    """A refused connection is an answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(RegistryUnavailable, match="refused"):
        Registry(f"postgresql://postgres@127.0.0.1:{port}/x", busy_timeout=LIMIT).open()
    assert time.monotonic() - began < SOON


@pytest.mark.faults
def test_a_server_that_vanishes_is_left_and_found_again(way: Way) -> None:
    """Nothing is closed, every byte is acknowledged, and no answer comes, to reads and to writes."""
    registry = Registry(way.url(), busy_timeout=LIMIT).open()
    add(registry, "v1", owner_uid=0)
    way.open.clear()
    for ask in (lambda: registry.agents.get("v1"), lambda: registry.agent_details.drop_owner("v1", 7, NOW)):
        began = time.monotonic()
        with pytest.raises(RegistryUnavailable):
            ask()
        # The pool checks the old connection, then tries a new one: one limit each.
        assert time.monotonic() - began < LIMIT.total_seconds() + SILENCE_SECONDS + CONNECT_SECONDS + SOON

    way.open.set()
    time.sleep(REFUSE)  # other calls are refused for so long after a slow failure
    row = registry.agents.get("v1")
    assert row is not None
    assert row.registration.owner_uid == 0
    registry.close()


def test_a_daemon_hears_that_it_is_not_heard_any_more(way: Way, server: Server) -> None:
    """Its lock belongs to the silent connection: the server keeps it until that ends, and `daemon_heard` reports it."""
    registry, other = Registry(way.url(), busy_timeout=LIMIT).open(), Registry(server.url()).open()
    assert other.daemon_heard("h1") is False
    registry.claim_host("h1", timedelta())
    assert other.daemon_heard("h1") is True
    assert other.daemon_heard("h2") is False
    way.open.clear()
    began = time.monotonic()
    with pytest.raises(RegistryUnavailable):
        registry.keep_host()
    assert time.monotonic() - began < LIMIT.total_seconds() + SILENCE_SECONDS + SOON
    way.open.set()
    registry.claim_host("h1", timedelta(seconds=60))
    registry.keep_host()
    registry.close()
    other.close()


@pytest.mark.parametrize(("more", "idle"), [("", KEEPALIVE["keepalives_idle"]), ("&keepalives_idle=77", 77)])
def test_idle_connections_are_looked_after_by_tcp(way: Way, more: str, idle: int) -> None:
    """Read from the socket's own options; values in the URL win."""
    registry = Registry(way.url(more), busy_timeout=LIMIT)
    with registry.engines.begin(registry.engines.reading) as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        pipe = socket.socket(fileno=driver.fileno())
        try:
            assert pipe.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert pipe.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == idle
            assert pipe.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == KEEPALIVE["keepalives_interval"]
            assert pipe.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == KEEPALIVE["keepalives_count"]
            assert pipe.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == KEEPALIVE["tcp_user_timeout"]
        finally:
            pipe.detach()
    registry.close()


def test_a_server_that_is_gone_is_told_in_one_line_without_its_address_as_a_url() -> None:
    """O35: `why` showed SQLAlchemy's URL, the driver's class and libpq's guesses, on three lines."""
    with running_server() as server:
        registry = Registry(server.database()).open()
        try:
            server.stop()
            said = []
            for _ in range(2):  # a connection that was open, then one that is not made
                with pytest.raises(RegistryUnavailable) as caught:
                    registry.agents.newest(ended=True)
                said.append(str(caught.value))
        finally:
            server.start()
            registry.close()
    for words in said:
        assert words.startswith("registry PostgreSQL on this host, "), words
        assert not any(
            word in words
            for word in ("\n", "://", "connection is bad", "OperationalError", "This probably means", "Is the server")
        )
