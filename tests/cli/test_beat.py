"""`agent-watchdog beat`: one heartbeat that never fails its caller."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, FakeDaemon
from tests.cli.terminal import a_terminal


def beat(environment: dict[str, str], *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Call it as a hook does: no terminal."""
    return subprocess.run(
        [PROGRAM, "beat", *arguments],
        env={**environment, **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def notify(runtime: Path) -> Iterator[socket.socket]:
    """A bound notify socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(runtime / "n"))
        server.settimeout(60)
        yield server


def test_tells_the_notify_socket_in_one_datagram(environment: dict[str, str], notify: socket.socket) -> None:
    """What the flags mean, as sd_notify fields."""
    done = beat(
        environment,
        *("--state", "blocked", "--progress=7", "--silent-for", "10m", "--tool", "make", "--tool-limit", "1h"),
        *("--note", "two\nlines"),
        NOTIFY_SOCKET=str(notify.getsockname()),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert notify.recv(4096).decode().splitlines() == [
        "WATCHDOG=1",
        "X_AGENT_STATE=blocked",
        "X_AGENT_PROGRESS=7",
        "X_AGENT_SILENT_FOR=600",
        "X_AGENT_TOOL_LIMIT=3600",
        "X_AGENT_TOOL=make",
        "X_AGENT_NOTE=two lines",
    ]


def test_tells_an_abstract_socket(environment: dict[str, str]) -> None:
    """`@name`, as systemd in containers gives it."""
    name = f"aw-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind("\0" + name)
        server.settimeout(60)
        assert beat(environment, NOTIFY_SOCKET="@" + name).returncode == 0
        assert server.recv(4096) == b"WATCHDOG=1"


def test_asks_the_daemon_where_no_notify_socket_is(environment: dict[str, str], daemon: FakeDaemon) -> None:
    """By the agent's own id, or --agent."""
    beat(environment, "--state", "idle", AGENT_WATCHDOG_ID="a" * 32)
    beat(environment, "--agent", "beta", NOTIFY_SOCKET="/nonexistent/n")
    assert [r.path for r in daemon.requests] == [f"/v1/agents/{'a' * 32}/beat", "/v1/agents/beta/beat"]
    assert daemon.requests[0].body == {"state": "idle", "promises": True}


def test_asks_the_daemon_when_the_notify_socket_is_dead(environment: dict[str, str], daemon: FakeDaemon) -> None:
    """Its owner was killed: the beat still arrives."""
    beat(environment, NOTIFY_SOCKET="/nonexistent/n", AGENT_WATCHDOG_ID="n")
    assert len(daemon.beats()) == 1


def test_another_services_notify_socket_is_not_told(
    environment: dict[str, str], daemon: FakeDaemon, notify: socket.socket
) -> None:
    """An agent inside a service must not feed the service's watchdog."""
    beat(environment, NOTIFY_SOCKET=str(notify.getsockname()), AGENT_WATCHDOG_ID="b" * 32)
    assert len(daemon.beats()) == 1
    notify.setblocking(False)
    with pytest.raises(BlockingIOError):
        notify.recv(100)


def test_waits_half_a_second_for_a_full_queue_without_burning_cpu(
    environment: dict[str, str], notify: socket.socket
) -> None:
    """And then gives up in silence."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)
        with pytest.raises(BlockingIOError):
            for _ in range(2000):
                filler.sendto(b"x", str(notify.getsockname()))
    began, before = time.monotonic(), os.times()
    done = beat(environment, NOTIFY_SOCKET=str(notify.getsockname()))
    after = os.times()
    assert (done.returncode, done.stderr) == (0, "")
    assert 0.5 <= time.monotonic() - began < 20
    assert after.children_user + after.children_system - before.children_user - before.children_system < 0.4


@pytest.mark.parametrize(
    "arguments", [["--state", "busy"], ["--progress", "much"], ["--silent-for", "5"], ["--nope"], ["word"], ["--note"]]
)
def test_a_call_not_understood_is_a_sign_of_life_all_the_same(
    environment: dict[str, str], notify: socket.socket, arguments: list[str]
) -> None:
    """A typing mistake must not end an agent, and a hook must see nothing."""
    done = beat(environment, *arguments, NOTIFY_SOCKET=str(notify.getsockname()))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert notify.recv(4096) == b"WATCHDOG=1"


def test_a_hook_sees_nothing_of_any_fault(environment: dict[str, str], daemon: FakeDaemon) -> None:
    """No agent, no daemon, refused: exit 0 and silence; AGENT_WATCHDOG_DEBUG tells."""
    assert beat(environment).stderr == ""
    assert "no agent" in beat(environment, AGENT_WATCHDOG_DEBUG="1").stderr
    daemon.answer = lambda _r: (403, {"error": "permission_denied", "message": "not yours"})
    assert beat(environment, "--agent", "x").stderr == ""
    told = beat(environment, "--agent", "x", AGENT_WATCHDOG_DEBUG="1")
    assert (told.returncode, told.stderr) == (0, "agent-watchdog beat: the beat was refused: not yours\n")
    away = beat(environment, "--agent", "x", "--socket", "/nonexistent/s", AGENT_WATCHDOG_DEBUG="1")
    assert away.returncode == 0
    assert "no daemon answers at /nonexistent/s" in away.stderr


def test_what_the_agent_works_on_is_not_imported(
    environment: dict[str, str], daemon: FakeDaemon, tmp_path: Path
) -> None:
    """PyPI's `watchdog`, or another library of ours, on the agent's PYTHONPATH: its beat, and `run`, are ours."""
    for name in ("watchdog", "_socket", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(7)")
    done = beat(environment, "--agent", "alpha", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert daemon.seen("POST", "/v1/agents/alpha/beat")
    run = [PROGRAM, "run", "--name", "alpha", "--", "printenv", "PYTHONPATH"]
    ran = subprocess.run(
        run, env={**environment, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, f"{tmp_path}\n"), ran.stderr


def test_a_person_is_told(environment: dict[str, str], tmp_path: Path) -> None:
    """On a terminal the mistake is named."""
    with a_terminal(environment, tmp_path) as terminal:
        terminal.type(f"{PROGRAM} beat --state busy; echo status=$?")
        said = terminal.expect("status=0")
    assert "--state busy: must be one of working, idle, waiting, blocked, done" in said


def test_imports_next_to_nothing() -> None:
    """The command as it is installed is called by hooks, many times a minute."""

    def imported(*words: str) -> set[str]:
        command = [sys.executable, "-X", "importtime", *words]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
        return {line.rpartition("|")[2].strip() for line in told}

    ours = imported(PROGRAM, "beat", "--state", "idle") - imported("-c", "pass")
    assert "watchdog.cli.beat" in ours
    assert not {"json", "socket", "argparse", "typing", "dataclasses", "enum", "re", "subprocess"} & ours
