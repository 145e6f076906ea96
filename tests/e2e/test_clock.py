"""A real daemon whose wall clock is set back an hour and forward a year; CLOCK_MONOTONIC is left alone."""

import os
import shutil
import subprocess
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.world import World, started_at

INTERVAL = 0.5
BUSY = 8.0  # seconds that other work may delay us; a step would delay an hour, or have been made up for in 16 s
STEPS = ("+31536000", "-3600", "+31536000")  # seconds from the true time


def libfaketime() -> Path | None:
    """The library's path from Debian, or another package."""
    known = (
        [Path(line) for line in _packaged() if line.endswith("/libfaketime.so.1")]
        if shutil.which("dpkg")
        else [Path("/usr/lib64/faketime/libfaketime.so.1"), Path("/usr/lib/faketime/libfaketime.so.1")]
    )
    return next((path for path in known if path.exists()), None)


def _packaged() -> list[str]:
    return subprocess.run(["dpkg", "-L", "libfaketime"], capture_output=True, text=True, check=False).stdout.split()


class Ticks:
    """Reads the daemon's log as it grows, and records on our own monotonic clock when each event was seen."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.seen: list[tuple[float, str, str]] = []  # when, event, its `why`
        self._thread.start()

    def _read(self) -> None:
        known = 0
        while not self._stop.wait(0.02):
            events = self._world.events()
            now = time.monotonic()
            self.seen += [(now, event["event"], event.get("why", "")) for event in events[known:]]
            known = len(events)

    def at(self, event: str, word: str = "") -> list[float]:
        return [when for when, name, why in self.seen if name == event and word in why]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def set_clock(faked: Path, step: str) -> None:
    """In one write: a partly written file reads as no step at all."""
    new = faked.with_suffix(".new")
    new.write_text(f"{step}\n")
    new.rename(faked)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.faults
@pytest.mark.skipif(libfaketime() is None, reason="needs libfaketime (Debian: apt install libfaketime)")
def test_setting_the_wall_clock_moves_no_sweep_and_kills_no_agent(world: World) -> None:
    """Cases H3 a, b, c: idle, in a deaf agent's grace, in a start: sweeps continue, grace lasts as configured."""
    faked = world.dir / "time"
    set_clock(faked, "+0")
    world.configure(
        sweep={"interval_seconds": INTERVAL},
        stall={"after_seconds": 4, "start_limit_seconds": 60},
        kill={"grace_seconds": 8, "polite": "all"},
        log={"level": "debug"},
    )
    world.start(
        LD_PRELOAD=str(libfaketime()),
        FAKETIME_TIMESTAMP_FILE=str(faked),
        FAKETIME_CACHE_DURATION="1",
        NO_FAKE_STAT="1",
        # Its own repair of pthread_cond_timedwait starves Python's GIL hand-over for seconds on a loaded machine.
        FAKETIME_FORCE_MONOTONIC_FIX="0",
        FAKETIME_DONT_FAKE_MONOTONIC="1",
    )
    assert world.daemon is not None
    pid = world.daemon.pid
    world.run("well", *world.script("agent.py", "witness", "beat=0.3"))
    world.run("leased", *world.script("agent.py", "witness", "lease=60"))
    world.run("idle", *world.script("agent.py", "witness", "state=idle"))
    assert world.ask("POST", "/v1/agents", {"name": "starting", "stall_after_seconds": 4})[0] == 201
    world.run("deaf", *world.script("agent.py", "deaf", "beat=0.3/3"))
    for name in ("well", "leased", "idle", "deaf"):
        world.wait_event("agent.first_beat", name=name)
    living = {name: started_at(a["pid"]) for name, a in world.agents().items() if a["pid"]}
    ticks = Ticks(world)
    try:
        set_clock(faked, "-3600")  # while all is quiet
        world.wait_event("clock.stepped")
        world.wait_event("kill.signal_sent", name="deaf")
        usual = stepped = 0.0
        for step in STEPS:
            before, cpu = len(world.events()), cpu_seconds(pid)
            world.wait_sweeps(2)
            usual, cpu = usual + cpu_seconds(pid) - cpu, cpu_seconds(pid)
            set_clock(faked, step)
            world.wait_event("clock.stepped", after=before)
            world.wait_sweeps(2)
            stepped += cpu_seconds(pid) - cpu
        world.wait_event("agent.ended", name="deaf")
    finally:
        ticks.stop()

    sweeps = ticks.at("sweep.finished")
    gaps = [later - earlier for earlier, later in pairwise(sweeps)]
    assert max(gaps) < INTERVAL + BUSY, [f"{g:.2f}" for g in gaps if g > 0.7]
    assert len(sweeps) < 2 * (sweeps[-1] - sweeps[0]) / INTERVAL, "what was missed is not made up for"
    assert stepped - usual < 1, f"{stepped:.2f} s of CPU in which three steps fell, else {usual:.2f} s"
    grace = ticks.at("kill.signal_sent", "SIGKILL")[0] - ticks.at("kill.signal_sent", "SIGTERM")[0]
    assert 8 - BUSY / 2 < grace < 8 + BUSY, f"a grace of 8 s lasted {grace:.1f} s"
    agents = world.agents()
    assert {name: agents[name]["status"] for name in ("well", "leased", "idle", "starting")} == {
        "well": "running",
        "leased": "running",
        "idle": "running",
        "starting": "starting",
    }
    assert {name: started_at(agents[name]["pid"]) for name in living if name != "deaf"} == {
        name: ticks_ for name, ticks_ in living.items() if name != "deaf"
    }
    assert world.witnessed() == []
    failed = [e for e in world.events() if e["event"] in ("sweep.failed", "kill.failed")]
    assert not failed, failed[0].get("exception", failed)
