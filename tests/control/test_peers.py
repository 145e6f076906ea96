"""The user behind a connection, as the kernel says, and how many one may hold: none takes them from another."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.control.office import ALICE, BOB, ME, Office, make_office, wait_for
from tests.control.test_server import as_root, received
from watchdog.control.peers import FOLLOWERS, PER_UID, ConnectionLimiter, peer_of
from watchdog.core.admission import LimitKind


def test_the_kernel_tells_who_connects(office: Office) -> None:
    """uid, gid and pid of a peer are its own; the user that runs the daemon is its admin."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = peer_of(ours)
    assert (peer.uid, peer.gid, peer.pid, peer.admin) == (ME, os.getgid(), os.getpid(), True)


def test_thirty_two_connections_are_the_most_of_one_uid(office: Office) -> None:
    """The 33rd is refused at once; when one closes the next is served."""
    held = [office.connect() for _ in range(PER_UID)]
    # A connection counts when it is accepted: wait until all are.
    extra = office.connect()
    assert b"503" in received(extra)
    extra.close()
    for connection in held:
        connection.close()

    def served() -> bool:
        return office.ask("GET", "/v1/status")[0] == 200

    wait_for(served, "a free place")


def follow(office: Office) -> socket.socket:
    """A connection that follows the history, once its request has been read."""
    connection = office.connect()
    connection.sendall(b"GET /v1/events?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert connection.recv(4096)
    return connection


def test_followers_take_no_place_from_those_who_beat(office: Office) -> None:
    """32 of one uid may follow beside its 32 other connections; the next one gets the reason why it may not."""
    office.register("alpha")
    followers = [follow(office) for _ in range(FOLLOWERS)]
    held = [office.connect() for _ in range(PER_UID - 1)]
    assert office.ask("POST", "/v1/agents/alpha/beat", {})[0] == 204
    status, answer = office.ask("GET", "/v1/events?follow=1")
    assert (status, answer["error"]) == (503, "too_many_connections")
    assert f"follows the history {FOLLOWERS} times already" in answer["message"]
    followers.pop().close()

    def taken() -> bool:
        connection = follow(office)
        followers.append(connection)
        connection.settimeout(0.05)
        try:
            return b"503" not in connection.recv(4096)
        except TimeoutError:
            return True

    wait_for(taken, "the place of the one that went")
    for connection in [*followers, *held]:
        connection.close()


def test_no_agent_is_judged_silent_whose_connections_were_refused(office: Office) -> None:
    """What was refused may have been a heartbeat; the next one that comes through makes it as before."""
    office.register("alpha", stall_after_seconds=120)
    held = [office.connect() for _ in range(PER_UID)]
    status, answer = office.ask("POST", "/v1/agents/alpha/beat", {})
    assert (status, answer["error"]) == (503, "too_many_connections")
    assert office.agent("alpha").heartbeat.silence.hindrance.channel_lost
    for connection in held:
        connection.close()
    wait_for(lambda: office.ask("POST", "/v1/agents/alpha/beat", {})[0] == 204, "a beat comes through")
    assert not office.agent("alpha").heartbeat.silence.hindrance.channel_lost


@as_root
def test_refusing_one_user_says_nothing_of_another(office: Office) -> None:
    """A user's flood does not keep another's agent from being judged."""
    office.register("his", ALICE)
    office.register("hers", BOB)
    office.on_loop(lambda: office.context.unheard(ALICE))
    assert (
        office.agent("his").heartbeat.silence.hindrance.channel_lost,
        office.agent("hers").heartbeat.silence.hindrance.channel_lost,
    ) == (True, False)
    office.on_loop(lambda: office.context.unheard(0))  # root may have beaten for any agent
    assert office.agent("hers").heartbeat.silence.hindrance.channel_lost


def test_an_operator_can_ask_whatever_one_process_holds(office: Office) -> None:
    """Root and the daemon's own uid have places beyond the 32, for processes that hold none yet."""
    held = [office.connect() for _ in range(PER_UID)]
    extra = office.connect()
    assert b"503" in received(extra), "not for the process that holds them all"
    code = "import sys; from watchdog.cli.main import main; sys.exit(main())"
    program = [sys.executable, "-c", code]
    done = subprocess.run([*program, "--socket", office.socket_path, "status"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for connection in [*held, extra]:
        connection.close()


@as_root
def test_one_users_connections_take_nothing_from_another(office: Office) -> None:
    """Limits are per uid: with all of root's places taken, others are answered."""
    held = [office.connect() for _ in range(PER_UID)]
    assert office.ask_as(ALICE, "GET", "/v1/status")[0] == 200
    for connection in held:
        connection.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    """An office that waits 2 s for the first byte and 3 s for a head."""
    plain = ConnectionLimiter.__init__

    def quick(self: ConnectionLimiter, inner: object, **more: object) -> None:
        plain(self, inner, first_byte_seconds=2, request_seconds=3, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ConnectionLimiter, "__init__", quick)
    yield from make_office()


@pytest.mark.parametrize("word", [b"", b"GET /v1/sta", b"POST /v1/kill HTTP/1.1\r\nHost: x\r\n"], ids=range(3))
def test_a_client_that_does_not_finish_its_request_is_cut(impatient: Office, word: bytes) -> None:
    """No first byte, or a head that never ends: the connection is ended, its place is free."""
    connection = impatient.connect()
    connection.sendall(word)
    assert impatient.ask("GET", "/v1/status")[0] == 200
    assert received(connection) == b""
    connection.close()


def test_a_trickle_of_bytes_does_not_move_the_deadline(impatient: Office) -> None:
    """One byte now and then keeps no connection open."""
    connection = impatient.connect()
    connection.settimeout(0.05)

    def cut() -> bool:
        try:
            connection.sendall(b"G")
            return connection.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    wait_for(cut, "the connection is cut")
    connection.close()


def test_follow_outlives_the_request_deadline(impatient: Office) -> None:
    """The deadlines are for asking, not for listening."""
    connection = impatient.connect()
    connection.sendall(b"GET /v1/events?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    connection.settimeout(4)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    connection.close()


@as_root
def test_a_client_that_connects_too_often_is_hung_up_on(office: Office) -> None:
    """Told why, and without a task of the loop; root is let in, and the agents of that user are not judged silent."""
    alpha = office.register("alpha", ALICE)
    bucket = office.on_loop(lambda: office.context.callers.admission._bucket(ALICE, LimitKind.CONNECTIONS)[0])
    office.on_loop(lambda: setattr(bucket, "tokens", -1e6))

    code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(4096).decode())"
    knock = [sys.executable, "-c", code, office.socket_path]
    said = subprocess.run(knock, user=ALICE, group=ALICE, extra_groups=[], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("HTTP/1.1 503 ")
    assert "too many connections in a second; try again" in said.stdout
    assert office.agent("alpha").agent_id == alpha
    assert office.on_loop(
        lambda: office.agent("alpha").heartbeat.silence.hindrance.channel_lost
    )  # by the turn of the loop that has answered
    assert office.ask("GET", "/v1/status")[1]["limited"][0]["kind"] == "connections"
    assert office.ask_as(BOB, "GET", "/v1/status")[0] == 200
