"""A client that leaves in the middle of an answer, or sends half a request, is normal: no error, no traceback (L4, O8).

At f87b3bd each of these wrote ERROR `control.failed` with a traceback of 29 lines, or a bare traceback of the HTTP
library (`Expect: 100-continue`). Siblings that were found: half a body, half a chunk, a broken gzip body (that one was
answered with 500), and a hang-up before `100 Continue`.
"""

import json
import socket
from collections.abc import Iterator

import pytest

from tests.world import World, make_world, wait_for

pytestmark = pytest.mark.attacks

HEAD = b"HTTP/1.1\r\nHost: x\r\n"
LEAVING = {
    "a follower": b"GET /v1/events?follow=1 " + HEAD + b"\r\n",
    "half a body": b"POST /v1/agents " + HEAD + b'Content-Length: 100\r\n\r\n{"na',
    "half a chunk": b"POST /v1/agents " + HEAD + b'Transfer-Encoding: chunked\r\n\r\n20\r\n{"na',
    "100-continue": b"POST /v1/agents " + HEAD + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    "a refused upgrade": b"POST /v1/kill " + HEAD + b"Upgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    "a listing": b"GET /v1/agents?all=1 " + HEAD + b"\r\n",
}
BROKEN = {
    "gzip": b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    "deflate": b"Content-Encoding: deflate\r\nContent-Length: 4\r\n\r\nabcd",
    "chunk": b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabcd\r\n",
}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """One daemon for this file."""
    yield from make_world(log={"level": "debug"})


@pytest.fixture(scope="module", autouse=True)
def _started(world: World) -> None:
    world.start()
    world.registered("well", "sleep", "1000")


def _connected(world: World) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60)
    connection.connect(world.socket)
    return connection


def _faults(world: World, since: int) -> list[str]:
    """What the daemon wrote behind that byte that is an error, or no event at all."""
    lines = world.log.read_text()[since:].splitlines()
    return [line for line in lines if not line.startswith("{") or json.loads(line)["level"] == "error"]


def _open_connections(world: World) -> int:
    """The daemon's ends of connections to its control socket, as the kernel counts them."""
    with open("/proc/net/unix") as table:
        return sum(line.rstrip().endswith(world.socket) for line in table) - 1


@pytest.mark.parametrize("how", LEAVING)
def test_a_client_that_leaves_costs_no_line(world: World, how: str) -> None:
    since = world.log.stat().st_size
    for _ in range(5):
        with _connected(world) as connection:
            connection.sendall(LEAVING[how])
            if how == "a follower":
                assert connection.recv(15) == b"HTTP/1.1 200 OK"
    # Written to the next time that something happens; the daemon has noticed when the connections are closed there.
    assert world.ask("POST", "/v1/hold", {"targets": ["well"], "reason": "x"})[0] == 200
    assert world.ask("POST", "/v1/unhold", {"targets": ["well"]})[0] == 200
    wait_for(lambda: _open_connections(world) <= 0, "the daemon has let them all go")
    assert _faults(world, since) == []


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_body_is_the_clients_fault(world: World, how: str) -> None:
    since = world.log.stat().st_size
    with _connected(world) as connection:
        connection.sendall(b"POST /v1/agents " + HEAD + BROKEN[how])
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
            if b"\r\n\r\n" in answer:
                break
    assert answer.split()[1] == b"400", answer
    assert _faults(world, since) == []
