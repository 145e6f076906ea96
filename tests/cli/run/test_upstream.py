"""What of an agent's words goes on to a service manager, as the manager's own socket hears it."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchdog.cli.run.upstream import Upstream, open_upstream, watchdog_of_unit


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    """Its socket; pytest's own directories have too long a name."""
    with tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp") as directory:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        made.bind(str(Path(directory) / "notify"))
        yield made
        made.close()


def heard(manager: socket.socket) -> list[str]:
    """All that waits there, sorted within each datagram."""
    found = []
    while True:
        try:
            found.append(" ".join(sorted(manager.recv(4096).decode().split("\n"))))
        except BlockingIOError:
            return found


@pytest.mark.parametrize(
    ("fields", "tree", "main"),
    [
        ({"READY": "1", "STATUS": "x"}, ["READY=1 STATUS=x"], ["READY=1 STATUS=x"]),
        ({"WATCHDOG": "1"}, ["WATCHDOG=1"], ["WATCHDOG=1"]),
        ({"WATCHDOG": "trigger"}, [], ["WATCHDOG=trigger"]),
        ({"STOPPING": "1", "READY": "1"}, ["READY=1"], ["READY=1 STOPPING=1"]),
        ({"WATCHDOG_USEC": "5"}, [], ["WATCHDOG_USEC=5"]),
        ({"MAINPID": "7", "FDSTORE": "1", "X_AGENT": "y"}, [], []),
    ],
)
def test_what_decides_about_the_unit_is_the_main_processes_word(
    manager: socket.socket, fields: dict[str, str], tree: list[str], main: list[str]
) -> None:
    """The unit's main process is `run`: MAINPID= and the descriptor store go to nobody."""
    upstream = Upstream(manager.getsockname())
    upstream.pass_on(fields, from_main=False)
    assert heard(manager) == tree
    upstream.pass_on(fields, from_main=True)
    assert heard(manager) == main


def test_what_a_full_queue_does_not_take_is_sent_with_the_next(manager: socket.socket) -> None:
    """The latest of each word; nothing here blocks."""
    filler = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    with filler, pytest.raises(BlockingIOError):
        while True:
            filler.sendto(b"x", manager.getsockname())
    upstream = Upstream(manager.getsockname())
    upstream.pass_on({"READY": "1", "STATUS": "old"}, from_main=True)
    upstream.pass_on({"STATUS": "new"}, from_main=True)
    assert set(heard(manager)) == {"x"}
    upstream.flush()
    upstream.flush()
    assert heard(manager) == ["READY=1 STATUS=new"]


def test_a_manager_that_has_gone_is_no_fault(tmp_path: Path) -> None:
    """Nothing is kept for it either."""
    upstream = Upstream(str(tmp_path / "nobody"))
    upstream.pass_on({"READY": "1"}, from_main=True)
    assert upstream._unsent == {}


@pytest.mark.parametrize(
    ("environment", "ours"),
    [
        ({}, False),
        ({"NOTIFY_SOCKET": "/run/x"}, True),
        ({"NOTIFY_SOCKET": "@x", "SYSTEMD_EXEC_PID": str(os.getpid())}, True),
        ({"NOTIFY_SOCKET": "/run/x", "SYSTEMD_EXEC_PID": str(os.getppid())}, True),
        ({"NOTIFY_SOCKET": "/run/x", "SYSTEMD_EXEC_PID": "1"}, False),
        ({"NOTIFY_SOCKET": "vsock:2:1"}, False),
        ({"NOTIFY_SOCKET": f"/run/agent-watchdog/notify/{'a' * 32}.sock", "AGENT_WATCHDOG_ID": "b" * 32}, True),
    ],
)
def test_a_socket_that_is_anothers_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], ours: bool
) -> None:
    """It was meant for the unit's main process."""
    for key in ("NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "AGENT_WATCHDOG_ID"):
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert (open_upstream() is not None) is ours


def test_the_units_watchdog_is_ours_where_it_names_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inherited from another process it is nobody's."""
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/x")
    monkeypatch.setenv("WATCHDOG_USEC", "5000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert watchdog_of_unit() == "5000000"
    monkeypatch.setenv("WATCHDOG_PID", str(os.getppid()))
    assert watchdog_of_unit() is None
