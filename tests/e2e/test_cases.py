"""Public bug reports, one test per case, on a real daemon: silence, starting, rhythms, files, zombies.

Case C11 (the agent exited, or beat, between decision and kill) has its own file: it needs an injected delay.
"""

import json
import os
import shutil
import sys
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.helpers_of_owners import Stopper, helpers_of
from tests.world import World, wait_for

TIMES: dict[str, dict[str, Any]] = {
    "sweep": {"interval_seconds": 0.5},
    "stall": {"after_seconds": 3, "start_limit_seconds": 60},
    "log": {"level": "debug"},
}
SLACK = 4.0  # seconds between a limit and the kill order if every sweep is on time: two sweeps and some reserve
WAIT = 2.5  # seconds of a sweep that waited for a helper (3 s)

# Writes its beat file in one of several ways, so many times, then does nothing for ever.
WRITER = """
import os, sys, time
path, how, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
stamp = int(time.time()) * 10**9
for number in range(times):
    if how == "same":           # same content, same size, same mtime
        with open(path, "w") as file: file.write("beat")
        os.utime(path, ns=(stamp, stamp))
    elif how == "renamed":      # a new inode with the same content and mtime
        with open(path + ".new", "w") as file: file.write("beat")
        os.utime(path + ".new", ns=(stamp, stamp))
        os.rename(path + ".new", path)
    elif how == "touched":      # nothing but the mtime
        os.utime(path)
    elif how == "seconds":      # a file system that keeps whole seconds
        os.utime(path, ns=(int(time.time()) * 10**9,) * 2)
    time.sleep(0.4)
time.sleep(1000)
"""

# An agent whose parent never waits for it: argv is the file for its pid, its environment as JSON, its command.
NEVER_WAITS = """
import json, os, subprocess, sys, time
child = subprocess.Popen(sys.argv[3:], env={**os.environ, **json.loads(sys.argv[2])}, start_new_session=True)
with open(sys.argv[1] + ".new", "w") as file: file.write(str(child.pid))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(1000)
"""

# Beats, then ends its first thread; the other one keeps running.
DEAD_LEADER = """
import ctypes, os, socket, threading, time
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
    speaker.sendto(b"WATCHDOG=1", os.environ["NOTIFY_SOCKET"])
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def ordered_in_time(world: World, name: str, after: float) -> None:
    """The kill order comes when the limit since the last beat is over, and within a few sweeps of that.

    Counted in sweeps, not in seconds: those of a starved daemon come late, which costs no agent its life.
    """
    order = world.wait_event("kill.requested", name=name)
    last, ordered = seconds(world.story(name)["agent"]["last_heartbeat"]), seconds(order["ts"])
    assert ordered - last >= after
    looks = sum(last < seconds(e["ts"]) <= ordered for e in world.events() if e["event"] == "sweep.finished")
    assert looks <= (after + SLACK) / TIMES["sweep"]["interval_seconds"]


def usual_sweep(world: World) -> float:
    """The duration of the faster half of sweeps: a starved machine makes some long, a wait for a helper all of them."""
    return float(median(event["ms"] for event in world.events() if event["event"] == "sweep.finished")) / 1000


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def registered(world: World, name: str, **body: Any) -> dict[str, Any]:
    status, answer = world.ask("POST", "/v1/agents", {"name": name, **body})
    assert status == 201, answer
    return answer


def test_f2_a_removed_row_is_reported_once_and_comes_back_with_the_next_beat(world: World) -> None:
    """No agent is killed; the name stays taken; the next daemon knows a beating agent again, but not a mute one."""
    world.configure(**{**TIMES, "sweep": {"interval_seconds": 0.3}, "stall": {"after_seconds": 60}})
    world.start()
    world.run("beats", *world.script("agent.py", "witness", "beat=0.3"))
    world.run("mute", *world.script("agent.py", "witness", "sleep"))
    for name in ("beats", "mute"):
        world.wait_event("agent.pid_known", name=name)
    world.sql("DELETE FROM agent_lifecycle")

    world.wait_event("agent.row_restored", name="beats")
    world.wait_event("agent.row_lost", name="mute")
    assert world.ask("POST", "/v1/agents", {"name": "mute"})[0] == 409
    world.wait_sweeps(3)
    assert world.count("agent.row_lost") == 2
    world.crash()
    world.start()
    assert [name for name, agent in world.agents().items() if agent["status"] == "running"] == ["beats"]
    assert world.signalled() == set()
    assert world.witnessed() == []


@pytest.mark.faults
def test_f2_restoring_an_older_registry_loses_no_registered_agent(world: World) -> None:
    """Restored while no daemon runs: living agents are reported, keep name and socket, and come back with a beat."""
    if world.server is not None:
        pytest.skip("a file is put back")
    world.configure(sweep={"interval_seconds": 0.3}, stall={"after_seconds": 60, "start_limit_seconds": 3})
    world.start()
    half = registered(world, "half", stall_after_seconds=60)
    world.stop()
    registry, older = world.state / "registry.db", world.dir / "older"
    shutil.copy(registry, older)

    world.start()
    process = world.spawn(*world.script("agent.py", "witness", "by=systemd-notify", "beat=0.4"), **half["env"])
    assert world.ask("PATCH", f"/v1/agents/{half['agent_id']}", {"pid": process.pid})[0] == 200
    tree = str(world.dir / "tree")
    beats = world.registered("beats", *world.script("agent.py", "witness", "by=systemd-notify", "beat=0.4"))
    mute = world.registered("mute", *world.script("agent.py", "witness", "sleep"), worktree=tree, tags=["kept"])
    dead = world.registered("dead", *world.script("agent.py", "witness", "sleep"), worktree=tree)
    world.wait_event("agent.first_beat", name="beats")
    ids = {name: agent["agent_id"] for name, agent in world.agents().items()}
    world.crash()
    for left in world.state.glob("registry.db*"):
        left.unlink()
    shutil.copy(older, registry)
    dead.kill()
    dead.wait()
    world.start()

    world.wait_event("agent.row_restored", name="beats")
    world.wait_event("agent.row_lost", name="mute")
    status, answer = world.ask("POST", "/v1/agents", {"name": "another", "worktree": tree})
    assert (status, "mute" in json.dumps(answer)) == (201, True), "who works there is told"
    assert world.ask("POST", "/v1/agents", {"name": "mute"})[0] == 409
    assert world.ask("POST", "/v1/agents/mute/beat", {})[0] == 204
    world.wait_event("agent.row_restored", name="mute")
    time.sleep(3.5)  # start_limit: an agent whose process the older registry does not know is not a failed start

    found = world.agents()
    living = ("half", "beats", "mute")
    assert {name: found[name]["agent_id"] for name in living} == {name: ids[name] for name in living}
    assert [found[name]["pid"] for name in living] == [process.pid, beats.pid, mute.pid]
    assert {found[name]["status"] for name in living} == {"running"}
    assert found["mute"]["tags"] == ["kept"]
    assert "dead" not in found
    copies = {path.name for path in (world.state / "agents").iterdir()}
    assert {ids[name] for name in living} <= copies
    assert ids["dead"] not in copies
    assert world.signalled() == set()
    assert world.witnessed() == []


@pytest.mark.faults
def test_b7_the_check_is_repeated_and_kills_at_the_limit(world: World) -> None:
    """One beats for three limits, one pauses for 0.8 of the limit again and again: both die only at the limit."""
    world.configure(**{**TIMES, "stall": {"after_seconds": 5, "start_limit_seconds": 60}})
    world.start()
    world.run("steady", *world.script("agent.py", "beat=0.5/30"))
    world.run("slow", *world.script("agent.py", "beat=4/4"))

    for name, beats in (("steady", 30), ("slow", 4)):
        ordered_in_time(world, name, 5.0)
        ended = world.wait_status(name, "killed")
        assert ended["beats"] == beats, "it was ended before its last beat"


def test_b8_peers_and_missing_fields_keep_no_stalled_agent_alive(world: World) -> None:
    """Three with one tag; the mute one has no path, task, type or interval at all and is killed at its limit."""
    world.configure(**TIMES)
    world.start()
    for name in ("one", "two"):
        world.registered(name, *world.script("agent.py", "witness", "beat=0.5"), tags=["group"])
    world.registered("mute", *world.script("agent.py", "beat=0.3/2"), tags=["group"])

    ordered_in_time(world, "mute", 3.0)
    world.wait_status("mute", "killed")
    world.wait_sweeps(2)

    after = world.agents()
    assert {name: after[name]["status"] for name in ("one", "two")} == {"one": "running", "two": "running"}
    assert world.witnessed() == []


def test_c5_a_row_without_a_process_is_starting(world: World) -> None:
    """Pid late, first beat later: left alone.

    Never a pid: failed at the limit, its paths cleaned. Queued: left alone.
    """
    world.configure(**{**TIMES, "stall": {"after_seconds": 2, "start_limit_seconds": 9}})
    paths = {name: world.dir / name for name in ("never-temp", "queued-temp", "foreign-temp")}
    for path in paths.values():
        path.mkdir(mode=0o700)
    world.start()
    late = registered(world, "late", stall_after_seconds=2)
    registered(world, "never", stall_after_seconds=2, temp_dir=str(paths["never-temp"]))
    registered(world, "queued", queued=True, stall_after_seconds=2, temp_dir=str(paths["queued-temp"]))
    wait_for(lambda: world.story("late")["agent"]["watched_seconds"] >= 3, "a third of its time is over")
    process = world.spawn(*world.script("agent.py", "witness", "for=1.5", "beat=0.4"), **late["env"])
    assert world.ask("PATCH", f"/v1/agents/{late['agent_id']}", {"pid": process.pid})[0] == 200

    order = world.wait_event("kill.requested", name="never")
    failed = world.wait_status("never", "failed")
    world.wait_event("agent.first_beat", name="late")
    world.wait_sweeps(8)

    assert order["reason"] == "failed_to_start"
    assert failed["watched_seconds"] >= 9
    assert {name: path.exists() for name, path in paths.items()} == {
        "never-temp": False,
        "queued-temp": True,
        "foreign-temp": True,
    }
    after = world.agents()
    assert (after["late"]["status"], after["queued"]["status"]) == ("running", "queued")
    assert {e["name"] for e in world.events() if e["event"] == "kill.requested"} == {"never"}
    assert world.witnessed() == []
    assert world.signalled() == set()


def test_c12_a_limit_under_two_of_its_own_beats_is_refused(world: World) -> None:
    """By `register`, by `run`, and by the configuration (there against the daemon's own interval), with the reason."""
    world.configure(**TIMES)
    world.start()
    refused = world.cli(
        "register",
        "--name",
        "tight",
        "--stall-after",
        "5s",
        "--interval",
        "30s",
        "--pid",
        str(os.getpid()),
        check=False,
    )
    run = world.run("tight-run", "/bin/true", options=("--stall-after", "5s", "--beat-every", "30s"))
    assert run.wait(60) == 64
    assert refused.returncode == 64
    for text in (refused.stderr, (world.dir / "tight-run.out").read_text()):
        assert "30" in text and "60" in text, text
    assert world.agents() == {}
    world.stop()

    world.configure(sweep={"interval_seconds": 30}, stall={"after_seconds": 5})
    world.start(wait=False)
    assert world.daemon is not None
    assert world.daemon.wait(60) == 78
    assert "stall.after_seconds: 5 is less than two sweeps" in world.log.read_text()


@pytest.mark.faults
def test_c12_each_rhythm_has_its_own_limit_and_one_verdict(world: World) -> None:
    """A slow rhythm raises the limit of its agent alone; `list`, `why` and the daemon's own line say the same."""
    world.configure(**TIMES)
    world.start()
    world.registered("rhythm", *world.script("agent.py", "witness", "beat=4"), interval_seconds=4)
    world.registered("plain", *world.script("agent.py", "beat=7"))

    said = world.wait_event("agent.stalled", name="plain")
    world.wait_status("plain", "killed")
    listed = world.agents()
    why = world.json("why", "plain")
    assert (listed["rhythm"]["after_seconds"], listed["rhythm"]["status"]) == (8, "running")
    assert listed["plain"]["verdict"] == why["agent"]["verdict"] == "stalled"
    assert said["why"] in [event["why"] for event in why["events"] if event["event"] == "agent.stalled"]

    beats = listed["rhythm"]["beats"]
    wait_for(lambda: world.agents()["rhythm"]["beats"] >= beats + 2, "it goes on beating in its own rhythm")
    assert world.count("agent.late", name="rhythm") == 0
    assert world.story("rhythm")["agent"]["verdict"] == world.agents()["rhythm"]["verdict"] == "healthy"
    assert "healthy" in world.cli("why", "rhythm").stdout
    assert world.witnessed() == []


def test_c15_the_same_content_again_is_a_new_beat(world: World) -> None:
    """Rewritten with the same mtime, renamed over, touched, whole seconds: each counts; so does silence after it."""
    world.configure(**TIMES)
    world.start()
    ways = ("same", "renamed", "touched", "seconds")
    for how in (*ways, "mute"):
        path = world.dir / f"{how}.beat"
        path.write_text("beat")
        times = "3" if how == "mute" else "1000000"
        command = [sys.executable, "-c", WRITER, str(path), "touched" if how == "mute" else how, times]
        world.registered(how, *command, beat_file=str(path), stall_after_seconds=3)

    for how in ways:
        wait_for(lambda how=how: world.agents()[how]["beats"] >= 4, f"{how} is heard")  # type: ignore[misc] # bound
    world.wait_status("mute", "killed")
    world.wait_sweeps(6)

    after = world.agents()
    assert {how: after[how]["status"] for how in ways} == dict.fromkeys(ways, "running")
    assert {e["name"] for e in world.events() if e["event"] == "kill.requested"} == {"mute"}


@pytest.mark.faults
def test_h1_a_heartbeat_path_that_is_a_fifo_delays_no_other_agent(world: World) -> None:
    """A FIFO without writer: its agent is unknown, for a limited time; others are judged on schedule."""
    world.configure(**{**TIMES, "stall": {"after_seconds": 2, "wait_limit_seconds": 20, "start_limit_seconds": 60}})
    world.start()
    fifo = world.dir / "a7.beat"
    os.mkfifo(fifo)
    world.registered("a7", *world.script("agent.py", "sleep"), beat_file=str(fifo), stall_after_seconds=2)
    world.wait_event("agent.unknown", name="a7")
    world.registered("mute", *world.script("agent.py", "beat=0.3/2"))
    world.registered("both", *world.script("agent.py", "beat=0.3/3"), beat_file=str(fifo))
    world.run("well", *world.script("agent.py", "witness", "beat=0.4"))

    ordered_in_time(world, "mute", 2.0)
    ordered_in_time(world, "both", 2.0)  # its file is not its only heartbeat
    assert world.story("a7")["agent"]["verdict"] == "unknown"
    world.wait_status("mute", "killed")
    limited = wait_for(lambda: world.agents()["a7"]["verdict"] != "unknown", "its time as unknown is over")

    assert limited
    assert world.agents()["a7"]["watched_seconds"] >= 20
    assert usual_sweep(world) < WAIT, "they waited for its file"
    assert world.agents()["well"]["status"] == "running"
    assert world.witnessed() == []


@pytest.mark.faults
def test_h1_a_helper_that_hangs_delays_no_sweep(world: World) -> None:
    """Every helper of the owner is stopped all the time: agents with files are unknown, others are judged on time."""
    world.configure(**{**TIMES, "stall": {"after_seconds": 2, "start_limit_seconds": 60}})
    world.start()
    assert world.daemon is not None
    path = world.dir / "a7.beat"
    path.write_text("beat")
    command = [sys.executable, "-c", WRITER, str(path), "touched", "1000000"]
    world.registered("a7", *command, beat_file=str(path), stall_after_seconds=2)
    wait_for(lambda: world.agents()["a7"]["beats"] >= 2, "its file is heard")
    world.run("well", *world.script("agent.py", "witness", "beat=0.4"))
    with Stopper(world.daemon.pid) as stopper:
        wait_for(lambda: stopper.stopped, "a helper is stopped")
        sweeps = world.count("sweep.finished")
        world.registered("mute", *world.script("agent.py", "beat=0.3/2"))
        ordered_in_time(world, "mute", 2.0)
        world.wait_status("mute", "killed")  # a hook has a helper of its own
        wait_for(lambda: world.agents()["a7"]["verdict"] == "unknown", "a7 is unknown")
        world.wait_sweeps(4)
        assert world.count("sweep.finished") - sweeps >= 8
        assert usual_sweep(world) < WAIT, "they waited for a helper"
        assert world.count("kill.requested", name="a7") == 0

    beats = world.agents()["a7"]["beats"]
    wait_for(lambda: world.agents()["a7"]["beats"] > beats, "its file is heard again", 90)
    after = world.agents()
    assert {name: after[name]["status"] for name in ("a7", "well")} == {"a7": "running", "well": "running"}
    assert world.witnessed() == []
    assert len(helpers_of(world.daemon.pid)) <= 1


@pytest.mark.parametrize(("words", "status"), [("exit=0", "completed"), ("sleep", "killed")])
def test_h7_a_zombie_is_dead_and_its_parent_is_left_alone(world: World, words: str, status: str) -> None:
    """Its parent never reaps it: the row is closed at once after exit or kill, and the parent gets no signal."""
    world.configure(**TIMES)
    world.start()
    answer = registered(world, "child")
    told = world.dir / "child.pid"
    command = world.script("agent.py", "beat=0.3/2", words)
    parent = world.spawn(sys.executable, "-c", NEVER_WAITS, str(told), json.dumps(answer["env"]), *command)
    pid = int(wait_for(lambda: told.read_text() if told.exists() else None, "it has started"))
    world.ask("PATCH", f"/v1/agents/{answer['agent_id']}", {"pid": pid})

    ended = world.wait_status("child", status)

    assert state_of(pid) == "Z", "its parent waited after all"
    assert parent.poll() is None
    assert world.signalled() <= {pid}
    assert bool(world.signalled()) == (status == "killed")
    assert world.count("kill.unkillable") == 0
    assert ended["exit_signal"] == (15 if status == "killed" else None)


def test_h7_a_dead_leader_with_a_living_thread_is_alive_and_is_killed(world: World) -> None:
    """State Z with a running thread: neither gone nor unkillable."""
    world.configure(**TIMES)
    world.start()
    process = world.registered("leader", sys.executable, "-c", DEAD_LEADER)
    wait_for(lambda: state_of(process.pid) == "Z", "its first thread has ended")
    world.wait_event("agent.first_beat", name="leader")
    world.wait_sweeps(2)
    assert world.agents()["leader"]["status"] == "running"

    ordered_in_time(world, "leader", 3.0)
    world.wait_status("leader", "killed")

    assert process.wait(60) < 0
    assert world.signalled() == {process.pid}
