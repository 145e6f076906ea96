"""Which daemon holds a process: asked at sockets that nobody but root and this uid can have put there."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from watchdog.client import custody

HELD = {"pid": 42, "start_ticks": 7, "agent_id": "b" * 32, "name": "beta"}


@contextmanager
def daemon(directory: Path, answer: bytes) -> Iterator[str]:
    """Something that answers each request at a socket with these bytes."""
    path = str(directory / "control.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return  # closed
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield path
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)


def answer(*held: dict[str, object]) -> bytes:
    return b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps({"held": held}).encode()


def ask(sockets: list[str], environment: dict[str, str] | None = None, but: str = "") -> dict[str, Any] | None:
    return custody.daemon_of(42, 7, sockets, but, environment or {})


def test_the_daemon_that_holds_it_is_named_by_what_the_kernel_says(tmp_path: Path) -> None:
    """Its pid and uid are the socket's peer, whatever its answer says of them."""
    with daemon(tmp_path, answer({**HELD, "pid": 1}, HELD)) as path:
        found = ask(["/nowhere/control.sock", path])
        assert found == {"socket": path, "pid": os.getpid(), "uid": os.geteuid(), "agent_id": "b" * 32, "name": "beta"}
        assert ask([path], but=path) is None, "the asking daemon itself"
        assert custody.daemon_of(42, 8, [path], "", {}) is None, "another process with that number"


def test_the_socket_in_its_environment_is_asked_too(tmp_path: Path) -> None:
    """It may have been started with another runtime directory; a relative path is none."""
    with daemon(tmp_path, answer(HELD)) as path:
        found = ask([], {"AGENT_WATCHDOG_SOCKET": path})
        assert found is not None and found["socket"] == path
        assert ask([], {"AGENT_WATCHDOG_SOCKET": "control.sock"}) is None


def test_a_directory_that_others_may_write_to_is_not_asked_in(tmp_path: Path) -> None:
    """Anybody could have put the socket there."""
    with daemon(tmp_path, answer(HELD)) as path:
        tmp_path.chmod(0o777)
        assert ask([path]) is None
        tmp_path.chmod(0o700)
        assert ask([path]) is not None


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"HTTP/1.1 404 Not Found\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\nnonsense",
        b"HTTP/1.1 200 OK\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\n\r\n{"held": 1}',
    ],
)
def test_an_answer_that_is_none_counts_as_no_answer(tmp_path: Path, broken: bytes) -> None:
    with daemon(tmp_path, broken) as path:
        assert ask([path]) is None
