"""A fake daemon on a real unix socket, and `agent-watchdog` started as users start it."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from tests.control.office import Office, make_office
from tests.world import end_all_with
from watchdog.cli import verbs

PROGRAM = str(Path(sys.executable).parent / "agent-watchdog")
T = TypeVar("T")
Answer = tuple[int, dict[str, object]]


def wait_for(look: Callable[[], T], seconds: float = 60.0) -> T:
    """The first true thing that `look` sees; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"not seen within {seconds} s"
        time.sleep(0.01)


@dataclass
class Request:
    """One request as it came; `at` on the monotonic clock."""

    method: str
    path: str
    body: dict[str, object]
    at: float


@dataclass
class FakeDaemon:
    """Answers as the daemon would, and remembers what it was told. `answer` may decide otherwise (None: the usual)."""

    path: str
    requests: list[Request] = field(default_factory=list)
    answer: Callable[[Request], Answer | None] = lambda _request: None
    _listener: socket.socket | None = None
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._serve, args=(self._listener,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._listener is not None and self._thread is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join(60)
            self._listener.close()
            os.unlink(self.path)
            self._listener = None

    def seen(self, method: str, end: str = "", key: str = "") -> list[Request]:
        found = [r for r in self.requests if r.method == method and r.path.endswith(end) and (not key or key in r.body)]
        return list(found)

    def beats(self) -> list[dict[str, object]]:
        return [{k: v for k, v in r.body.items() if k != "age_seconds"} for r in self.seen("POST", "/beat")]

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(60)
                with contextlib.suppress(OSError):
                    self._one(connection)

    def _one(self, connection: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            piece = connection.recv(65536)
            if not piece:
                return
            received += piece
        head, _, content = received.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        while len(content) < int(headers.get("content-length", 0)):
            content += connection.recv(65536)
        method, path, _ = first.split(" ")
        request = Request(method, path, json.loads(content or b"{}"), time.monotonic())
        answer = self.answer(request) or self._usual(request)
        self.requests.append(request)
        text = json.dumps(answer[1]).encode() if answer[0] != 204 else b""
        connection.sendall(f"HTTP/1.1 {answer[0]} X\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)

    def _usual(self, request: Request) -> Answer:
        if request.path.endswith("/beat"):
            return 204, {}
        return (201, {"agent_id": request.body.get("agent_id")}) if request.method == "POST" else (200, {})


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A short path (socket addresses have room for 107 bytes), 0700, to be XDG_RUNTIME_DIR.

    A `run` whose terminal was closed, or whose agent has just ended, still writes there: it is ended before.
    """
    directory = Path(tempfile.mkdtemp(prefix="aw-", dir="/tmp"))
    (directory / "agent-watchdog").mkdir(mode=0o700)
    yield directory
    end_all_with("XDG_RUNTIME_DIR", str(directory))
    shutil.rmtree(directory)


@pytest.fixture
def absent_daemon(runtime: Path) -> Iterator[FakeDaemon]:
    """A daemon that a test starts when it likes."""
    daemon = FakeDaemon(str(runtime / "agent-watchdog" / "control.sock"))
    yield daemon
    daemon.stop()


@pytest.fixture
def daemon(absent_daemon: FakeDaemon) -> FakeDaemon:
    """A daemon that runs."""
    absent_daemon.start()
    return absent_daemon


@pytest.fixture
def environment(runtime: Path) -> dict[str, str]:
    """Ours, with the runtime directory of the test and no marks of an agent that may run these tests."""
    foreign = ("AGENT_WATCHDOG_ID", "AGENT_WATCHDOG_SOCKET", "AGENT_WATCHDOG_DEBUG", "NOTIFY_SOCKET", "TMPDIR")
    kept = {key: value for key, value in os.environ.items() if key not in foreign}
    # The socket by name: for root the system's own daemon would come first.
    control = str(runtime / "agent-watchdog" / "control.sock")
    return {**kept, "XDG_RUNTIME_DIR": str(runtime), "AGENT_WATCHDOG_SOCKET": control}


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start `agent-watchdog ARGUMENTS` without a terminal; whatever still runs at the end is ended."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, **more: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [PROGRAM, *arguments],
            env={**environment, **more},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def stat_of(pid: int) -> list[str]:
    """Fields 3 and on of /proc/PID/stat (state, ppid, pgrp, session, tty, ...); empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def lives(pid: int) -> bool:
    """Whether that process exists and is no zombie."""
    found = stat_of(pid)
    return bool(found) and found[0] not in "ZX"


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    """A daemon that the verbs find by the environment."""
    monkeypatch.delenv("AGENT_WATCHDOG_ID", raising=False)
    for made in make_office():
        monkeypatch.setenv("AGENT_WATCHDOG_SOCKET", made.socket_path)
        yield made


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of one verb."""
    status = verbs.main(list(words))
    out, err = capsys.readouterr()
    return status, out, err
