"""One agent's trouble is its own: a busy, a stopped or an unreadable neighbour changes nothing for the others.

Each test runs the same agents twice, without and with the troublemakers; the reports about the others, and their times,
are the same.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from tests.helpers_of_owners import Stopper
from tests.world import World, alive, make_world, wait_for

TIMES: dict[str, dict[str, Any]] = {
    "sweep": {"interval_seconds": 0.5},
    "stall": {"after_seconds": 3, "start_limit_seconds": 60, "wait_limit_seconds": 600},
    "log": {"level": "debug"},
}
VERDICTS = ("agent.late", "agent.stalled", "kill.requested")
SAME = 6  # sweeps that two runs may differ: on a shared machine some come late, and others early
WAIT = 2.5  # seconds between two sweeps of which one waited for a helper (3 s)
TOUCHER = """
import os, sys, time
while True:
    os.utime(sys.argv[1])
    time.sleep(0.4)
"""


@pytest.fixture
def worlds() -> Iterator[tuple[World, World]]:
    """Two daemons that know nothing of each other."""
    with ExitStack() as held:
        yield (
            held.enter_context(contextmanager(make_world)(**TIMES)),
            held.enter_context(contextmanager(make_world)(**TIMES)),
        )


def seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def verdict_times(world: World, name: str) -> dict[str, int]:
    """When each thing was reported of a mute agent, in sweeps since its last beat, after its full limit."""
    last = seconds(world.story(name)["agent"]["last_heartbeat"])
    said = {event: seconds(world.wait_event(event, name=name)["ts"]) for event in VERDICTS}
    assert min(said.values()) - last >= TIMES["stall"]["after_seconds"]
    looks = [seconds(e["ts"]) for e in world.events() if e["event"] == "sweep.finished"]
    return {event: sum(last < look <= when for look in looks) for event, when in said.items()}


def troubled(world: World, stack: ExitStack) -> list[int]:
    """A busy agent, a stopped one, and one whose heartbeat file hangs every helper; the pids of the first two."""
    assert world.daemon is not None
    path = world.dir / "hung.beat"
    path.write_text("")
    world.run("busy", *world.script("agent.py", "spin"))
    world.run("stopped", *world.script("agent.py", "lease=600"))
    world.registered("hung", sys.executable, "-c", TOUCHER, str(path), beat_file=str(path), stall_after_seconds=3)
    for name in ("busy", "stopped"):
        world.wait_event("agent.first_beat", name=name)
    wait_for(lambda: world.agents()["hung"]["beats"] >= 1, "its file is heard")
    pids = [int(world.agents()[name]["pid"]) for name in ("busy", "stopped")]
    os.kill(pids[1], signal.SIGSTOP)
    stopper = stack.enter_context(Stopper(world.daemon.pid))
    wait_for(lambda: stopper.stopped, "a helper hangs")
    wait_for(lambda: world.agents()["busy"]["verdict"] == "late", "the busy one is late, but busy")
    return pids


def others(world: World) -> dict[str, int]:
    """Start the others, and run until the mute one is dead; the time of each report about it."""
    world.run("well", *world.script("agent.py", "witness", "beat=0.4"))
    world.run("idle", *world.script("agent.py", "witness", "state=idle"))
    world.run("mute", *world.script("agent.py", "beat=0.4/4"))
    world.wait_event("agent.first_beat", name="mute")
    pid = world.agents()["mute"]["pid"]
    world.wait_event("kill.requested", name="mute")
    times = verdict_times(world, "mute")
    wait_for(lambda: not alive(pid), "it is ended")
    return times


def sweep_gaps(world: World, since: int) -> list[float]:
    """Seconds between the ends of two sweeps, from that sweep number on."""
    ends = [seconds(e["ts"]) for e in world.events() if e["event"] == "sweep.finished"][since:]
    return [later - earlier for earlier, later in pairwise(ends)]


@pytest.mark.faults
def test_a_busy_a_stopped_and_a_hung_neighbour_move_no_verdict(worlds: tuple[World, World]) -> None:
    """The times of late, stalled and ordered are those without troublemakers; sweeps keep their schedule."""
    quiet, house = worlds
    quiet.start()
    plain = others(quiet)
    quiet.stop()

    house.start()
    with ExitStack() as stack:
        busy, stopped = troubled(house, stack)
        since = house.count("sweep.finished")
        with_neighbours = others(house)
        house.wait_sweeps(2)
        after = house.agents()

        assert {name: after[name]["status"] for name in ("well", "idle", "busy", "stopped", "hung")} == dict.fromkeys(
            ("well", "idle", "busy", "stopped", "hung"), "running"
        )
        assert alive(busy) and alive(stopped)

    for event in VERDICTS:
        assert abs(with_neighbours[event] - plain[event]) <= SAME, (event, plain, with_neighbours)
    assert median(sweep_gaps(house, since)) < WAIT
    assert house.witnessed() == quiet.witnessed() == []
    assert {e["name"] for e in house.events() if e["event"] == "kill.requested"} == {"mute"}


def test_a_stopped_agent_stalls_on_time_and_alone(worlds: tuple[World, World]) -> None:
    """SIGSTOP is silence: it is killed (CONT after TERM) at its limit; a beating neighbour is never in doubt."""
    _, house = worlds
    house.start()
    house.run("well", *house.script("agent.py", "witness", "beat=0.4"))
    house.run("stopped", *house.script("agent.py", "beat=0.4"))
    house.wait_event("agent.first_beat", name="stopped")
    house.wait_event("agent.first_beat", name="well")
    pid = house.agents()["stopped"]["pid"]
    os.kill(pid, signal.SIGSTOP)

    house.wait_event("kill.requested", name="stopped")
    times = verdict_times(house, "stopped")
    house.wait_status("stopped", "killed")

    assert times["agent.late"] <= 3.0 / 0.5 + SAME
    assert not alive(pid)
    assert house.count("agent.late", name="well") == 0
    assert house.witnessed() == []


@pytest.mark.faults
def test_a_file_that_hangs_does_not_affect_the_other_files_of_its_owner(worlds: tuple[World, World]) -> None:
    """Helpers hang for a while, then answer: of five files of one owner none counts as silent."""
    _, house = worlds
    house.start()
    assert house.daemon is not None
    names = [f"file-{number}" for number in range(5)]
    for name in names:
        path = house.dir / f"{name}.beat"
        path.write_text("")
        command = (sys.executable, "-c", TOUCHER, str(path))
        house.registered(name, *command, beat_file=str(path), stall_after_seconds=1.5)
    wait_for(lambda: all(house.agents()[name]["beats"] >= 2 for name in names), "all are heard")
    with Stopper(house.daemon.pid) as stopper:
        wait_for(lambda: stopper.stopped, "a helper hangs")
        wait_for(lambda: all(house.agents()[name]["verdict"] == "unknown" for name in names), "all are unknown")
    beats = {name: house.agents()[name]["beats"] for name in names}

    wait_for(lambda: all(house.agents()[name]["beats"] > beats[name] for name in names), "heard again", 90)
    house.wait_sweeps(4)

    assert {house.agents()[name]["status"] for name in names} == {"running"}
    assert house.count("kill.requested") == 0
    assert house.signalled() == set()
