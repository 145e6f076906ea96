"""An agent of `run` gets its own cgroup; its processes are found there, over restarts and when it is gone."""

import os
import signal
from pathlib import Path

import pytest

from tests.cgroups import needs_v2, path_of, scratch
from tests.world import BIN, World, alive, wait_for
from watchdog.processes import cgroups

SOMEBODY = 12345  # a uid
# Reports the pids of a plain child, and of one without marker, session, parent or group of the agent.
ESCAPE = """
sleep 300 & echo $! > plain
(env -i setsid sh -c 'sleep 300 & echo $! > lost.new; mv lost.new lost')
exec sleep 300
"""


def pid_in(file: Path) -> int:
    return int(wait_for(lambda: file.read_text().strip() if file.exists() else None, f"{file} is written"))


def main_of(world: World, name: str) -> int:
    found = wait_for(lambda: world.agents().get(name, {}).get("pid"), f"the pid of {name}")
    assert isinstance(found, int)
    return found


def leaf_of(world: World, name: str) -> str:
    """The agent's own cgroup, which has its id in its name."""

    def look() -> str | None:
        agent = world.agents().get(name)
        return agent["cgroup"] if agent else None

    leaf = wait_for(look, f"{name} has a cgroup")
    assert leaf == f"/agent-watchdog/agent-{world.agents()[name]['agent_id']}"
    return leaf


@needs_v2
def test_the_next_daemon_knows_it_even_if_the_former_one_could_not_store_it(world: World) -> None:
    """By its name, where the main process is; another path that was written there by hand is not believed."""
    world.start()
    world.run("mine", "sleep", "300")
    world.run("other", "sleep", "300")
    mine, other = leaf_of(world, "mine"), leaf_of(world, "other")
    world.crash()
    world.sql("UPDATE agent_lifecycle SET cgroup_path = NULL WHERE name = 'mine'")
    world.sql(f"UPDATE agent_lifecycle SET cgroup_path = '{mine}' WHERE name = 'other'")

    world.start()

    assert leaf_of(world, "mine") == mine
    assert leaf_of(world, "other") == other


@needs_v2
def test_a_process_with_no_other_trace_is_killed_also_by_the_next_daemon(world: World) -> None:
    """The wrapper, which would adopt it, is gone, and so is the daemon that made the cgroup."""
    world.start()
    wrapper = world.run("gone", "sh", "-c", ESCAPE)
    lost = pid_in(world.dir / "lost")
    main = main_of(world, "gone")
    leaf = leaf_of(world, "gone")
    assert cgroups.path_of(main) == cgroups.path_of(lost) == leaf
    assert cgroups.path_of(wrapper.pid) == cgroups.path_of(os.getpid())
    world.crash()
    wrapper.kill()
    wait_for(lambda: not alive(main), "the agent dies with its wrapper")
    assert alive(lost)

    world.start()
    world.wait_status("gone", "failed", "completed")

    assert not alive(lost)
    assert not alive(pid_in(world.dir / "plain"))
    wait_for(lambda: cgroups.owner_of(leaf) is None, "the leaf is removed")
    assert world.count("cgroup.refused") == 0


@needs_v2
@pytest.mark.faults
def test_a_tree_that_a_dead_daemon_left_frozen_resumes(world: World) -> None:
    """Even if the next one may not kill."""
    world.configure(kill={"grace_seconds": 30})
    world.start()
    world.run("deaf", *world.script("agent.py", "deaf", "beat=0.3/3"))
    world.wait_event("kill.signal_sent", name="deaf")
    leaf = leaf_of(world, "deaf")
    world.crash()
    assert cgroups.freeze(leaf, 10)

    world.start("--observe")

    wait_for(lambda: not cgroups.events(leaf).frozen, "thawed")
    assert alive(main_of(world, "deaf"))


@needs_v2
def test_an_agent_started_by_hand_keeps_its_cgroup(world: World) -> None:
    """So does one that already runs its command when the daemon comes: its children would be left behind."""
    late = world.run("late", "sh", "-c", "touch up; exec sleep 300")
    wait_for((world.dir / "up").exists, "it runs without a daemon")
    world.start()
    process = world.registered("hand", "sleep", "300", source="register")
    wait_for(lambda: "late" in world.agents(), "it is registered")
    main = main_of(world, "late")

    assert cgroups.path_of(process.pid) == cgroups.path_of(main) == cgroups.path_of(late.pid)
    assert world.ask("GET", "/v1/status")[1]["own_cgroup"] == "leaf"


@needs_v2
def test_a_leaf_that_a_dead_daemon_left_empty_is_removed_and_others_are_not(world: World) -> None:
    empty, taken = f"/agent-watchdog/agent-{'e' * 32}", f"/agent-watchdog/agent-{'f' * 32}"
    other = world.spawn("sleep", "300")
    cgroups.create(empty)
    cgroups.create(taken)
    cgroups.move(other.pid, taken)
    try:
        world.start()

        assert cgroups.owner_of(empty) is None
        assert cgroups.members(taken) == {other.pid}
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
        wait_for(lambda: cgroups.remove(taken), "removed")


@needs_v2
def test_a_user_divides_the_cgroup_delegated_to_it(world: World) -> None:
    """Without systemd: delegated, with the user's daemon and shell below it (cgroup-v2.rst, Delegation)."""
    become = ("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups")
    for path in (world.dir, *world.dir.rglob("*")):
        os.chown(path, SOMEBODY, SOMEBODY)
    with scratch() as own:
        for path in (own, own / "cgroup.procs"):
            os.chown(path, SOMEBODY, SOMEBODY)
        into = ("sh", "-c", f'echo $$ > {own}/cgroup.procs; exec "$@"', "-", *become)
        world.start(prefix=into)
        up = world.dir / "up"
        world.spawn(
            *into, str(BIN / "agent-watchdog"), "run", "--name", "his", "--", "sh", "-c", f"echo $$ > {up}; sleep 300"
        )
        pid = pid_in(up)
        agent_id = world.wait_event("agent.pid_known", name="his")["agent_id"]

        assert cgroups.path_of(pid) == f"{path_of(own)}/agent-{agent_id}"
        os.kill(pid, signal.SIGKILL)
        world.wait_event("agent.ended", name="his")
        wait_for(lambda: not (own / f"agent-{agent_id}").exists(), "the leaf is removed")
        world.crash()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may divide the cgroups here")
def test_without_a_cgroup_of_its_own_an_agent_still_runs(world: World) -> None:
    world.start()
    world.run("plain", "true")
    world.wait_status("plain", "completed")

    assert world.ask("GET", "/v1/status")[1]["own_cgroup"].startswith("none: ")
    assert world.count("cgroup.refused") == 0


@needs_v2
def test_a_process_in_it_with_a_spared_name_lives_and_is_reported(world: World) -> None:
    """There is no other trace of it: it is not signalled, and its cgroup can be neither frozen nor removed."""
    world.start()
    spared = "echo -n ssh-agent > /proc/self/comm; echo $$ > spared.new; mv spared.new spared; read none < fifo; :"
    os.mkfifo(world.dir / "fifo")
    world.run("feigns", "sh", "-c", f"sh -c '{spared}' & exec sleep 300")
    pid = pid_in(world.dir / "spared")
    leaf_of(world, "feigns")

    world.cli("kill", "feigns")

    told = f"left alive in its cgroup: ssh-agent[{pid}]"
    assert alive(pid)
    assert told in world.wait_event("kill.finished", name="feigns")["why"]
    assert told in world.cli("why", "feigns").stdout
