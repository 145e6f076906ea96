"""The throw-away systemd itself: booted, driven from outside, and what is written inside stays inside."""

import sys
from pathlib import Path

import pytest

from tests.systemd.machine import Machine

pytestmark = pytest.mark.systemd
DAEMON = Path(sys.executable).parent / "agent-watchdogd"


def test_a_command_runs_in_a_service_of_its_own(machine: Machine) -> None:
    """With its exit status, and in the machine's own cgroup tree."""
    done = machine.run("sh", "-c", "cat /proc/self/cgroup; exit 3", check=False)

    assert done.returncode == 3
    assert "0::/system.slice/run-" in done.stdout


def test_any_uid_can_execute_the_checkout(machine: Machine) -> None:
    """Units run the daemon from here."""
    machine.add_user("reader")

    assert "--check" in machine.run(DAEMON, "--help", user="reader").stdout


def test_what_is_written_inside_stays_inside(machine: Machine) -> None:
    """An overlay: neither /etc nor /tmp of this machine is touched."""
    machine.run("sh", "-c", "touch /etc/agent-watchdog-test /tmp/agent-watchdog-test-inside")

    assert (machine.root / "etc/agent-watchdog-test").exists()
    assert not Path("/etc/agent-watchdog-test").exists()
    assert not Path("/tmp/agent-watchdog-test-inside").exists()


def test_a_normal_user_has_a_user_manager(machine: Machine) -> None:
    """`systemctl --user` works for who lingers."""
    machine.add_user("lingers", linger=True)

    assert machine.run("systemctl", "--user", "is-system-running", "--wait", user="lingers").stdout.strip() == "running"
