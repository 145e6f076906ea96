"""Past harm to healthy agents by hostile or careless neighbours, one test per case."""

import os
import resource
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes.conftest import needs_root
from tests.world import BIN, World, alive, environ_of, pids_with, started_at, wait_for


@pytest.mark.faults
@pytest.mark.parametrize("gone", ["control.sock", "."])
def test_removing_the_control_socket_kills_no_agent(world: World, gone: str) -> None:
    """`rm` of our socket or of the whole runtime directory (as logout does): logged, made again, no agent is killed."""
    world.configure(log={"level": "debug"})
    world.start()
    world.run("well", *world.script("agent.py", "beat=0.3"))
    world.wait_event("agent.first_beat", name="well")
    agent = world.wait_status("well", "running")

    target = world.runtime / gone
    shutil.rmtree(world.runtime) if gone == "." else target.unlink()

    world.wait_event("control.lost")
    world.wait_event("control.reopened")
    beats = world.agents()["well"]["beats"]
    if gone != ".":  # there the wrapper's own socket is gone too, and the agent's beats cannot be received
        wait_for(lambda: world.agents()["well"]["beats"] > beats + 2, "it is heard again")
    world.wait_sweeps(12)  # twice its limit
    assert world.agents()["well"]["status"] == "running"
    assert alive(agent["pid"])
    assert world.count("control.lost") == 1


def test_a_foreign_file_in_place_of_the_socket_is_not_removed(world: World) -> None:
    """A directory there fails no sweep: it is moved aside whole, and we listen again. Another one survives our stop."""
    world.configure(log={"level": "debug"})
    world.start()
    place = Path(world.socket)
    place.unlink()
    (place / "theirs").mkdir(parents=True)
    world.wait_event("control.lost")
    world.wait_event("control.reopened")
    world.wait_sweeps(3)
    assert not [event for event in world.events() if event["level"] == "error" and event["event"] != "control.lost"]
    assert (place.parent / "control.sock.aside" / "theirs").is_dir()
    assert world.cli("status").returncode == 0
    place.unlink()
    place.mkdir()
    assert world.stop() == 0
    assert place.is_dir()


def test_an_orphan_with_an_empty_environment_is_killed_with_its_agent(world: World) -> None:
    """No marker, its own session, a dead parent: the wrapper adopted it, so it belongs to the agent."""
    world.start()
    seconds = str(100000 + os.getpid())
    world.run("leaky", "/bin/sh", "-c", f"(env -i setsid sleep {seconds} &); exec sleep 1000")
    world.wait_status("leaky", "running")

    def orphan() -> list[int]:
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words[:2] == [b"sleep", seconds.encode()]:
                    found.append(int(name))
        return found

    left = wait_for(orphan, "the orphan runs")
    try:
        world.cli("kill", "leaky")
        assert not any(alive(pid) for pid in left)
    finally:
        for pid in left:
            if alive(pid):
                os.kill(pid, 9)


WAITS = 'until [ -e "$WORLD/go" ]; do sleep 0.1; done; exit 1'


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_an_agent_that_drops_root_is_owned_by_its_new_user(world: World) -> None:
    """The hooks of an agent that root started and that became uid 12003 run as 12003."""
    world.dir.chmod(0o755)
    seen = world.dir / "seen"
    seen.touch()
    seen.chmod(0o666)
    with world.config.open("a") as config:
        config.write(f'[[hook]]\nname = "who"\non = ["failed"]\ncommand = ["/bin/sh", "-c", "id -u > {seen}"]\n')
    world.start()
    world.run("dropper", "setpriv", "--reuid=12003", "--clear-groups", "/bin/sh", "-c", WAITS)

    world.wait_event("agent.owner_changed", name="dropper", uid=12003)
    (world.dir / "go").touch()
    world.wait_status("dropper", "failed")

    assert seen.read_text() == "12003\n"
    assert world.agents()["dropper"]["owner_uid"] == 12003


def test_a_deleted_registry_kills_no_agent(world: World) -> None:
    """No intent can be committed that a restart would see, so no agent is killed until it is back."""
    if world.server is not None:
        pytest.skip("the registry is no file here")
    world.start()
    world.run("mute", *world.script("agent.py", "beat=0.3/hush"))
    world.wait_event("agent.first_beat", name="mute")
    agent = world.wait_status("mute", "running")
    registry, aside = world.state / "registry.db", world.state / "aside"
    registry.rename(aside)
    (world.dir / "hush").touch()

    world.wait_event("registry.unavailable")
    world.wait_event("kill.held", name="mute")
    assert alive(agent["pid"])
    aside.rename(registry)

    world.wait_event("registry.recovered")
    world.wait_status("mute", "killed")
    assert world.count("registry.unavailable") == 1


@pytest.mark.faults
def test_clients_without_a_connection_for_lack_of_descriptors_do_not_count_as_silent(world: World) -> None:
    """Logged once, without a traceback a hundred times a second; agents that beat over HTTP or send their pid live."""
    world.configure(stall={"after_seconds": 3, "start_limit_seconds": 3})
    world.start()
    assert world.daemon is not None
    agent = world.registered("http", "sleep", "1000")
    assert world.ask("POST", f"/v1/agents/{environ_of(agent.pid)['AGENT_WATCHDOG_ID']}/beat", {})[0] == 204
    assert world.ask("POST", "/v1/agents", {"name": "slow"})[0] == 201
    limit = resource.prlimit(world.daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(world.daemon.pid, resource.RLIMIT_NOFILE, (8, limit[1]))
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(world.socket)
        world.wait_event("descriptors.exhausted")
        world.wait_event("agent.channel_lost", name="http")
        time.sleep(5)  # nothing may happen; both their limits are over
    resource.prlimit(world.daemon.pid, resource.RLIMIT_NOFILE, limit)

    world.wait_event("descriptors.back")
    assert alive(agent.pid)
    assert world.count("descriptors.exhausted") == 1
    assert world.count("kill.requested") == world.count("log.message") == 0


@pytest.mark.faults
@pytest.mark.parametrize("by_run", [True, False])
def test_a_tree_of_more_processes_than_our_descriptor_limit_is_killed(world: World, by_run: bool) -> None:
    """It was refused as a whole (EMFILE), again and again; now it is pinned, killed and released in parts."""
    world.start(prefix=("prlimit", "--nofile=256:256"))
    crowd = "trap '' TERM; for i in $(seq 400); do sleep 1000 & done; touch up; wait; wait"
    (world.run if by_run else world.registered)("crowd", "sh", "-c", crowd)
    wait_for((world.dir / "up").exists, "all are there")
    agent = world.wait_status("crowd", "running")

    world.cli("kill", "crowd")

    assert pids_with("AGENT_WATCHDOG_ID", agent["agent_id"]) == []
    assert not alive(agent["pid"])
    assert world.count("kill.refused") == world.count("kill.unkillable") == 0


@pytest.mark.faults
def test_run_inside_run_is_killed_whole(world: World) -> None:
    """The outer agent is the inner one's wrapper: the inner agent is killed with it, and each is reported once."""
    world.start()
    client = str(BIN / "agent-watchdog")
    world.run("outer", client, "run", "--name", "inner", "--", "sh", "-c", "trap '' TERM; sleep 1000 & wait; wait")
    inner = world.wait_status("inner", "running")
    world.wait_status("outer", "running")

    world.cli("kill", "outer", "--children")

    assert world.wait_status("outer", "killed")["pid"] != inner["pid"]
    world.wait_status("inner", "failed", "killed")
    assert pids_with("AGENT_WATCHDOG_ID", inner["agent_id"]) == []
    assert world.count("agent.ended") == 2


@pytest.mark.faults
@needs_root
def test_an_agent_that_cannot_send_its_pid_is_judged_by_its_beats(world: World) -> None:
    """`run` in a container with its own pid namespace, and the daemon's socket.

    It beats, or works without a promise: it has started. If it falls silent there, or promised beats and sent none, it
    is killed by its mark; if it is over, it is closed.
    """
    world.configure(stall={"after_seconds": 3, "start_limit_seconds": 10}, log={"level": "debug"})
    world.start()
    beats = "while :; do agent-watchdog beat; sleep 0.5; done"
    promise = ("--stall-after", "3s")
    agents = {
        "beats": (beats, promise),
        "works": ("sleep 1000; true", ()),
        "mute": ("agent-watchdog beat; sleep 1000; true", promise),
        "never": ("sleep 1000; true", promise),
        "over": ("sleep 5", ()),
    }
    for name, (work, options) in agents.items():
        inside = ["agent-watchdog", "run", "--name", name, *options, "--", "sh", "-c", work]
        world.spawn("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *inside)
    assert world.wait_status("mute", "killed")["verdict"] == "stalled"
    assert world.wait_status("never", "failed")["verdict"] == "starting"
    world.wait_status("over", "failed", "completed")
    world.wait_sweeps(8)
    found = world.agents()
    told = {name: (found[name]["verdict"], found[name]["pid"], len(pids_of(found[name]))) for name in agents}
    assert told["beats"][:2] == told["works"][:2] == ("healthy", None), told
    assert told["beats"][2] >= 1 <= told["works"][2]
    assert (told["mute"][2], told["never"][2], told["over"][2]) == (0, 0, 0)


def pids_of(agent: dict[str, Any]) -> list[int]:
    """The processes with its mark."""
    return pids_with("AGENT_WATCHDOG_ID", str(agent["agent_id"]))


@pytest.mark.faults
def test_a_daemon_started_by_an_agent_kills_nothing_below_that_agent(world: World) -> None:
    """`agent-watchdogd` typed in a registered shell: it was spared as our ancestor, all else below it was killed."""
    world.start()
    world.registered("shell", "sleep", "1000")
    world.stop()
    go = world.dir / "go"
    below = f'sleep 1000 & until [ -e {go} ]; do sleep 0.05; done; echo $! >{go}; "$@"; :'
    before = len(world.events())
    world.start(wait=False, prefix=("sh", "-c", below, "sh"))
    assert world.daemon is not None
    ticks = started_at(world.daemon.pid)
    world.sql(f"UPDATE agent_lifecycle SET pid = {world.daemon.pid}, start_ticks = {ticks}, pidfd_inode = NULL")
    go.touch()
    world.wait_event("row.quarantined", after=before)
    world.wait_event("daemon.ready", after=before)

    refused = world.cli("kill", "shell", check=False)
    assert (refused.returncode, "it is an ancestor of this daemon" in refused.stdout + refused.stderr) == (1, True)
    assert world.agents(all_=False)["shell"]["status"] == "running"  # its worktree and temp dir are in use
    assert alive(int(go.read_text()))
    assert alive(world.daemon.pid)
    assert world.count("kill.requested") == 0

    world.daemon.kill()  # the shell; the daemon continues as an orphan
    world.daemon.wait()
    world.wait_event("agent.gone", after=before, name="shell")
    world.wait_status("shell", "completed", "failed")
