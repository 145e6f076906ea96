"""A daemon that is stopped, killed, started anew, with another clock or no registry: healthy agents pay nothing."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.e2e.test_clock import libfaketime, set_clock
from tests.verdicts.scenes.everyday import dies, lives
from tests.verdicts.stage import Actor, Stage, scene
from tests.world import World

AFTER = 2.0
TABLES: dict[str, dict[str, Any]] = {"stall": {"after_seconds": AFTER}}
AWAY = 3 * AFTER


def everybody(what: str, mute: float, *, anew: bool = False) -> list[Actor]:
    """Those who live through it, and one who is mute all along: not to be ended before `mute`.

    `anew`: the daemon makes its sockets anew. Who connected once to the former one cannot be heard, so its silence says
    nothing up to wait_limit; `run` keeps its own.
    """
    closed = dies("closed", f"{what}: spoke by sockets that it closed, and is mute", "by=anew beat=0.4/3", mute)
    lost = lives("lost", f"{what}: connected once, and mute", "beat=0.4/3", told={"agent.channel_lost": 1})
    return [
        lives("beats", f"{what}: beats", "beat=0.4"),
        lives("run", f"{what}: beats, in `run`", "beat=0.4", by_run=True),
        lives("library", f"{what}: beats by a library that connects once", "by=sdnotify beat=0.4"),
        lives("program", f"{what}: beats by systemd-notify", "by=systemd-notify beat=0.6"),
        lives("file", f"{what}: beats by a file", "touch=0.4/10000"),
        lives("lease", f"{what}: on a lease", "lease=600"),
        lives("idle", f"{what}: idle", "state=idle", silent=AFTER + 2),
        dies("mute", f"{what}: mute", "beat=0.4/3", mute, by_run=anew),
        *([lost, closed] if anew else []),
    ]


def stopped(stage: Stage) -> None:
    """SIGSTOP for three times the silence that is too long."""
    daemon = stage.world.daemon
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGSTOP)
    time.sleep(AWAY)
    os.kill(daemon.pid, signal.SIGCONT)


def all_stopped(stage: Stage) -> None:
    """Case C3: daemon and agents stand still as in a suspend, and the agents wake two seconds later."""
    daemon = stage.world.daemon
    assert daemon is not None
    agents = [pid for name, (pid, _) in stage.born.items() if name != "mute"]
    for pid in (daemon.pid, *agents):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(AWAY)
    os.kill(daemon.pid, signal.SIGCONT)
    time.sleep(1)
    for pid in agents:
        os.kill(pid, signal.SIGCONT)


def down(stage: Stage) -> None:
    """SIGKILL, and nobody is there for a while."""
    stage.world.crash()
    time.sleep(AWAY)
    stage.world.start()


def restarted(stage: Stage) -> None:
    """Stopped in order and started anew, three times."""
    for _ in range(3):
        stage.world.stop()
        stage.world.start()


def registry_away(stage: Stage) -> None:
    """Its file lies elsewhere for a while."""
    file, aside = stage.world.state / "registry.db", stage.world.dir / "aside"
    file.rename(aside)
    stage.world.wait_event("registry.unavailable")
    time.sleep(AWAY)
    file.unlink(missing_ok=True)
    aside.rename(file)


def row_lost(stage: Stage) -> None:
    """Case F2: somebody deletes the rows of agents that live."""
    time.sleep(1)
    stage.world.sql("DELETE FROM agent_lifecycle WHERE name IN ('beats', 'idle')")
    time.sleep(AWAY)


def clock_set(step: str) -> Callable[[Stage], None]:
    """The daemon's wall clock, by libfaketime."""

    def story(stage: Stage) -> None:
        set_clock(stage.world.dir / "time", step)
        stage.world.wait_event("clock.stepped")
        time.sleep(AWAY)

    return story


@contextmanager
def faked(world: World) -> Iterator[dict[str, Any]]:
    """What the daemon is started with."""
    library = libfaketime()
    assert library is not None, "libfaketime is there where the table is played (Debian: apt install libfaketime)"
    set_clock(world.dir / "time", "+0")
    yield {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(world.dir / "time"),
        "FAKETIME_CACHE_DURATION": "1",
        "NO_FAKE_STAT": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


STORIES: dict[str, tuple[str, Callable[[Stage], None], float]] = {
    "daemon stopped": ("the daemon is stopped for 6 s", stopped, AFTER),
    "all stopped": ("C3: all are stopped for 6 s, agents wake later", all_stopped, AFTER),
    "registry file away": ("the registry's file is away for 6 s", registry_away, AWAY),
}
STARTED_ANEW: dict[str, tuple[str, Callable[[Stage], None], float]] = {
    "daemon down": ("the daemon is down for 6 s", down, AFTER + AWAY - 2),
    "daemon restarted": ("the daemon is started anew three times", restarted, AFTER),
}
SET = {"back an hour": "-3600", "forward an hour": "+3600", "forward a year": "+31536000"}
ROW_LOST = [
    lives("beats", "F2: its row is deleted: beats", "beat=0.4"),
    lives("idle", "F2: its row is deleted: idle", "state=idle"),
    lives("other", "F2: others' rows are deleted: beats", "beat=0.4"),
    dies("mute", "F2: others' rows are deleted: mute", "beat=0.4/3", AFTER),
]
SCENES = [
    scene("row deleted", ROW_LOST, row_lost, tables=TABLES),
    *(scene(name, everybody(what, mute), story, tables=TABLES) for name, (what, story, mute) in STORIES.items()),
    *(
        scene(name, everybody(what, mute, anew=True), story, tables=TABLES)
        for name, (what, story, mute) in STARTED_ANEW.items()
    ),
    *(
        scene(
            f"clock {name}",
            everybody(f"the daemon's clock is set {name}", float("-inf")),
            clock_set(step),
            tables=TABLES,
            around=faked,
        )
        for name, step in SET.items()
    ),
]
