"""`run` writes to pipes and sockets whose other end has gone: the signal of that is its own, and nobody's end."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world import AGENTS, BIN, wait_for


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp") as directory:
        yield Path(directory)


def run(place: Path, *command: str, stderr: int) -> "subprocess.Popen[bytes]":
    words = {k: v for k, v in os.environ.items() if not k.startswith(("AGENT_WATCHDOG", "NOTIFY"))}
    environ = {**words, "AGENT_WATCHDOG_SOCKET": str(place / "r" / "control.sock"), "WORLD": str(place)}
    return subprocess.Popen(
        [str(BIN / "agent-watchdog"), "run", "--name", "x", "--", *command],
        env={**environ, "XDG_RUNTIME_DIR": str(place)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )


def test_nobody_reads_what_it_says_and_the_agent_runs(place: Path) -> None:
    """Its warning goes into a closed pipe: the agent starts all the same, and its exit status comes back."""
    (place / "r").mkdir(mode=0o700)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = run(place, "/bin/sh", "-c", "exit 5", stderr=writing)
        assert process.wait(60) == 5
    finally:
        os.close(writing)


def test_a_daemon_that_hangs_up_costs_the_agent_no_signal(place: Path) -> None:
    """Each request meets a closed connection: the agent beats on and gets no SIGPIPE that was meant for `run`."""
    (place / "r").mkdir(mode=0o700)
    hung_up = 0
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "r" / "control.sock"))
        listener.listen(8)

        def hang_up() -> None:
            nonlocal hung_up
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return
                hung_up += 1

        thread = threading.Thread(target=hang_up)
        thread.start()
        command = [sys.executable, str(AGENTS / "agent.py"), "witness", "beat=0.05/60", "exit=0"]
        process = run(place, *command, stderr=subprocess.DEVNULL)
        try:
            assert process.wait(60) == 0
            wait_for(lambda: hung_up >= 2, "it has tried")
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert not (place / "signals").exists(), (place / "signals").read_text()
