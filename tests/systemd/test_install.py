"""`make install`, an upgrade, `make uninstall`: on a booted systemd without network, for a host and for one person."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.systemd.machine import ROOT, Machine
from tests.world import wait_for

pytestmark = pytest.mark.systemd
UNIT = "agent-watchdog.service"
WHEELS = "/var/wheels"
SHORT = '[sweep]\ninterval_seconds = 0.5\n[stall]\nafter_seconds = 60\n[daemon]\nhost = "edited"\n'


@pytest.fixture(scope="module")
def host(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The machine, with the wheels that `make wheels` downloaded outside, and two users."""
    wheels = tmp_path_factory.mktemp("wheels")
    subprocess.run(["make", "-C", ROOT, "wheels", f"WHEELS={wheels}"], check=True, capture_output=True, timeout=300)
    shutil.copytree(wheels, machine.root / WHEELS.lstrip("/"))
    machine.run("chmod", "-R", "a+rX", WHEELS)
    machine.add_user("alice")
    machine.add_user("carol", linger=True)
    return machine


def make(machine: Machine, what: str, *, source: str | Path = ROOT, user: str | None = None) -> str:
    """One of the targets; what it printed."""
    done = machine.run("make", "-C", source, what, f"WHEELS={WHEELS}", user=user, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def another(machine: Machine, name: str, version: str, sabotage: str = "") -> str:
    """This checkout with another version, perhaps with a daemon that cannot start."""
    place = machine.root / "srv" / name
    kept = shutil.ignore_patterns(".venv", ".git", "__pycache__", "wheels", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, place, ignore=kept)
    project = place / "pyproject.toml"
    project.write_text(re.sub(r'^version = ".*"', f'version = "{version}"', project.read_text(), flags=re.M))
    if sabotage:
        with (place / "watchdog/service/main.py").open("a") as file:
            file.write(sabotage)
    return f"/srv/{name}"


def told(machine: Machine, verb: str, *words: str, user: str | None = None) -> dict[str, object]:
    """The installed client's answer."""
    answer = machine.run("/usr/local/bin/agent-watchdog", verb, "--json", *words, user=user).stdout
    found: dict[str, object] = json.loads(answer)
    return found


def the_agent(machine: Machine) -> dict[str, object]:
    agents = told(machine, "list")["agents"]
    assert isinstance(agents, list)
    (agent,) = agents
    found: dict[str, object] = agent
    return found


def test_a_host_is_installed_upgraded_and_uninstalled(host: Machine) -> None:
    """The agent of another uid, started before the upgrade, lives through all of it and stays known with its state."""
    said = make(host, "install")
    assert "next: systemctl enable --now agent-watchdog" in said
    assert host.systemctl("is-enabled", UNIT, check=False).strip() == "disabled"
    host.write("/etc/agent-watchdog/agent-watchdog.toml", SHORT, 0o640)

    host.systemctl("enable", "--now", UNIT)
    wait_for(lambda: "watching 0 agents" in host.show(UNIT, "StatusText")["StatusText"], "the status text")
    client = "/usr/local/bin/agent-watchdog"
    host.start("agent", client, "run", "--name", "lives", "--", "sh", "-c", f"{client} beat; sleep 1000", user="alice")
    wait_for(lambda: told(host, "list")["agents"], "the agent is registered")
    wait_for(lambda: the_agent(host)["verdict"] == "healthy", "its first beat")
    before = the_agent(host)

    said = make(host, "install", source=another(host, "newer", "99.0.0"))
    assert "restarted" in said
    assert told(host, "status")["version"] == "99.0.0"
    wait_for(lambda: the_agent(host)["verdict"] == "healthy", "looked at by the new daemon")
    after = the_agent(host)
    assert {key: after[key] for key in ("agent_id", "pid", "status", "owner_uid", "beats")} == {
        key: before[key] for key in ("agent_id", "pid", "status", "owner_uid", "beats")
    }
    assert (host.root / "etc/agent-watchdog/agent-watchdog.toml").read_text() == SHORT

    pid = host.show(UNIT, "MainPID")["MainPID"]
    host.write("/etc/agent-watchdog/agent-watchdog.toml", "[kil]\n", 0o640)
    done = host.run("make", "-C", "/srv/newer", "install", f"WHEELS={WHEELS}", check=False, timeout=240)
    assert done.returncode != 0
    assert "nothing was changed and the one that runs goes on" in done.stdout + done.stderr
    assert "kil: unknown key" in done.stdout + done.stderr
    assert (host.show(UNIT, "MainPID")["MainPID"], the_agent(host)["agent_id"]) == (pid, before["agent_id"])
    host.write("/etc/agent-watchdog/agent-watchdog.toml", SHORT, 0o640)

    broken = another(host, "broken", "99.0.1", "\nraise RuntimeError('built on a Friday')\n")
    done = host.run("make", "-C", broken, "install", f"WHEELS={WHEELS}", check=False, timeout=240)
    assert done.returncode != 0
    assert "Friday" in done.stdout + done.stderr
    assert told(host, "status")["version"] == "99.0.0"
    assert the_agent(host)["agent_id"] == before["agent_id"]

    said = make(host, "uninstall", source="/srv/newer")
    assert "agents keep running" in said
    assert "/var/lib/agent-watchdog" in said
    assert host.systemctl("is-active", UNIT, check=False).strip() == "inactive"
    assert host.systemctl("show", UNIT, "--property=LoadState", "--value").strip() == "not-found"
    assert (host.root / "var/lib/agent-watchdog/registry.db").exists()
    assert (host.root / "etc/agent-watchdog/agent-watchdog.toml").read_text() == SHORT
    assert not (host.root / "opt/agent-watchdog").exists()
    assert not (host.root / "usr/local/bin/agent-watchdog").is_symlink()
    assert host.run("kill", "-0", str(before["pid"])).returncode == 0


def test_one_person_installs_for_himself(host: Machine) -> None:
    """Without root: user unit, own environment, the line on lingering where it is off; then `systemctl --user`."""
    said = make(host, "install", user="carol")
    assert "next: systemctl --user enable --now agent-watchdog" in said
    assert "not on your PATH: /home/carol/.local/bin" in said
    assert "loginctl enable-linger alice" in make(host, "install", user="alice")

    host.run("systemctl", "--user", "enable", "--now", UNIT, user="carol")
    client = "/home/carol/.local/bin/agent-watchdog"
    host.start("mine", client, "run", "--name", "mine", "--", "sleep", "1000", user="carol")
    wait_for(lambda: '"mine"' in host.run(client, "list", "--json", user="carol").stdout, "the agent")
    said = make(host, "install", user="carol")
    assert "restarted" in said
    agents = json.loads(host.run(client, "list", "--json", user="carol").stdout)["agents"]
    assert [agent["name"] for agent in agents] == ["mine"]

    said = make(host, "uninstall", user="carol")
    assert "/home/carol/.local/state/agent-watchdog" in said
    assert not (host.root / "home/carol/.local/share/agent-watchdog").exists()
    assert not (host.root / "home/carol/.config/systemd/user" / UNIT).exists()
    assert host.run("kill", "-0", str(agents[0]["pid"]), user="carol").returncode == 0
