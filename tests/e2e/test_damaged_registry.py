"""P4: the registry's file is damaged while no daemon runs.

Living agents are watched again; no agent is killed unasked.
"""

import os
from pathlib import Path

import pytest

from tests.world import World, alive, wait_for


def halve(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    os.truncate(file, 0)


@pytest.mark.parametrize("damage", [halve, empty])
def test_a_damaged_registry_is_moved_aside_and_the_daemon_watches(world: World, damage: object) -> None:
    """A registered agent and one of `run`; the operator's hold is lost, so all are held until a person lifts it."""
    assert callable(damage)
    world.start()
    agent = world.registered("alpha", *world.script("agent.py", "by=systemd-notify", "beat=0.3/hush"))
    world.run("beta", *world.script("agent.py", "beat=0.3"))
    for name in ("alpha", "beta"):
        world.wait_event("agent.first_beat", name=name)
    world.cli("hold", "alpha", "--reason", "I debug it")
    world.crash()
    file = world.state / "registry.db"
    for beside in world.state.glob("registry.db-*"):
        beside.unlink()
    damage(file)
    world.start()
    told = world.wait_event("registry.begun_anew")
    kept = told["kept_as"]
    assert (kept is not None and Path(kept).exists()) == (damage is halve)
    world.stop()
    world.start()  # the hold is a row like any other: a restart lifts nothing
    assert world.count("registry.begun_anew") == 1
    wait_for(lambda: min(world.agents()[name]["beats"] for name in ("alpha", "beta")) > 0, "both are heard again")
    assert "registry was lost" in world.cli("status", check=False).stdout
    (world.dir / "hush").touch()
    world.wait_event("kill.held", name="alpha")
    assert alive(agent.pid)
    assert "registry was lost" in world.cli("why", "alpha").stdout
    world.cli("unhold")
    world.wait_status("alpha", "killed", seconds=30)
    assert world.agents()["beta"]["state"] == "working"


def test_a_registry_that_is_missing_at_start_is_a_lost_one(world: World) -> None:
    """Removed while no daemon runs: an agent that an operator held is not killed, and the remedy is reported."""
    world.start()
    assert world.count("registry.begun_anew") == 0, "a first start"
    agent = world.registered("alpha", *world.script("agent.py", "by=systemd-notify", "beat=0.3/hush"))
    world.wait_event("agent.first_beat", name="alpha")
    world.cli("hold", "alpha", "--reason", "I debug it")
    world.stop()
    for file in world.state.glob("registry.db*"):
        file.unlink()
    world.start()
    told = world.wait_event("registry.begun_anew")
    assert "registry.db is gone" in told["why"] and told["kept_as"] is None
    wait_for(lambda: world.agents()["alpha"]["beats"] > 0, "it is heard again")
    (world.dir / "hush").touch()
    world.wait_event("kill.held", name="alpha")
    assert alive(agent.pid)
    status = world.cli("status", check=False)
    assert status.returncode == 1 and "registry was lost" in status.stdout
    assert "do: agent-watchdog unhold" in world.cli("doctor", check=False).stdout
    world.cli("unhold")
    world.wait_status("alpha", "killed", seconds=30)
    world.stop()
    world.start()
    assert world.count("registry.begun_anew") == 1


def test_a_registry_that_is_damaged_while_the_daemon_runs_is_reported_with_the_remedy(world: World) -> None:
    """No agent is killed without a stored intent; `status` names the remedy, and a restart is that."""
    world.start()
    agent = world.registered("alpha", *world.script("agent.py", "by=systemd-notify", "beat=0.3/hush"))
    world.wait_event("agent.first_beat", name="alpha")
    for file in (world.state / "registry.db", world.state / "registry.db-wal"):
        with file.open("r+b") as damaged:
            damaged.write(b"damage" * (file.stat().st_size // 6))
    (world.dir / "hush").touch()
    told = world.wait_event("registry.unavailable")
    wait_for(
        lambda: "the file is damaged: restart the daemon" in world.cli("status", check=False).stdout, "status says so"
    )
    assert "is put aside" in world.cli("doctor", check=False).stdout, told
    assert alive(agent.pid)
    world.stop()
    world.start()
    assert Path(world.wait_event("registry.begun_anew")["kept_as"]).exists()
    wait_for(lambda: world.agents().get("alpha"), "it is watched again")
    assert alive(agent.pid)
