"""The little HTTP client: where it looks, whom it trusts, and what it makes of answers."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.conftest import FakeDaemon, absent_daemon, daemon, runtime
from watchdog.client import client, sockets
from watchdog.client.client import request, stream, to_json
from watchdog.client.sockets import SYSTEM_SOCKET, directory_problem, find_socket
from watchdog.errors import BadRequest, DaemonBusy, DaemonUnreachable, UnsafeDirectory

__all__ = ["absent_daemon", "daemon", "runtime"]  # fixtures


@contextmanager
def answering(path: str, *pieces: bytes) -> Iterator[None]:
    """A server that answers one connection with these bytes, whatever it is asked."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(1)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                for piece in pieces:
                    connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            thread.join(60)
    os.unlink(path)


def test_asks_and_gets_an_answer(daemon: FakeDaemon) -> None:
    """Status and object."""
    daemon.answer = lambda r: (404, {"error": "agent_not_found"}) if r.method == "GET" else None
    assert request("POST", "/v1/agents", {"agent_id": "x", "name": "ü"}, socket_path=daemon.path)[0] == 201
    assert daemon.requests[0].body == {"agent_id": "x", "name": "ü"}
    assert request("GET", "/v1/agents/y", socket_path=daemon.path) == (404, {"error": "agent_not_found"})
    assert request("POST", "/v1/agents/y/beat", {}, socket_path=daemon.path) == (204, {})


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"SSH-2.0-x\r\n\r\n",
    ],
)
def test_a_broken_answer_is_no_answer(runtime: Path, answer: bytes) -> None:
    """Never taken for a success."""
    path = str(runtime / "s")
    with answering(path, answer), pytest.raises(DaemonUnreachable):
        request("GET", "/v1/status", socket_path=path)


def test_understands_chunks(runtime: Path) -> None:
    """However they are cut."""
    path = str(runtime / "s")
    whole = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n2;x=y\r\n1}\r\n0\r\n\r\n'
    with answering(path, whole[:60], whole[60:]):
        assert request("GET", "/", socket_path=path) == (200, {"a": 1})
    events = b'{"id":1}\n{"id":2}\n\n{"id'
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in (events, b'":3}\n')]
    with answering(path, head, *chunks, b"0\r\n\r\n"):
        assert [event["id"] for event in stream("/v1/events", path)] == [1, 2, 3]


def test_a_refused_stream_says_why(runtime: Path) -> None:
    """The daemon's own words."""
    path = str(runtime / "s")
    body = b'{"error":"bad_request","message":"after: must be a number"}'
    with (
        answering(path, b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)),
        pytest.raises(BadRequest, match="after: must be a number"),
    ):
        list(stream("/v1/events?after=x", path))


@contextmanager
def refusing(path: str) -> Iterator[None]:
    """Says why and hangs up, without having read anything: as the gate does."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(4)

    def serve() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            body = b'{"error": "too_many_connections", "message": "close some"}'
            connection.sendall(b"HTTP/1.1 503 X\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    thread.join(60)
    listener.close()


def test_who_is_refused_before_he_is_heard_is_told_why(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not "hung up: Broken pipe": the answer lies there. 75 for who streams: the same may work later."""
    path = str(runtime / "agent-watchdog" / "control.sock")
    plain = client.encode_request

    def late(method: str, path: str, body: object | None = None) -> bytes:
        time.sleep(0.2)  # until it has hung up
        return plain(method, path, body)

    monkeypatch.setattr(client, "encode_request", late)
    with refusing(path):
        status, answer = client.request("GET", "/v1/status", socket_path=path)
        assert (status, answer["message"]) == (503, "close some")
        with pytest.raises(DaemonBusy, match="close some") as caught:
            list(client.stream("/v1/events?follow=1", path))
        assert caught.value.exit_code == 75


def test_a_full_backlog_is_no_absent_daemon(runtime: Path) -> None:
    """unix(7): connect(2) waits, then fails with EAGAIN. Somebody is there: 75, not 69."""
    path = str(runtime / "agent-watchdog" / "control.sock")
    listener, waiting = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(0)
    waiting.connect(path)
    with pytest.raises(DaemonBusy, match="too many connections waiting"):
        client.request("GET", "/v1/status", socket_path=path, timeout=0.2)
    waiting.close()
    listener.close()


def test_a_silent_daemon_is_given_up(runtime: Path) -> None:
    """It accepts and says nothing."""
    path = str(runtime / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(1)
        with pytest.raises(DaemonUnreachable, match=r"did not answer within 0\.2 s"):
            request("GET", "/v1/status", socket_path=path, timeout=0.2)


def test_says_that_nobody_is_there(runtime: Path) -> None:
    """No directory, no socket, a dead socket."""
    for path in (runtime / "none" / "s", runtime / "s"):
        with pytest.raises(DaemonUnreachable, match="no daemon answers at"):
            request("GET", "/", socket_path=str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(runtime / "s"))
    with pytest.raises(DaemonUnreachable, match="Connection refused"):
        request("GET", "/", socket_path=str(runtime / "s"))


@pytest.mark.parametrize("spoil", [lambda d: d.chmod(0o777), lambda d: _made_a_link(d)], ids=["writable", "link"])
def test_a_directory_that_others_can_change_is_not_trusted(runtime: Path, spoil: Callable[[Path], None]) -> None:
    """Somebody else could have put his socket there."""
    directory = runtime / "agent-watchdog"
    spoil(directory)
    with pytest.raises(UnsafeDirectory):
        request("GET", "/", socket_path=str(directory / "control.sock"))


def _made_a_link(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))
    directory.symlink_to("elsewhere")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another uid")
def test_a_foreign_uids_daemon_is_not_spoken_to(runtime: Path) -> None:
    """The kernel says who listens; a directory that looks right does not help him."""
    path = str(runtime / "s")
    os.chmod(runtime, 0o755)
    os.mkdir(runtime / "d")
    os.chown(runtime / "d", 65534, 65534)
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n"
        "print(flush=True); s.accept()"
    )
    python = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    with subprocess.Popen(
        [python, "-I", "-S", "-c", program, str(runtime / "d" / "s")],
        user=65534,
        group=65534,
        extra_groups=[],
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        os.rename(runtime / "d" / "s", path)
        with pytest.raises(UnsafeDirectory, match="uid 65534"):
            request("GET", "/", socket_path=path)
        server.kill()
    assert "belongs to uid 65534" in str(directory_problem(str(runtime / "d")))


def test_looks_where_it_is_told_first(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told, environment, the user's (where a daemon is, else where one would be)."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("AGENT_WATCHDOG_SOCKET", "/env/s")
    assert find_socket("/told/s") == "/told/s"
    assert find_socket() == "/env/s"
    monkeypatch.delenv("AGENT_WATCHDOG_SOCKET")
    mine = runtime / "agent-watchdog" / "control.sock"
    if not os.path.exists(SYSTEM_SOCKET):
        # Root's is the host's: it is what is missing, whatever lies in /tmp.
        assert find_socket() == (SYSTEM_SOCKET if os.getuid() == 0 else str(mine))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(mine))
        # What a crash left of a daemon of root's own is not the one that is missing either.
        assert find_socket() == (SYSTEM_SOCKET if os.getuid() == 0 else str(mine))
        listener.listen()
        if not os.path.exists(SYSTEM_SOCKET):
            assert find_socket() == str(mine)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)
@given(values)
def test_writes_what_json_reads(value: object) -> None:
    """By hand, and right."""
    assert json.loads(to_json(value)) == value


def test_refuses_what_json_cannot_say() -> None:
    """Rather than a body that no reader understands; a byte of a path that is not UTF-8 passes."""
    with pytest.raises(ValueError, match="no JSON form"):
        to_json(float("nan"))
    with pytest.raises(TypeError, match="bytes has no JSON form"):
        to_json(b"x")
    assert json.loads(to_json(os.fsdecode(b"/tmp/\xff"))) == os.fsdecode(b"/tmp/\xff")


def test_a_name_in_tmp_that_is_not_ours_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual name while it is free or ours; else one of ours beside it, and a new one where there is none."""
    uid = 4_000_000_000 + os.getpid()  # nobody's: what lies there is ours, so another's
    usual, beside = Path(f"/tmp/agent-watchdog-{uid}"), f"/tmp/.agent-watchdog-{uid}-"
    assert sockets.fallbacks(uid) == [str(usual)]
    usual.symlink_to("/nowhere")
    try:
        (first,), (second,) = sockets.fallbacks(uid), sockets.fallbacks(uid)
        assert first.startswith(beside)
        assert second.startswith(beside)
        assert first != second
        foreign = Path(f"{beside}0")
        foreign.mkdir(mode=0o700)
        try:
            assert str(foreign) not in sockets.fallbacks(uid)
            monkeypatch.setattr(sockets, "_is_directory_of", lambda path, uid, closed_to=0: path == str(foreign))
            assert sockets.fallbacks(uid) == [str(foreign)]
        finally:
            foreign.rmdir()
    finally:
        usual.unlink()
