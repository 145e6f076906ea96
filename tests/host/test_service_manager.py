"""Messages to a service manager, as its socket receives them; nothing here needs a booted systemd."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchdog.clock import Clock
from watchdog.host.service_manager import ServiceManager


class Manager:
    """The receiving end."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.settimeout(60)

    def hear(self) -> list[str]:
        return self.socket.recv(4096).decode().split("\n")

    def hear_with_fd(self) -> tuple[list[str], list[int]]:
        data, fds, _, _ = socket.recv_fds(self.socket, 4096, 4)
        return data.decode().split("\n"), fds


@pytest.fixture
def manager() -> Iterator[Manager]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        made = Manager(f"{directory}/notify")
        with made.socket:
            yield made


@pytest.fixture
def supervisor(manager: Manager) -> Iterator[ServiceManager]:
    made = ServiceManager({"NOTIFY_SOCKET": manager.path})
    yield made
    assert made._socket is not None
    made._socket.close()


def test_variables_meant_for_us_reach_no_child() -> None:
    """A hook that inherits them could feed systemd's watchdog in our name."""
    environ = {
        "NOTIFY_SOCKET": "",
        "WATCHDOG_USEC": "60000000",
        "WATCHDOG_PID": "1",
        "LISTEN_PID": "1",
        "LISTEN_FDS": "1",
        "LISTEN_FDNAMES": "x",
        "PATH": "/bin",
    }

    supervisor = ServiceManager(environ)

    assert environ == {"PATH": "/bin"}
    assert supervisor.watchdog_seconds is None  # another pid's
    assert supervisor.handed_over() == {}


def test_the_watchdog_of_this_process_counts() -> None:
    """$WATCHDOG_PID is our pid, or not set."""
    own = {"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}

    assert ServiceManager(own).watchdog_seconds == 60
    assert ServiceManager({"WATCHDOG_USEC": "3000000"}).watchdog_seconds == 3


def test_a_reload_reports_when_it_began(manager: Manager, supervisor: ServiceManager) -> None:
    """RELOADING=1 with MONOTONIC_USEC, which Type=notify-reload compares with the time of its signal; then READY=1."""
    before = Clock().mono()
    supervisor.reloading()
    supervisor.ready("watching 0 agents")

    first, stamp, _ = manager.hear()
    assert first == "RELOADING=1"
    assert before * 1e6 - 1 <= int(stamp.removeprefix("MONOTONIC_USEC=")) <= Clock().mono() * 1e6
    assert manager.hear() == ["READY=1", "STATUS=watching 0 agents"]


def test_progress_feeds_the_watchdog(manager: Manager, supervisor: ServiceManager) -> None:
    """A step also asks for more time, which counts only beyond the unit's own limit (sd_notify(3))."""
    supervisor.feed_watchdog("fine")
    supervisor.extend_timeout()
    supervisor.stopping("bye")

    assert manager.hear() == ["WATCHDOG=1", "STATUS=fine"]
    assert manager.hear() == ["WATCHDOG=1"]
    assert manager.hear() == ["EXTEND_TIMEOUT_USEC=30000000"]
    assert manager.hear() == ["STOPPING=1", "STATUS=bye"]


def test_a_socket_is_stored_and_removed(manager: Manager, supervisor: ServiceManager) -> None:
    """The descriptor itself is sent along."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        supervisor.keep("notify-a", ours)
        words, (fd,) = manager.hear_with_fd()
        try:
            assert words == ["FDSTORE=1", "FDNAME=notify-a", "FDPOLL=0"]
            assert os.path.sameopenfile(fd, ours.fileno())
        finally:
            os.close(fd)
    supervisor.discard("notify-a")

    assert manager.hear() == ["FDSTOREREMOVE=1", "FDNAME=notify-a"]


def test_a_full_queue_loses_no_socket(manager: Manager, supervisor: ServiceManager) -> None:
    """A hundred registered at once: messages that systemd could not take go with the next one, in order."""
    count = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()) + 20
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as kept, socket.socket() as closed:
        for number in range(count):
            supervisor.keep(f"notify-{number}", kept)
        supervisor.keep("notify-closed", closed)
        closed.close()  # before it could be sent: no other descriptor is sent under its name
        supervisor.keep("notify-last", kept)
        heard: list[str] = []
        while heard[-1:] != ["FDNAME=notify-last"]:
            words, fds = manager.hear_with_fd()
            heard += [word for word in words if word.startswith("FDNAME")]
            for fd in fds:
                os.close(fd)
            supervisor.feed_watchdog("fine")

    assert heard == [f"FDNAME=notify-{number}" for number in range(count)] + ["FDNAME=notify-last"]


def test_kept_sockets_are_taken_up_by_name(tmp_path: Path) -> None:
    """Descriptors from 3 on, with their names; other files than sockets are closed, and none is inherited further."""
    script = """
import os, socket
from watchdog.host.service_manager import ServiceManager
ours = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
null = os.open("/dev/null", os.O_RDONLY)
for place, fd in enumerate([ours[0].fileno(), null, ours[1].fileno()]):
    os.dup2(fd, 50 + place)
for place in range(3):
    os.dup2(50 + place, 3 + place)
environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "3", "LISTEN_FDNAMES": "a:null:b"}
found = ServiceManager(environ).handed_over()
print({name: (kept.fileno(), os.get_inheritable(kept.fileno())) for name, kept in found.items()}, environ)
try:
    os.fstat(4)
except OSError:
    print("closed")
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-u", "-c", script], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )

    assert done.stdout.splitlines() == ["{'a': (3, False), 'b': (5, False)} {}", "closed"], done.stderr
