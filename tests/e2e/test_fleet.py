"""Twenty healthy agents beside five stalled ones: exactly the five die, and no other process gets a signal."""

import os
import signal
from contextlib import contextmanager
from datetime import datetime, timedelta
from statistics import median
from typing import Any

import pytest

from tests.bench.crowd import watched_crowd
from tests.helpers_of_owners import Stopper
from tests.world import World, make_world, pids_with, started_at, wait_for

TIMES: dict[str, dict[str, Any]] = {
    "sweep": {"interval_seconds": 0.5},
    "stall": {"after_seconds": 5, "start_limit_seconds": 60},
    "kill": {"grace_seconds": 1},
    "log": {"level": "debug"},
}
HEALTHY = {
    "beats-1": "beat=0.5",
    "beats-2": "by=sdnotify beat=0.5",
    "beats-3": "by=systemd-notify beat=1",
    "beats-4": "by=beat beat=1",
    "lease-1": "lease=600",
    "lease-2": "by=sdnotify lease=600",
    "busy-1": "busy=0.3",
    "busy-2": "busy=0.3",
    "human-1": "state=waiting",
    "human-2": "state=blocked",
    "human-3": "beat=0.5/2 state=waiting",
    "idle-1": "state=idle",
    "idle-2": "beat=0.5/2 state=idle",
    "quiet-1": "sleep",
    "quiet-2": "grandchild",
    "quiet-3": "sleep",
    "parent-1": "nest=child-1",
    "parent-2": "nest=child-2",
}
STALLED = {
    "mute": "beat=0.3/hush",
    "deaf": "beat=0.3/hush deaf",
    "deaf-family": "grandchild deaf beat=0.3/hush",
    "stopped": "beat=0.5",
    "lease-over": "beat=0.3/hush lease=2",
}


@pytest.mark.faults
def test_of_twenty_five_agents_exactly_the_five_stalled_ones_die(world: World) -> None:
    """Beating, on a lease, busy, waiting, idle, unpromised and waiting for a child agent: none of these is a stall."""
    world.configure(**TIMES)
    world.start()
    for name, words in HEALTHY.items():
        world.run(name, *world.script("agent.py", "witness", *words.split()))
    for name, words in STALLED.items():
        world.run(name, *world.script("agent.py", *words.split()))
    everybody = {*HEALTHY, *STALLED, "child-1", "child-2"}
    healthy = everybody - set(STALLED)
    assert (len(healthy), len(STALLED)) == (20, 5)
    for name in sorted(everybody - {"quiet-1", "quiet-2", "quiet-3"}):
        world.wait_event("agent.first_beat", name=name)
    agents = world.agents()
    families = {name: pids_with("AGENT_WATCHDOG_ID", agents[name]["agent_id"]) for name in everybody}
    born = {pid: started_at(pid) for name in healthy for pid in families[name]}
    assert len(families["deaf-family"]) == 2
    assert len(born) >= 20
    os.kill(agents["stopped"]["pid"], signal.SIGSTOP)
    (world.dir / "hush").touch()

    for name in STALLED:
        world.wait_status(name, "killed")
    world.wait_sweeps(4)

    assert not [pid for name in STALLED for pid in families[name] if started_at(pid)]
    after = world.agents()
    assert {name for name in everybody if after[name]["status"] != "running"} == set(STALLED)
    assert {pid: started_at(pid) for pid in born} == born
    assert world.witnessed() == []
    assert not world.signalled() & born.keys()
    assert {e["name"] for e in world.events() if e["event"] == "kill.requested"} == set(STALLED)
    silent = {name: world.story(name)["agent"]["silence_seconds"] for name in ("busy-1", "parent-1", "parent-2")}
    assert all(seconds > 5 for seconds in silent.values()), f"they were never in doubt: {silent}"


def test_a_busy_agent_is_not_judged_by_the_short_time_between_two_sweeps(world: World) -> None:
    """Every exit of a neighbour brings the next sweep forward; CPU use is measured over an interval."""
    world.configure(**{**TIMES, "stall": {"after_seconds": 2, "start_limit_seconds": 60}})
    world.start()
    world.run("busy", *world.script("agent.py", "witness", "busy=0.3"))
    world.wait_event("agent.late", name="busy")

    ends = 0
    while ends < 12:
        ends += 1
        world.run(f"short-{ends}", "/bin/true")
        world.wait_event("agent.ended", name=f"short-{ends}")

    assert wait_for(lambda: world.agents()["busy"], "it is listed")["status"] == "running"
    assert world.witnessed() == []
    assert world.count("kill.requested", name="busy") == 0


def test_a_busy_a_stopped_and_a_hanging_neighbour_change_nothing_for_the_others(world: World) -> None:
    """One spins, one is stopped, one hangs every helper: the mute one is killed on time, the beating one lives."""
    world.configure(**{**TIMES, "stall": {"after_seconds": 2, "start_limit_seconds": 60}})
    world.start()
    assert world.daemon is not None
    os.mkfifo(world.dir / "fifo")
    (world.dir / "file").touch()
    agent = world.script("agent.py", "sleep")
    with Stopper(world.daemon.pid):
        world.registered("hangs", *agent, beat_file=str(world.dir / "file"), stall_after_seconds=2)
        world.registered("fifo", *agent, beat_file=str(world.dir / "fifo"), stall_after_seconds=2)
        world.run("spins", *world.script("agent.py", "spin"), options=("--stall-after", "60s"))
        world.run("stopped", *world.script("agent.py", "lease=60"))
        world.run("well", *world.script("agent.py", "witness", "beat=0.4"))
        for name in ("spins", "stopped", "well"):
            world.wait_event("agent.first_beat", name=name)
        os.kill(world.agents()["stopped"]["pid"], signal.SIGSTOP)
        born = {name: (a["pid"], started_at(a["pid"])) for name, a in world.agents().items()}

        mute = world.registered("mute", *world.script("agent.py", "beat=0.3/2"))
        world.wait_event("agent.first_beat", name="mute")
        looks = world.count("sweep.finished")
        world.wait_event("kill.requested", name="mute")
        looks = world.count("sweep.finished") - looks
        mute.wait(60)

    assert looks <= 12, "those of six seconds"
    took = [event["ms"] for event in world.events() if event["event"] == "sweep.finished"]
    assert median(took) < 2500, "they waited for a helper (3 s)"
    after = world.agents()
    assert {name: (after[name]["pid"], started_at(after[name]["pid"])) for name in born} == born
    assert {name: after[name]["status"] for name in born} == dict.fromkeys(born, "running")
    assert {e["name"] for e in world.events() if e["event"] == "kill.requested"} == {"mute"}
    assert world.witnessed() == []


def test_many_agents_that_register_at_once_share_their_sweeps() -> None:
    """One sweep for each would cost the square of their number: a thousand took forty seconds."""
    settings = TIMES | {"sweep": {"interval_seconds": 60}, "stall": {"after_seconds": 600}}
    with contextmanager(make_world)(**settings) as world:
        world.start()
        crowd = watched_crowd(world, 300)
        try:
            looks = [event for event in world.events() if event["event"] == "sweep.finished"]
            assert 1 <= len(looks) < 150
            assert len(world.ask("GET", "/v1/agents")[1]["agents"]) == 300
        finally:
            crowd.close()


def swept_all(world: World, count: int) -> bool:
    """Whether a sweep that began after so many registrations has ended."""
    known = [datetime.fromisoformat(e["ts"]) for e in world.events() if e["event"] == "agent.registered"]
    ends = [e for e in world.events() if e["event"] == "sweep.finished"]
    began = [datetime.fromisoformat(e["ts"]) - timedelta(milliseconds=e["ms"]) for e in ends]
    return len(known) == count and any(when > known[-1] for when in began)


def test_each_exit_is_handled_at_once_by_itself(world: World) -> None:
    """Sweeps are five minutes apart: five agents that exit one after the other wait for none, nor for each other."""
    world.configure(sweep={"interval_seconds": 300}, stall={"after_seconds": 600}, log={"level": "debug"})
    world.start()
    crowd = watched_crowd(world, 6)
    wait_for(lambda: swept_all(world, 6), "all were looked at, by a sweep that has ended")
    before = len(world.events())
    for number, pid in enumerate(crowd.pids[:5]):
        os.kill(pid, signal.SIGKILL)
        world.wait_event("agent.ended", name=f"c{number}")
    assert "sweep.finished" not in {event["event"] for event in world.events()[before:]}
    assert set(world.agents(all_=False)) == {"c5"}
    crowd.close()
