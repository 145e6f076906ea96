"""Each agent of `run` in a scope of its own, which systemd makes: for the host's daemon and for a user's."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.systemd.machine import ROOT, Machine
from tests.systemd.service import BIN, UNIT, agent, client, install, settings, start
from tests.world import wait_for

pytestmark = pytest.mark.systemd
# As in tests/e2e/test_own_cgroup.py: one child that only the cgroup shows.
ESCAPE = "(env -i setsid sh -c 'sleep 300 & echo $! > /tmp/{0}.new; mv /tmp/{0}.new /tmp/{0}'); exec sleep 300"


def cgroup_of(machine: Machine, pid: int) -> str | None:
    lines = machine.enter("cat", f"/proc/{pid}/cgroup").stdout.splitlines()  # as seen inside
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)


def pid_in(machine: Machine, path: str) -> int:
    file = machine.root / path.lstrip("/")
    return int(wait_for(lambda: file.read_text().strip() if file.exists() else None, f"{path} is written"))


@pytest.fixture
def alice(machine: Machine) -> int:
    """The service as it is shipped is up; her uid."""
    install(machine)
    start(machine, again=True)
    return machine.uid("alice") if (machine.root / "home/alice").exists() else machine.add_user("alice")


def run_agent(machine: Machine, name: str, *command: str, user: str) -> dict[str, Any]:
    """An agent from a unit of its own, as from a shell."""
    run: tuple[str | Path, ...] = (BIN / "agent-watchdog", "run", "--name", name, "--", *command)
    machine.start(f"shell-{name}", *run, user=user, environ={"HOME": f"/home/{user}"})
    return wait_for(lambda: found if (found := agent(machine, name)) and found["pid"] else None, f"agent {name}")


def events_in_scope(machine: Machine, path: str) -> Path:
    return machine.root / f"sys/fs/cgroup{path}"


def test_another_uids_agent_has_a_scope_in_his_slice_and_ends_whole(machine: Machine, alice: int) -> None:
    """By a later daemon, inside the hardened unit: what only the scope shows dies with it, the shell's unit lives."""
    found = run_agent(machine, "alices", "sh", "-c", ESCAPE.format("alices"), user="alice")
    lost = pid_in(machine, "/tmp/alices")
    scope = f"/user.slice/user-{alice}.slice/agent-{found['agent_id']}.scope"
    wrapper = int(machine.show("shell-alices", "MainPID")["MainPID"])

    assert cgroup_of(machine, found["pid"]) == cgroup_of(machine, lost) == scope
    assert cgroup_of(machine, wrapper) == "/system.slice/shell-alices.service"
    start(machine, again=True)
    assert cgroup_of(machine, found["pid"]) == scope
    # Its parent would be the wrapper, which adopts it: only init's child is nobody's.
    machine.run("kill", "-KILL", str(wrapper))
    machine.wait_event("agent.ended", name="alices")

    wait_for(lambda: cgroup_of(machine, lost) is None, "the one that only the scope shows is dead")
    wait_for(lambda: not events_in_scope(machine, scope).exists(), "systemd has removed the scope")
    assert f"agent-{found['agent_id']}" not in machine.systemctl("list-units", "--all", "--plain")
    assert not [entry for entry in machine.events() if entry["event"] == "cgroup.refused"]
    assert client(machine, "status")["own_cgroup"] == "scope"


@pytest.mark.usefixtures("alice")
def test_a_stubborn_scope_is_ended_by_an_operator(machine: Machine) -> None:
    """TERM is ignored by all, and one has nothing that names the agent."""
    command = "trap '' TERM; " + ESCAPE.format("deaf")
    found = run_agent(machine, "deaf", "sh", "-c", command, user="alice")
    lost = pid_in(machine, "/tmp/deaf")

    done = client(machine, "kill", "deaf", "--grace", "1s")

    assert done["success"] is True and done["killed_gracefully"] is False
    assert cgroup_of(machine, found["pid"]) is None and cgroup_of(machine, lost) is None
    sent = [event["why"] for event in machine.events() if event["event"] == "kill.signal_sent"]
    kills = [why for why in sent if why.startswith("SIGKILL")]
    assert len(kills) == 1 and not [why for why in sent if "SIGSTOP" in why], "frozen and killed as a whole"


@pytest.mark.usefixtures("alice")
def test_without_the_bus_an_agent_starts_all_the_same_and_that_is_said_once(machine: Machine) -> None:
    install(machine, "Environment=DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/later\n")
    start(machine, again=True)
    first = run_agent(machine, "busless", "sleep", "300", user="alice")
    run_agent(machine, "busless-too", "sleep", "300", user="alice")

    assert cgroup_of(machine, first["pid"]) == "/system.slice/shell-busless.service"
    said = [entry for entry in machine.events() if entry["event"] == "cgroup.refused"]
    assert len(said) == 1 and said[0]["why"]
    machine.run("ln", "-s", "dbus/system_bus_socket", "/run/later")
    later = run_agent(machine, "bus", "sleep", "300", user="alice")
    scope = f"/agent-{later['agent_id']}.scope"  # on a busy machine it moves there after `run` has let it go
    wait_for(lambda: (cgroup_of(machine, later["pid"]) or "").endswith(scope), "it is in a scope of its own")
    machine.wait_event("cgroup.works")


def test_a_manager_that_ends_with_the_last_login_is_not_asked(machine: Machine) -> None:
    """What runs in a session lives on at a logout; in a scope of his manager it would be ended."""
    uid = machine.add_user("dan")
    machine.systemctl("start", f"user@{uid}")
    environ = {"HOME": "/home/dan"}
    machine.start("dans", BIN / "agent-watchdogd", user="dan", environ=environ)
    wait_for(lambda: (machine.root / f"run/user/{uid}/agent-watchdog/control.sock").exists(), "his daemon")

    told = machine.run(BIN / "agent-watchdog", "status", "--json", user="dan", environ=environ).stdout

    assert json.loads(told)["own_cgroup"].startswith("none: your user manager kills")


def test_a_users_daemon_asks_his_manager(machine: Machine) -> None:
    """The scope is his own unit; it lives over a restart of his daemon, and what only it shows is ended by that one."""
    uid = machine.add_user("carol", linger=True)
    home = "/home/carol/.config"
    machine.write(f"{home}/systemd/user/{UNIT}", (ROOT / "systemd/user" / UNIT).read_text())
    machine.write(f"{home}/agent-watchdog/agent-watchdog.toml", settings())
    machine.write(
        f"{home}/systemd/user/{UNIT}.d/test.conf", f"[Service]\nExecStart=\nExecStart={BIN}/agent-watchdogd\n"
    )
    machine.run("chown", "-R", "carol:carol", "/home/carol")
    environ = {"HOME": "/home/carol"}
    for verb in (("daemon-reload",), ("start", UNIT)):
        machine.run("systemctl", "--user", *verb, user="carol")

    def hers() -> dict[str, Any]:
        told = machine.run(BIN / "agent-watchdog", "list", "--all", "--json", user="carol", environ=environ).stdout
        found = json.loads(told)["agents"]
        return found[0] if found else {}

    run = (BIN / "agent-watchdog", "run", "--name", "hers", "--", "sh", "-c", ESCAPE.format("hers"))
    machine.start("shell-hers", *run, user="carol", environ=environ)
    lost = pid_in(machine, "/tmp/hers")
    pid = wait_for(lambda: hers().get("pid"), "her agent")
    scope = f"/user.slice/user-{uid}.slice/user@{uid}.service/app.slice/agent-{hers()['agent_id']}.scope"
    assert cgroup_of(machine, pid) == cgroup_of(machine, lost) == scope
    machine.run("systemctl", "--user", "restart", UNIT, user="carol")
    assert cgroup_of(machine, pid) == scope

    machine.run("kill", "-KILL", machine.show("shell-hers", "MainPID")["MainPID"], user="carol")
    wait_for(lambda: hers()["status"] in ("failed", "completed"), "it is over")

    assert cgroup_of(machine, lost) is None
    wait_for(lambda: not events_in_scope(machine, scope).exists(), "her manager has removed the scope")


@pytest.mark.parametrize("limit", ["MemoryMax=500M", "IPAddressDeny=any", "TasksMax=50", "DevicePolicy=closed"])
def test_nobody_gets_an_agent_out_of_what_root_has_limited(machine: Machine, alice: int, limit: str) -> None:
    """A service of hers that root has confined would only have to start an agent. At bc51ea4 it came out of it."""
    name = f"confined-{limit.partition('=')[0].lower()}"
    run: tuple[str | Path, ...] = (BIN / "agent-watchdog", "run", "--name", name, "--", "sleep", "300")
    machine.start(f"shell-{name}", *run, user="alice", environ={"HOME": "/home/alice"}, properties=(limit,))
    found = wait_for(lambda: one if (one := agent(machine, name)) and one["pid"] else None, f"agent {name}")
    machine.wait_event("cgroup.refused")
    assert cgroup_of(machine, found["pid"]) == f"/system.slice/shell-{name}.service"
    client(machine, "kill", "--force", name)
    assert alice
