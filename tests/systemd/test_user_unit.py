"""The user unit, driven by a normal user who lingers: start, status, watchdog, and an agent that outlives a restart."""

import json
from typing import Any

import pytest

from tests.systemd.machine import ROOT, Machine
from tests.systemd.service import BIN, UNIT, settings
from tests.world import wait_for

pytestmark = pytest.mark.systemd


def systemctl(machine: Machine, *words: str) -> str:
    return machine.run("systemctl", "--user", *words, user="carol").stdout


def show(machine: Machine, name: str) -> str:
    return systemctl(machine, "show", UNIT, f"--property={name}", "--value").strip()


def agents(machine: Machine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        machine.run(BIN / "agent-watchdog", "list", "--json", user="carol", environ={"HOME": "/home/carol"}).stdout
    )["agents"]
    return found


def test_a_normal_user_runs_one(machine: Machine) -> None:
    """No root anywhere but for the line on linger."""
    machine.add_user("carol", linger=True)
    home = "/home/carol/.config"
    machine.write(f"{home}/systemd/user/{UNIT}", (ROOT / "systemd/user" / UNIT).read_text())
    machine.write(f"{home}/agent-watchdog/agent-watchdog.toml", settings())
    drop_in = f"[Service]\nExecStart=\nExecStart={BIN}/agent-watchdogd\nWatchdogSec=3\nTimeoutAbortSec=1\n"
    machine.write(f"{home}/systemd/user/{UNIT}.d/test.conf", drop_in)
    machine.run("chown", "-R", "carol:carol", "/home/carol")
    systemctl(machine, "daemon-reload")
    systemctl(machine, "start", UNIT)
    first = show(machine, "MainPID")
    run = (BIN / "agent-watchdog", "run", "--name", "hers", "--", "sleep", "1000")
    machine.start("shell-hers", *run, user="carol", environ={"HOME": "/home/carol"})
    pid = wait_for(lambda: agents(machine) and agents(machine)[0]["pid"], "her agent")
    wait_for(lambda: "watching 1 agent" in show(machine, "StatusText"), "the status")

    systemctl(machine, "restart", UNIT)
    second = show(machine, "MainPID")
    assert second != first
    assert [one["pid"] for one in agents(machine)] == [pid]

    machine.run("kill", "-STOP", second, user="carol")
    wait_for(lambda: show(machine, "MainPID") not in ("0", second), "another by the watchdog")
    wait_for(lambda: show(machine, "ActiveState") == "active", "active again")
    assert [one["pid"] for one in agents(machine)] == [pid]
    systemctl(machine, "stop", UNIT)
    assert (machine.root / f"proc/{pid}").exists()
