"""The shipped units on a throw-away systemd, with the daemon of this checkout in the place of an installed one."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.systemd.machine import ROOT, Machine
from tests.world import wait_for

BIN = Path(sys.executable).parent
UNIT = "agent-watchdog.service"
SETTINGS: dict[str, dict[str, Any]] = {
    "sweep": {"interval_seconds": 0.5},
    "stall": {"after_seconds": 3, "start_limit_seconds": 30},
    "kill": {"grace_seconds": 3, "verify_seconds": 60, "max_per_minute": 1000},
    "hold": {"mass_stall_count": 1000, "cpu_pressure_percent": 100},
}


def settings(**tables: Mapping[str, Any]) -> str:
    """A configuration with short times, and what a test asks for on top."""
    names = {*SETTINGS, *tables}
    lines = []
    for table in sorted(names):
        lines.append(f"[{table}]")
        keys = {**SETTINGS.get(table, {}), **tables.get(table, {})}
        lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def install(machine: Machine, drop_in: str = "", **tables: Mapping[str, Any]) -> None:
    """The system unit as it is shipped, ExecStart this checkout's, `drop_in` on top; not started."""
    machine.write(f"/etc/systemd/system/{UNIT}", (ROOT / "systemd" / UNIT).read_text())
    machine.write("/etc/agent-watchdog/agent-watchdog.toml", settings(**tables))
    # The checkout may lie below /tmp, which is the service's own.
    command = (
        f"[Service]\nExecStart=\nExecStart={BIN}/agent-watchdogd\nBindReadOnlyPaths={ROOT}\n"
        f"ExecReload=\nExecReload={BIN}/agent-watchdog reload --pid $MAINPID\n"
    )
    machine.write(f"/etc/systemd/system/{UNIT}.d/test.conf", command + drop_in)
    machine.systemctl("daemon-reload")


def start(machine: Machine, *, again: bool = False) -> int:
    """Start (or restart) the service, wait for its READY=1, and return its main process (a pid inside)."""
    machine.systemctl("restart" if again else "start", UNIT)
    return main_pid(machine)


def main_pid(machine: Machine) -> int:
    """The daemon's pid inside."""
    return int(machine.show(UNIT, "MainPID")["MainPID"])


def wait_active(machine: Machine, *, but_not: int = 0, seconds: float = 90) -> int:
    """Wait until the service is active with another main process than `but_not`; that one's pid."""

    def look() -> int | None:
        now = machine.show(UNIT, "ActiveState", "MainPID")
        pid = int(now["MainPID"])
        return pid if now["ActiveState"] == "active" and pid not in (0, but_not) else None

    return wait_for(look, f"{UNIT} active with a new process", seconds)


def client(machine: Machine, *words: str, user: str | int | None = None, check: bool = True) -> Any:
    """One run of `agent-watchdog … --json` inside."""
    check = check and words[0] != "status"  # its 1 is a verdict
    return json.loads(machine.run(BIN / "agent-watchdog", *words, "--json", user=user, check=check).stdout)


def agent(machine: Machine, name: str) -> dict[str, Any] | None:
    """One living agent as the client lists it."""
    found = [row for row in client(machine, "list")["agents"] if row["name"] == name]
    return found[0] if found else None
