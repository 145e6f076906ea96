"""C1 as a whole: an unprivileged user becomes root by way of the shipped, hardened unit, on a real systemd.

With real setuid programs (sudo at its prompt, chsh, chfn, su) and a fake tmux server behind a link that is swapped.
At f87b3bd, with ATTACK_SECONDS=150: of 46 setuid programs 3 made their agent root's (another run: 14 of 106 did),
and after 95 s a file of the attacker's held `uid=0(root)` and root's line of /etc/shadow. In the 45 s that it has by
default it was not played there.
"""

import json
import os
from typing import Any

import pytest

from tests.systemd import service
from tests.systemd.machine import ROOT, Machine, booted

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root boots a systemd"),
]
SECONDS = float(os.environ.get("ATTACK_SECONDS", "45"))


@pytest.fixture(scope="module")
def climbed() -> Any:
    """What the attack told, and what the daemon logged of it."""
    with booted() as machine:
        machine.enter("systemctl", "start", "dbus")
        service.install(machine, drop_in="[Service]\n")
        service.start(machine)
        machine.add_user("mallory")
        machine.write("/home/mallory/attack.py", (ROOT / "tests/attacks/becoming_root.py").read_text())
        told = machine.run(
            "/usr/bin/python3",
            "/home/mallory/attack.py",
            "/home/mallory",
            str(SECONDS),
            user="mallory",
            timeout=SECONDS + 120,
        )
        yield json.loads(told.stdout), events(machine), status(machine)


def events(machine: Machine) -> list[dict[str, Any]]:
    return machine.events()


def status(machine: Machine) -> dict[str, Any]:
    found: dict[str, Any] = service.client(machine, "status")
    return found


def test_no_user_becomes_root(climbed: Any) -> None:
    """No program of theirs was run, and no client of root's ever came to the fake server."""
    told, _, _ = climbed
    assert told["tries"] >= 5, told
    assert told["beats"] >= 20, told
    assert told["got"] == "", told
    assert told["asked"] == 0, told


def test_no_agent_of_a_user_ever_becomes_roots(climbed: Any) -> None:
    """Whatever its process runs for a moment."""
    told, logged, _ = climbed
    assert told["climbed"] == 0, told
    assert [event for event in logged if event["event"] == "agent.owner_changed"] == []


def test_the_daemon_lives_through_it(climbed: Any) -> None:
    """In the same process, and sweeping."""
    _, logged, state = climbed
    assert sum(event["event"] == "daemon.ready" for event in logged) == 1
    assert state["last_sweep"] is not None
