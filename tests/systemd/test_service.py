"""The system unit, as shipped but for its times: start, watchdog, stop, restart, crash, and what agents see of it."""

import time

import pytest

from tests.systemd.machine import Machine
from tests.systemd.service import BIN, UNIT, agent, client, install, main_pid, start, wait_active
from tests.world import wait_for

pytestmark = pytest.mark.systemd
STUBBORN = "trap '' TERM; agent() { while :; do sleep 1; done; }; agent"


def pid_of(machine: Machine, name: str) -> int | None:
    found = agent(machine, name)
    return found["pid"] if found else None


def run_agent(machine: Machine, name: str, *command: str, options: tuple[str, ...] = ()) -> int:
    """An agent of alice's, from a unit of its own as from a shell; its pid inside."""
    if not (machine.root / "home/alice").exists():
        machine.add_user("alice")
    machine.start(
        f"shell-{name}", BIN / "agent-watchdog", "run", "--name", name, *options, "--", *command, user="alice"
    )
    return wait_for(lambda: pid_of(machine, name), f"agent {name}")


def is_alive(machine: Machine, pid: int) -> bool:
    return (machine.root / f"proc/{pid}").exists()


def test_it_is_active_when_it_is_ready_and_tells_what_it_does(machine: Machine) -> None:
    """READY=1 and STATUS=; root's directories with their modes; nothing but itself in its cgroup."""
    install(machine)
    pid = start(machine)
    run_agent(machine, "first", "sleep", "1000")

    assert client(machine, "status")["pid"] == pid
    shown = wait_for(
        lambda: (
            found
            if "watching 1 agent" in (found := machine.show(UNIT, "StatusText", "SubState"))["StatusText"]
            else None
        ),
        "the status of the sweep",
    )
    assert shown == {"StatusText": "watching 1 agent, 0 being killed", "SubState": "running"}
    assert (machine.root / "var/lib/agent-watchdog").stat().st_mode & 0o7777 == 0o700
    assert machine.systemctl("status", UNIT).count("agent-watchdogd\n") == 1


def test_agents_live_over_a_restart_and_a_crash(machine: Machine) -> None:
    """KillMode=mixed ends what is in the service's cgroup: no agent is, nor its scope."""
    install(machine)
    start(machine, again=True)
    pid = run_agent(machine, "outlives", "sleep", "1000")

    restarted = start(machine, again=True)
    assert is_alive(machine, pid) and pid_of(machine, "outlives") == pid
    machine.systemctl("kill", "--signal=KILL", UNIT)
    wait_active(machine, but_not=restarted)

    assert is_alive(machine, pid) and pid_of(machine, "outlives") == pid
    machine.systemctl("stop", UNIT)
    assert is_alive(machine, pid)
    assert machine.systemctl("is-active", "shell-outlives").strip() == "active"


def test_a_daemon_that_is_stopped_is_started_anew(machine: Machine) -> None:
    """SIGSTOP: no sweep feeds the watchdog, systemd aborts it and starts another."""
    install(machine, "WatchdogSec=3\nTimeoutAbortSec=1\n")
    first = start(machine, again=True)
    pid = run_agent(machine, "watched", "sleep", "1000")
    machine.run("kill", "-STOP", str(first))

    wait_active(machine, but_not=first)

    assert any("Watchdog timeout" in str(entry.get("MESSAGE")) for entry in machine.journal(f"UNIT={UNIT}"))
    assert is_alive(machine, pid) and pid_of(machine, "watched") == pid


def test_sweeps_feed_the_watchdog(machine: Machine) -> None:
    """Idle for three times its limit: the same process."""
    install(machine, "WatchdogSec=4\n")
    first = start(machine, again=True)
    before = machine.show(UNIT, "WatchdogTimestampMonotonic")["WatchdogTimestampMonotonic"]
    until = time.monotonic() + 12
    wait_for(lambda: time.monotonic() > until, "twelve seconds")

    assert main_pid(machine) == first
    assert int(machine.show(UNIT, "WatchdogTimestampMonotonic")["WatchdogTimestampMonotonic"]) > int(before) + 8_000_000


def test_a_stop_amid_a_kill_that_outlasts_the_watchdog(machine: Machine) -> None:
    """The kill goes on for longer than WatchdogSec; the stop is clean and short, and the next daemon finishes it."""
    install(machine, "WatchdogSec=4\n", kill={"grace_seconds": 24})
    first = start(machine, again=True)
    pid = run_agent(machine, "stubborn", "sh", "-c", STUBBORN)
    machine.start("killer", BIN / "agent-watchdog", "kill", "stubborn")
    machine.wait_event("kill.signal_sent", name="stubborn")
    until = time.monotonic() + 8
    wait_for(lambda: time.monotonic() > until, "twice the watchdog's limit")
    assert main_pid(machine) == first

    before = time.monotonic()
    machine.systemctl("stop", UNIT)

    assert time.monotonic() - before < 12
    assert machine.show(UNIT, "Result", "ActiveState") == {"Result": "success", "ActiveState": "inactive"}
    assert is_alive(machine, pid)
    start(machine)
    machine.wait_event("kill.resumed", name="stubborn")
    machine.wait_event("kill.finished", name="stubborn")
    assert not is_alive(machine, pid)


def test_a_stop_amid_a_hook_ends_the_hook(machine: Machine) -> None:
    """A hook that will not hear TERM is ended with its unit; the stop is clean though it outlasts the watchdog."""
    install(machine, "WatchdogSec=3\n")
    path = machine.root / "etc/agent-watchdog/agent-watchdog.toml"
    script = "trap '' TERM; echo >> $HOME/hook; exec 1>&-; while :; do sleep 1; done"
    path.write_text(
        path.read_text()
        + '[[hook]]\nname = "deaf"\non = ["completed", "failed", "stopped", "killed", "lost"]\n'
        + f'command = ["sh", "-c", "{script}"]\ntimeout_seconds = 600\n'
    )
    start(machine, again=True)
    machine.start("shell-short", BIN / "agent-watchdog", "run", "--name", "short", "--", "true", user="alice")
    wait_for((machine.root / "home/alice/hook").exists, "the hook")

    machine.systemctl("stop", UNIT)

    assert machine.show(UNIT, "Result", "ActiveState") == {"Result": "success", "ActiveState": "inactive"}
    wait_for(
        lambda: not machine.systemctl("list-units", "--plain", "--no-legend", "agent-watchdog-helper-*"),
        "nothing left of the hook",
    )


def test_the_command_of_notify_is_a_unit_of_its_own(machine: Machine) -> None:
    """It may write where the closed-in service may not."""
    install(machine)
    path = machine.root / "etc/agent-watchdog/agent-watchdog.toml"
    script = "cat /proc/self/cgroup - >/home/told"
    path.write_text(path.read_text() + f'[notify]\non = ["daemon.ready"]\ncommand = ["sh", "-c", "{script}"]\n')

    start(machine, again=True)

    told = machine.root / "home/told"
    wait_for(lambda: told.exists() and "daemon.ready" in told.read_text(), "the command")
    assert "agent-hooks.slice/agent-watchdog-helper-0-" in told.read_text()


def test_a_crash_loop_goes_on_for_ever(machine: Machine) -> None:
    """Twelve crashes in a row, more than systemd's limit of five in ten seconds: it is started a thirteenth time."""
    install(machine, "RestartSec=0\n")
    pid = start(machine, again=True)
    for _ in range(12):
        machine.enter("kill", "-KILL", str(pid))
        pid = wait_active(machine, but_not=pid)

    assert client(machine, "status")["pid"] == pid


@pytest.mark.parametrize(("wrong", "code"), [("[sweep]\ninterval_seconds = 30\n", 78), ("[sweeep]\n", 78)])
def test_a_wrong_file_is_not_tried_again(machine: Machine, wrong: str, code: int) -> None:
    """Exit status 78, also where the unit's watchdog is below three sweeps; the journal says what would be right."""
    install(machine)
    machine.systemctl("stop", UNIT)
    machine.write("/etc/agent-watchdog/agent-watchdog.toml", wrong)
    machine.systemctl("start", UNIT, check=False)

    shown = machine.show(UNIT, "ActiveState", "ExecMainStatus", "NRestarts")
    assert (shown["ActiveState"], shown["ExecMainStatus"], shown["NRestarts"]) == ("failed", str(code), "0")
    machine.systemctl("reset-failed", UNIT)
