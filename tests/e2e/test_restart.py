"""The daemon is killed, stopped and started again: each story ends right, and no agent pays for our absence."""

import json
import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.world import World, alive, pids_with, started_at, wait_for
from watchdog.agents.tracker import RECONNECTS

TIMES: dict[str, dict[str, Any]] = {
    "sweep": {"interval_seconds": 0.5},
    "stall": {"after_seconds": 2.5, "start_limit_seconds": 60},
    "log": {"level": "debug"},
}


def hook(world: World) -> Path:
    """Configure a hook that adds one line per run; returns the file."""
    seen = world.dir / "hooks"
    with world.config.open("a") as config:
        config.write(
            f'[[hook]]\nname = "count"\ncommand = ["/bin/sh", "-c", "cat >> {seen}; echo >> {seen}"]\n'
            '[[hook]]\nname = "temp_dir"\nrun = "temp_dir"\n'
        )
    return seen


def runs(seen: Path, name: str) -> list[str]:
    """The outcomes with which the hook ran for that agent."""
    lines = seen.read_text().splitlines() if seen.exists() else []
    facts = [json.loads(line) for line in lines if line.strip()]
    return [fact["outcome"] for fact in facts if fact["name"] == name]


def temp_dir_of(world: World, name: str) -> Path:
    path = Path(world.story(name)["agent"]["temp_dir"])
    assert path.is_dir()
    return path


@pytest.mark.faults
def test_a_daemon_killed_in_the_middle_of_a_kill_ends_the_same_story(world: World) -> None:
    """SIGKILL after TERM was sent to a deaf agent: the next daemon continues, hooks run once, others get no signal."""
    world.configure(**TIMES, kill={"grace_seconds": 8})
    seen = hook(world)
    world.start()
    world.run("well", *world.script("agent.py", "witness", "beat=0.3"))
    world.run("quiet", *world.script("agent.py", "witness", "sleep"))
    world.run("deaf", *world.script("agent.py", "deaf", "grandchild", "beat=0.3/3"), options=("--temp-dir", "auto"))
    world.wait_event("kill.signal_sent", name="deaf")
    temp_dir = temp_dir_of(world, "deaf")
    family = pids_with("AGENT_WATCHDOG_ID", world.story("deaf")["agent"]["agent_id"])
    world.crash()
    assert len(family) == 2
    assert all(alive(pid) for pid in family)

    world.start()
    world.wait_status("deaf", "killed")

    assert not any(alive(pid) for pid in family)
    assert not temp_dir.exists()
    assert runs(seen, "deaf") == ["killed"]
    assert world.count("kill.resumed", name="deaf") == 1
    assert world.count("kill.requested", name="deaf") == 1
    assert world.count("kill.finished", name="deaf") == 1
    assert len(world.story("deaf")["requests"]) == 1
    assert {name: a["status"] for name, a in world.agents().items()} == {
        "well": "running",
        "quiet": "running",
        "deaf": "killed",
    }
    assert world.witnessed() == []
    assert world.signalled() == set(family)


def test_a_daemon_killed_during_a_hook_runs_the_hooks_to_their_end(world: World) -> None:
    """The tree is proven dead and a hook runs when we die: nothing is signalled again, the row is closed afterwards."""
    world.configure(**TIMES)
    gate = world.dir / "gate"
    os.mkfifo(gate)
    with world.config.open("a") as config:
        config.write(f'[[hook]]\nname = "slow"\ncommand = ["/bin/sh", "-c", "echo begun >> {gate}.log; cat {gate}"]\n')
    world.start()
    world.run("mute", *world.script("agent.py", "beat=0.3/3"))
    wait_for(lambda: (world.dir / "gate.log").exists(), "the hook runs")
    assert world.story("mute")["agent"]["status"] == "ending"
    world.crash()
    signals = world.count("kill.signal_sent")

    world.start()
    wait_for(lambda: (world.dir / "gate.log").read_text().count("begun") == 2, "it runs again")
    gate.write_text("go on\n")
    world.wait_status("mute", "killed")

    assert world.count("kill.signal_sent") == signals


@pytest.mark.faults
def test_an_operator_s_hold_outlives_the_daemon(world: World) -> None:
    """Of two silent agents, the next daemon kills only the one that is not held; then a kill without grace."""
    world.configure(**TIMES)
    world.start()
    for name in ("held", "free"):
        world.run(name, *world.script("agent.py", "deaf", "beat=0.2/hush"), options=("--stall-after", "3s"))
        world.wait_event("agent.first_beat", name=name)
    world.cli("hold", "held", "--for", "1h", "--reason", "I look at it")
    (world.dir / "hush").touch()
    world.crash()
    world.start()
    world.wait_status("free", "killed")
    world.wait_event("kill.held", name="held")
    assert alive(world.agents()["held"]["pid"])

    assert world.cli("kill", "held", "--grace", "0s", check=False).returncode == 1, "his own hold binds him too"
    world.cli("unhold", "held")
    world.cli("kill", "held", "--grace", "0s", "--reason", "enough", check=False)  # or the sweep was first
    world.wait_status("held", "killed")
    assert not pids_with("AGENT_WATCHDOG_ID", world.story("held")["agent"]["agent_id"])


@pytest.mark.faults
def test_no_agent_pays_for_five_stall_periods_without_a_daemon(world: World) -> None:
    """Beats by sdnotify, systemd-notify and `beat`, under `run` and registered; a lost channel is reported once."""
    world.configure(**TIMES)
    world.start()
    words = {"sdnotify": "beat=0.4", "systemd-notify": "beat=0.6", "beat": "beat=0.6"}
    for by, beats in words.items():
        world.run(f"run-{by}", *world.script("agent.py", "witness", f"by={by}", beats))
        world.registered(f"own-{by}", *world.script("agent.py", "witness", f"by={by}", beats))
    names = {f"{kind}-{by}" for kind in ("run", "own") for by in words}
    for name in sorted(names):
        world.wait_event("agent.first_beat", name=name)
    world.wait_sweeps(2)
    before = {name: (a["pid"], started_at(a["pid"])) for name, a in world.agents().items()}
    assert world.stop() == 0
    time.sleep(5 * 2.5)  # the case itself: no daemon watches for so long

    world.start()
    counts = {name: agent["beats"] for name, agent in world.agents().items()}
    heard = names - {"own-sdnotify"}
    wait_for(lambda: all(world.agents()[name]["beats"] > counts[name] for name in heard), "they are heard again")
    world.wait_event("agent.channel_lost", name="own-sdnotify")
    world.wait_sweeps(8)

    after = world.agents()
    assert {name: a["status"] for name, a in after.items()} == dict.fromkeys(names, "running")
    assert {name: (a["pid"], started_at(a["pid"])) for name, a in after.items()} == before
    assert [e["name"] for e in world.events() if e["event"] == "agent.channel_lost"] == ["own-sdnotify"]
    assert world.story("own-sdnotify")["agent"]["verdict"] == "late"
    assert world.witnessed() == []
    assert world.signalled() == set()


def test_a_lost_channel_that_is_found_again_is_judged_again(world: World) -> None:
    """One beat through the new socket ends the exception: the next silence counts as usual."""
    world.configure(**TIMES)
    world.start()
    world.registered("lost", *world.script("agent.py", "by=sdnotify", "beat=0.4"))
    world.wait_event("agent.first_beat", name="lost")
    world.wait_sweeps(2)  # the last sender is stored once a sweep
    world.crash()
    world.start()
    world.wait_event("agent.channel_lost", name="lost")

    world.cli("beat", "--agent", "lost")
    world.wait_event("agent.recovered", name="lost")

    world.wait_status("lost", "killed")


@pytest.mark.faults
def test_a_daemon_killed_every_two_sweeps_still_ends_a_stalled_agent(world: World) -> None:
    """Watched silence is kept over restarts, and a kill resumes at its step.

    Two sweeps that count: an agent that beats through `run` has some seconds to find each new daemon, which are not
    silence.
    """
    world.configure(**TIMES)
    world.start()
    world.run("mute", *world.script("agent.py", "beat=0.3/2"), options=("--stall-after", "1.5s"))
    world.run("well", *world.script("agent.py", "witness", "beat=0.3"), options=("--stall-after", "20s"))
    world.wait_event("agent.first_beat", name="mute")
    pid = world.agents()["mute"]["pid"]
    lives = 0
    while alive(pid):
        lives += 1
        assert lives < 10, world.cli("why", "mute").stdout
        until = time.monotonic() + 2.4 * 0.5 + (RECONNECTS if lives > 1 else 0)
        while time.monotonic() < until:
            world.wait_sweeps(1)
        world.crash()
        world.start()

    world.wait_status("mute", "killed")
    assert lives >= 2
    assert world.agents()["well"]["status"] == "running"
    assert world.witnessed() == []


def test_an_agent_of_another_boot_is_lost_and_an_impostor_with_its_pid_is_not_touched(world: World) -> None:
    """Its boot is gone, so none of its processes lives: hooks run, the row says lost, no signal is sent."""
    world.configure(**TIMES)
    seen = hook(world)
    temp_dir = world.dir / "temp"
    temp_dir.mkdir(mode=0o700)
    world.start()
    impostor = world.spawn(*world.script("agent.py", "witness", "sleep"))
    body = {"pid": impostor.pid, "name": "lost", "stall_after_seconds": 2, "temp_dir": str(temp_dir), "task": "T-1"}
    assert world.ask("POST", "/v1/agents", body)[0] == 201
    world.stop()
    world.sql(f"UPDATE agent_lifecycle SET boot_id = '{uuid.uuid4()}'")

    world.start()
    world.wait_status("lost", "lost")
    world.wait_sweeps(2)

    assert impostor.poll() is None
    assert runs(seen, "lost") == ["lost"]
    assert not temp_dir.exists()
    assert world.signalled() == set()
    assert world.witnessed() == []


def test_an_agent_that_exited_without_a_daemon_is_found_at_start(world: World) -> None:
    """Its row is closed, its temp dir removed, what it left behind in a session of its own ended."""
    world.configure(**TIMES)
    seen = hook(world)
    world.start()
    wrapper = world.run("gone", *world.script("agent.py", "grandchild", "beat=0.3"), options=("--temp-dir", "auto"))
    world.wait_event("agent.first_beat", name="gone")
    agent = world.story("gone")["agent"]
    temp_dir = temp_dir_of(world, "gone")
    left = wait_for(lambda: set(pids_with("AGENT_WATCHDOG_ID", agent["agent_id"])) - {agent["pid"]}, "it has a child")
    world.stop()
    os.kill(agent["pid"], signal.SIGKILL)
    wrapper.wait(60)
    assert all(alive(pid) for pid in left)

    world.start()
    ended = world.wait_status("gone", "completed", "failed")

    assert not any(alive(pid) for pid in left)
    assert not temp_dir.exists()
    assert runs(seen, "gone") == [ended["status"]]


def test_reports_made_once_are_not_repeated_by_the_next_daemon(world: World) -> None:
    """First beat, waiting, an expiry that is near: each is one line of the history, however often we are killed."""
    world.configure(**TIMES)
    world.start()
    world.registered("ready", *world.script("agent.py", "sleep"))
    world.registered("idle", *world.script("agent.py", "state=idle"))
    world.registered("short", *world.script("agent.py", "sleep"), ttl_seconds=6000)
    assert world.ask("POST", "/v1/agents/ready/beat", {"promises": False})[0] == 204
    world.wait_event("agent.first_beat", name="ready")
    world.wait_event("agent.waiting", name="idle")
    world.wait_sweeps(2)
    world.crash()
    world.sql("UPDATE agent_lifecycle SET watched_seconds = 5800 WHERE name = 'short'")
    world.start()
    world.wait_event("agent.expires_soon", name="short")
    world.wait_sweeps(2)
    world.crash()
    world.start()
    assert world.ask("POST", "/v1/agents/ready/beat", {"promises": False})[0] == 204
    world.wait_sweeps(2)
    for event, name in (("agent.first_beat", "ready"), ("agent.waiting", "idle"), ("agent.expires_soon", "short")):
        assert world.count(event, name=name) == 1, event


@pytest.mark.faults
def test_a_daemon_that_is_killed_again_and_again_kills_the_mute_agent_and_no_other(world: World) -> None:
    """Case Q8: killed every three seconds, with a limit of six. Silence adds up over its lives; beats are received."""
    times: dict[str, dict[str, Any]] = {"sweep": {"interval_seconds": 1}, "stall": {"after_seconds": 6}}
    world.configure(**{**TIMES, **times})
    world.start()
    world.registered("mute", *world.script("agent.py", "by=anew", "beat=0.3/3"))
    world.registered("beats", *world.script("agent.py", "by=anew", "beat=0.5"))
    world.run("run", *world.script("agent.py", "beat=0.5"))
    for name in ("mute", "beats", "run"):
        world.wait_event("agent.first_beat", name=name) if name != "run" else None
    mute = world.story("mute")["agent"]["pid"]
    for _ in range(25):
        time.sleep(3)  # its life
        world.crash()
        if not alive(mute):
            break
        world.start()
    assert not alive(mute)
    world.start()
    assert world.wait_status("mute", "killed")
    assert {name: world.agents()[name]["status"] for name in ("beats", "run")} == {"beats": "running", "run": "running"}


@pytest.mark.faults
def test_an_agent_that_needs_longer_to_find_the_daemon_than_that_lives_is_not_silent(world: World) -> None:
    """Case Q8: it beats over HTTP, and is back four seconds after each start; no daemon lives that long."""
    world.configure(**{**TIMES, "stall": {"after_seconds": 2}})
    world.start()
    process = world.registered("slow", *world.script("agent.py", "sleep"))
    agent_id = world.story("slow")["agent"]["agent_id"]
    assert world.ask("POST", f"/v1/agents/{agent_id}/beat", {})[0] == 204
    for _ in range(6):
        world.crash()
        world.start()
        time.sleep(1)  # its life
    assert alive(process.pid)
    assert not world.count("kill.requested")
