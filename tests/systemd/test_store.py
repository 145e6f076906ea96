"""Notify sockets of registered agents are kept by systemd: who connected once is heard over restart, crash and stop."""

import sys
from typing import Any

import pytest

from tests.systemd.machine import Machine
from tests.systemd.service import UNIT, agent, install, start, wait_active
from tests.world import wait_for

pytestmark = pytest.mark.systemd
# PyPI's sdnotify connects once. It beats whenever its file is touched, and stays.
AGENT = """
import json, os, sys, time, urllib.request, http.client, socket
name, go = sys.argv[1:]
class Control(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/run/agent-watchdog/control.sock")
control = Control("x")
body = json.dumps({"name": name, "pid": os.getpid(), "stall_after_seconds": 600})
control.request("POST", "/v1/agents", body, {"Content-Type": "application/json"})
os.environ.update(json.loads(control.getresponse().read())["env"])
control.close()
import sdnotify
notifier = sdnotify.SystemdNotifier()
while True:
    if os.path.exists(go):
        os.unlink(go)
        notifier.notify("WATCHDOG=1")
    time.sleep(0.02)
"""


class Speaker:
    """A registered agent of alice's that connected once."""

    def __init__(self, machine: Machine, name: str) -> None:
        if not (machine.root / "home/alice").exists():
            machine.add_user("alice")
        self.machine, self.name = machine, name
        self.go = f"/home/alice/go-{name}"
        machine.start(f"speaker-{name}", sys.executable, "-c", AGENT, name, self.go, user="alice")
        wait_for(self.seen, f"agent {name}")

    def seen(self) -> dict[str, Any] | None:
        return agent(self.machine, self.name)

    def speak(self) -> None:
        """One beat through its one connection; back when it was sent."""
        self.machine.run("touch", self.go, user="alice")
        wait_for(lambda: not (self.machine.root / self.go.lstrip("/")).exists(), f"{self.name} spoke")

    def beats(self) -> int:
        found = self.seen()
        assert found is not None
        return int(found["beats"])

    def last(self) -> str | None:
        """When it was last heard, in wall time."""
        found = self.seen()
        return found["last_heartbeat"] if found else None

    def channel_lost(self) -> bool:
        """Whether the daemon thinks that it cannot hear it."""
        found = self.seen()
        assert found is not None
        return bool(found["channel_lost"])

    def heard(self) -> None:
        """It speaks, and that is heard."""
        before = self.beats()
        self.speak()
        wait_for(lambda: self.beats() > before, f"{self.name} is heard")


def kept(machine: Machine) -> int:
    return int(machine.show(UNIT, "NFileDescriptorStore")["NFileDescriptorStore"])


def sweep(machine: Machine) -> None:
    """Wait for two sweeps: what was heard before is written down."""
    before = machine.show(UNIT, "WatchdogTimestampMonotonic")
    wait_for(lambda: machine.show(UNIT, "WatchdogTimestampMonotonic") != before, "a sweep")
    before = machine.show(UNIT, "WatchdogTimestampMonotonic")
    wait_for(lambda: machine.show(UNIT, "WatchdogTimestampMonotonic") != before, "a second sweep")


def test_who_connected_once_is_heard_after_restart_and_crash(machine: Machine) -> None:
    """Nobody's channel is lost, and the socket's path stays good for who speaks by path."""
    install(machine)
    pid = start(machine, again=True)
    speaker = Speaker(machine, "once")
    speaker.heard()
    assert kept(machine) == 1

    pid = start(machine, again=True)
    speaker.heard()
    machine.enter("kill", "-KILL", str(pid))
    wait_active(machine, but_not=pid)
    speaker.heard()

    assert not speaker.channel_lost()
    assert kept(machine) == 1


def test_what_is_said_while_the_daemon_is_away_is_read_later(machine: Machine) -> None:
    """Between a crash and the next start: it waits in the socket that systemd holds."""
    install(machine, "RestartSec=6\n")
    pid = start(machine, again=True)
    speaker = Speaker(machine, "meanwhile")
    speaker.heard()
    wait_for(speaker.last, "the first beat is written down")
    before = speaker.last()
    machine.enter("kill", "-KILL", str(pid))
    wait_for(lambda: machine.show(UNIT, "SubState")["SubState"] == "auto-restart", "the daemon is away")

    speaker.speak()
    assert machine.show(UNIT, "SubState")["SubState"] == "auto-restart"
    wait_active(machine, but_not=pid)

    wait_for(lambda: speaker.last() not in (None, before), "the beat")
    assert not speaker.channel_lost()


def test_the_store_is_emptied_with_the_agent(machine: Machine) -> None:
    """FDSTOREREMOVE=1 when the row is closed."""
    install(machine)
    start(machine, again=True)
    before = kept(machine)
    Speaker(machine, "short")
    wait_for(lambda: kept(machine) == before + 1, "one more in the store")

    machine.systemctl("stop", "speaker-short")

    wait_for(lambda: agent(machine, "short") is None, "the agent is over")
    wait_for(lambda: kept(machine) == before, "its socket is let go")


def test_a_kept_socket_that_is_not_the_agents_is_not_taken(machine: Machine) -> None:
    """Its path is gone: a new one is made, so that others find it, and the loss of the old channel is said."""
    install(machine)
    start(machine, again=True)
    speaker = Speaker(machine, "moved")
    speaker.heard()
    found = speaker.seen()
    assert found is not None
    path = machine.root / "run/agent-watchdog/notify" / found["agent_id"]
    sweep(machine)
    before = kept(machine)
    path.unlink()

    start(machine, again=True)

    assert path.is_socket()
    assert kept(machine) == before
    assert speaker.channel_lost()


def test_a_full_store_costs_nobody_but_the_last(machine: Machine) -> None:
    """FileDescriptorStoreMax=: who does not fit is as without a store, told once and not held against it."""
    install(machine, "FileDescriptorStoreMax=1\n")
    machine.systemctl("stop", UNIT)
    for name in ("once", "meanwhile", "moved"):
        machine.systemctl("stop", f"speaker-{name}", check=False)
    start(machine)
    wait_for(lambda: agent(machine, "once") is None and agent(machine, "moved") is None, "a clean sheet")
    wait_for(lambda: kept(machine) == 0, "an empty store")
    first, second = Speaker(machine, "fits"), Speaker(machine, "beyond")
    first.heard()
    second.heard()
    sweep(machine)
    assert kept(machine) == 1

    start(machine, again=True)

    first.heard()
    assert (first.channel_lost(), second.channel_lost()) == (False, True)
