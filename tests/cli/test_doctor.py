"""`doctor`: each finding by what was seen, and the looks themselves on this machine."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PROGRAM
from tests.world import World, make_world
from watchdog.cli.diagnosis import CHECKS, Seen, diagnose

WELL: dict[str, Any] = {"status": {"interval_seconds": 10, "mode": "enforce", "log": {"target": "x", "lost": 0}}}

FINDINGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "two packages": ({"distributions": ["agent-watchdogd", "watchdog"]}, "fault", "also holds watchdog"),
    "a trap": ({"socket": "/s", "socket_problem": "/x belongs to uid 7"}, "fault", "/s: /x belongs to uid 7"),
    "no daemon": ({"status": None, "silence": "refused"}, "fault", "no daemon: refused"),
    "two daemons": ({"others": ["/run/x"]}, "warn", "another daemon answers at /run/x"),
    "no sweep": ({"sweep_age": 99.0}, "fault", "the last sweep was 99 s ago; one is due every 10 s"),
    "observing": ({"status": {"mode": "observe"}}, "warn", "the daemon only observes"),
    "a bad file": ({"config": ["f: kil: unknown key"]}, "fault", "f: kil: unknown key"),
    "keys that wait": ({"status": {"config_waiting": ["daemon.host"]}}, "warn", "not in force: daemon.host"),
    "a full disk": ({"status": {"log": {"target": "/l", "error": "No space"}}}, "fault", "/l cannot be written"),
    "lines lost": ({"status": {"log": {"target": "/l", "lost": 3}}}, "warn", "3 lines of the log were lost"),
    "a failed unit": ({"unit": ("enabled", "failed")}, "fault", "agent-watchdog.service has failed"),
    "no unit": ({"unit": ("disabled", "inactive"), "status": None}, "warn", "agent-watchdog.service is disabled"),
    "no bus": ({"bus": False}, "fault", "no system bus does"),
    "no linger": ({"uid": 5, "linger": False}, "warn", "lingering is off"),
    "a closed python": ({"interpreter_closed": "/x", "interpreter": "/x/p"}, "fault", "cannot execute /x/p"),
    "hidden processes": ({"uid": 5, "hidepid": "invisible"}, "warn", "hidepid=invisible"),
    "no pressure": ({"pressure": False}, "warn", "/proc/pressure is not there"),
    "no pidfd": ({"pidfd": False}, "fault", "gives no pidfd"),
    "Debian 12's kernel": ({"kernel": (6, 1)}, "warn", "Linux 6.1 has no inode for a pidfd"),
    "an exit status unknown": ({"kernel": (6, 12)}, "warn", "does not tell the exit status"),
    "no groups": ({"cgroup": "hybrid"}, "warn", "control groups: hybrid"),
    "few descriptors": ({"open_files": 256}, "warn", "only 256 descriptors"),
    "no git": ({"git": None}, "fault", "git is not on PATH"),
    "a big registry": ({"registry_bytes": 3 << 30}, "warn", "the registry has 3.0 GiB"),
    "full trash": ({"trash_bytes": 50 << 30, "trash": ["/tmp/t"]}, "warn", "trash holds 50.0 GiB in /tmp/t"),
}


@pytest.mark.parametrize(("seen", "severity", "what"), FINDINGS.values(), ids=FINDINGS)
def test_each_finding_says_what_to_do(seen: dict[str, Any], severity: str, what: str) -> None:
    """And stands alone: the same sight raises no second alarm (no daemon is one fault, whatever the unit is)."""
    found = [f for f in diagnose(Seen(**{**WELL, **seen})) if what in f.what]

    assert [f.severity for f in found] == [severity]
    assert found[0].meaning
    assert found[0].todo


def test_a_sound_machine_has_no_finding() -> None:
    """So that a finding means something; and every check is shown above to find something."""
    assert diagnose(Seen(**WELL)) == []
    met = {check for check in CHECKS for seen, _, _ in FINDINGS.values() if [*check(Seen(**{**WELL, **seen}))]}
    assert met == set(CHECKS)


@pytest.fixture
def world() -> Iterator[World]:
    yield from make_world()


def test_a_daemon_that_is_well_has_no_fault_of_its_own(world: World) -> None:
    """On this machine only what the machine itself lacks is warned of."""
    world.start()

    found = json.loads(world.cli("doctor", "--json", check=False).stdout)["findings"]

    words = " ".join(finding["what"] for finding in found)
    assert not any(word in words for word in ("no daemon", "sweep", "log ", "config", "also holds", "descriptors"))


def test_without_a_daemon_it_says_so_and_still_looks(world: World) -> None:
    """Exit status 1; the file is checked by the daemon's own --check; nothing in it moves a cursor."""
    world.config.write_text("[kil]\n")

    done = world.cli("doctor", "--config", str(world.config), check=False)

    assert done.returncode == 1
    assert "no daemon" in done.stdout
    assert f"{world.config}: kil: unknown key; did you mean 'kill'?" in done.stdout
    assert "do: " in done.stdout


def test_a_bad_reload_and_a_stopped_daemon_are_found(world: World) -> None:
    """The file of the running daemon is the one that is looked at."""
    world.start()
    world.config.write_text("[kill]\ngrace_seconds = -1\n")

    done = world.cli("doctor", check=False)

    assert done.returncode == 1
    assert "kill.grace_seconds: -1 is wrong" in done.stdout


def test_a_socket_in_somebody_else_s_directory_is_a_fault(tmp_path: Path) -> None:
    """Whoever may write there could answer in the daemon's place."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    environ = {**os.environ, "AGENT_WATCHDOG_SOCKET": str(open_to_all / "control.sock")}

    done = subprocess.run([PROGRAM, "doctor"], env=environ, capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    assert "can be written by others (mode 0777)" in done.stdout
