"""`systemctl reload` of the shipped unit: a good file holds at once, a bad one changes nothing and is said."""

import pytest

from tests.systemd.machine import Machine
from tests.systemd.service import UNIT, client, install, main_pid, settings, start
from tests.world import wait_for

pytestmark = pytest.mark.systemd
FILE = "/etc/agent-watchdog/agent-watchdog.toml"


def test_a_reload_is_told_to_systemd_and_to_the_operator(machine: Machine) -> None:
    """The same process goes on through both; a bad one fails, `systemctl status` has the line and each fault by key."""
    install(machine)
    first = start(machine)

    machine.write(FILE, settings(sweep={"interval_seconds": 0.25}))
    machine.systemctl("reload", UNIT)
    machine.wait_event("config.reloaded", changed=["sweep.interval_seconds"])
    assert client(machine, "status")["interval_seconds"] == 0.25

    machine.write(FILE, settings(kill={"grace_seconds": -1}))
    done = machine.run("systemctl", "reload", UNIT, check=False)
    assert done.returncode != 0, done
    machine.wait_event("config.invalid")
    assert "kill.grace_seconds: -1 is wrong" in machine.run("systemctl", "status", UNIT, check=False).stdout
    wait_for(lambda: "cannot be used" in machine.show(UNIT, "StatusText")["StatusText"], "the status text")
    assert "kill.grace_seconds: -1 is wrong" in client(machine, "status")["config_problems"][0]
    assert client(machine, "status")["interval_seconds"] == 0.25

    machine.write(FILE, settings())
    machine.systemctl("reload", UNIT)
    wait_for(lambda: "cannot be used" not in machine.show(UNIT, "StatusText")["StatusText"], "the status text")
    assert machine.show(UNIT, "ActiveState")["ActiveState"] == "active"
    assert main_pid(machine) == first
