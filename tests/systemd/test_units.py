"""The units say what the daemon relies on, and systemd accepts every line of them."""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from watchdog.config import settings

ANALYZE = shutil.which("systemd-analyze")
needs_analyze = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
ROOT = Path(__file__).parents[2]
DAEMON = Path(sys.executable).parent / "agent-watchdogd"
UNITS = {"system": ROOT / "systemd/agent-watchdog.service", "user": ROOT / "systemd/user/agent-watchdog.service"}


def service(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[method-assign,assignment]  # systemd's keys have capitals
    parser.read(unit)
    return parser["Service"]


@needs_analyze
@pytest.mark.parametrize("manager", UNITS)
def test_systemd_accepts_the_unit(manager: str, tmp_path: Path) -> None:
    """No unknown key, no bad value, also in what it pulls in; what it runs must exist, so it is of this environment."""
    text = UNITS[manager].read_text()
    for key, program in (("ExecStart", DAEMON), ("ExecReload", DAEMON.with_name("agent-watchdog"))):
        text = text.replace(service(UNITS[manager])[key].split()[0], str(program))
    copy = tmp_path / "agent-watchdog.service"
    copy.write_text(text)

    done = subprocess.run(
        ["systemd-analyze", "verify", f"--{manager}", "--man=no", "--recursive-errors=yes", copy],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
    )

    assert done.returncode == 0, done.stderr
    assert str(copy) not in done.stderr and copy.name not in done.stderr, done.stderr


@pytest.mark.parametrize("manager", UNITS)
def test_the_unit_is_what_the_daemon_relies_on(manager: str) -> None:
    """Foreground, READY from the main process, a watchdog of three sweeps at least, and no restart on a bad file."""
    unit = service(UNITS[manager])
    interval = settings.load(None, environ={"HOME": "/nowhere"}).interval.total_seconds()

    assert (unit["Type"], unit["NotifyAccess"]) == ("notify", "main")
    assert float(unit["WatchdogSec"]) >= 3 * interval
    assert (unit["Restart"], unit["KillMode"]) == ("always", "mixed")
    assert "78" in unit["RestartPreventExitStatus"].split()
    assert "75" not in unit["RestartPreventExitStatus"].split()
    assert unit["RuntimeDirectoryPreserve"] == "restart"


def analyzed(tmp_path: Path, *options: str, drop_in: str = "") -> str:
    """What `systemd-analyze security` says of the system unit, from its file alone."""
    copy = tmp_path / "agent-watchdog.service"
    shutil.copy(UNITS["system"], copy)
    if drop_in:
        (tmp_path / "agent-watchdog.service.d").mkdir()
        shutil.copy(ROOT / "systemd" / drop_in, tmp_path / "agent-watchdog.service.d")
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", *options, copy],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    assert not done.stderr, done.stderr
    return done.stdout


def exposure(said: str) -> float:
    found = re.search(r"Overall exposure level for agent-watchdog.service: ([0-9.]+)", said)
    assert found, said
    return float(found[1])


@needs_analyze
def test_the_system_unit_is_closed_in(tmp_path: Path) -> None:
    """3.0 is what logind has; most supervisors have 9.6."""
    assert exposure(analyzed(tmp_path)) <= 3.0


@needs_analyze
def test_with_tcp_it_is_open_for_named_addresses_only(tmp_path: Path) -> None:
    """For `[metrics] listen` and a database on another host."""
    with_tcp = analyzed(tmp_path, drop_in="network.conf")

    assert exposure(with_tcp) <= 3.5
    assert "\u2717 PrivateNetwork" in with_tcp  # the drop-in was read
    assert "IP address allow list with only localhost" in with_tcp


@needs_analyze
def test_each_open_item_has_its_reason(tmp_path: Path) -> None:
    """What the analysis finds open stands in the unit's comments, with a reason."""
    reasons = [line.removeprefix("# ") for line in UNITS["system"].read_text().splitlines() if line.startswith("# ")]
    items = json.loads(analyzed(tmp_path, "--json=short"))
    opened = [item["name"] for item in items if item["set"] is False]

    assert opened
    assert [name for name in opened if not any(re.match(rf"{re.escape(name)} +\w", line) for line in reasons)] == []
