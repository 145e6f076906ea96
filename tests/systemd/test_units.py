"""The units say what the daemon relies on, and systemd accepts every line of them."""

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from watchdog import config

ROOT = Path(__file__).parents[2]
DAEMON = Path(sys.executable).parent / "agent-watchdogd"
UNITS = {"system": ROOT / "systemd/agent-watchdog.service", "user": ROOT / "systemd/user/agent-watchdog.service"}


def service(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]  # systemd's keys have capitals
    parser.read(unit)
    return parser["Service"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("manager", UNITS)
def test_systemd_accepts_the_unit(manager: str, tmp_path: Path) -> None:
    """No unknown key, no bad value, also in what it pulls in; ExecStart must exist, so it is this one's daemon."""
    program = service(UNITS[manager])["ExecStart"]
    copy = tmp_path / "agent-watchdog.service"
    copy.write_text(UNITS[manager].read_text().replace(program, str(DAEMON)))

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
    interval = config.load(None, environ={"HOME": "/nowhere"}).interval.total_seconds()

    assert (unit["Type"], unit["NotifyAccess"]) == ("notify", "main")
    assert float(unit["WatchdogSec"]) >= 3 * interval
    assert (unit["Restart"], unit["KillMode"]) == ("always", "mixed")
    assert "78" in unit["RestartPreventExitStatus"].split()
    assert "75" not in unit["RestartPreventExitStatus"].split()
    assert unit["RuntimeDirectoryPreserve"] == "restart"
