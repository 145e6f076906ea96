"""What rows need: a daemon with an agent or two, and ways to do a deed where it can reach nobody else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.cgroups import scratch
from tests.world import World, alive, environ_of, make_world, pids_with, wait_for

UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
INIT = ("sh", "-c", '"$@"; exit $?', "sh")  # process 1 of the namespace: reaps whom nobody else waits for
ROOT = Path(__file__).parent.parent.parent
UP = '\nopen("up.new", "w").close(); os.rename("up.new", "up")\n'
DEAF = "\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


def inside(program: str, *words: object, pids: int = 0, seconds: float = 600) -> Any:
    """What a program of `tests/faults/inside` prints as JSON, run in a pid namespace of its own (needs root).

    `pids`: the most processes that may live there, programs included; the cgroup with that limit is its last word. 0:
    no limit of ours.
    """
    argv = [*UNSHARE, *INIT, sys.executable, "-m", f"tests.faults.inside.{program}", *map(str, words)]
    with ExitStack() as held:
        if pids:
            limited = held.enter_context(scratch("pids"))
            (limited / "pids.max").write_text(str(pids))
            argv = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(limited), *argv, str(limited)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds, cwd=ROOT)
    assert done.returncode == 0, f"{program}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def running(**settings: Any) -> Iterator[World]:
    """A world whose daemon runs."""
    with contextmanager(make_world)(**settings) as world:
        world.start()
        yield world


def start(world: World, name: str, code: str, *, by_run: bool = True, options: tuple[str, ...] = ()) -> int:
    """An agent that runs this code, which makes a file `up` when it is ready (`UP`); its pid."""
    command = (sys.executable, "-c", f"import os, signal, subprocess, sys, time\n{code}")
    if by_run:
        world.run(name, *command, options=options)
    else:
        world.registered(name, *command)
    wait_for((world.dir / "up").exists, f"{name} is up")
    pid = wait_for(lambda: world.agents().get(name, {}).get("pid"), f"the pid of {name}")
    assert isinstance(pid, int)
    return pid


def left(world: World) -> list[int]:
    """Who was started by agents of this world and lives."""
    found = pids_with("WORLD", str(world.dir))
    return [pid for pid in found if "AGENT_WATCHDOG_ID" in environ_of(pid)]


def temp_dir(world: World) -> str:
    """One for an agent: it is there as long as nothing was put in order."""
    path = world.dir / "temp"
    path.mkdir()
    return str(path)


def cannot_be_ended(world: World, name: str, pid: int, *reasons: str) -> str:
    """An order to end it ends unkillable, and nothing is put in order. Which of the reasons it was."""
    done = world.cli("kill", name, check=False)
    assert done.returncode == (77 if "not_permitted" in reasons else 1), (
        f"exit {done.returncode}: {done.stdout}{done.stderr}"
    )
    assert world.agents()[name]["status"] == "unkillable"
    said = str(world.wait_event("kill.unkillable", name=name)["why"])
    assert said.partition(":")[0] in reasons, said
    assert alive(pid)
    assert Path(world.dir, "temp").is_dir()
    assert world.count("kill.finished", name=name) == 0
    return said.partition(":")[0]


def is_closed(world: World, name: str, *, signalled: bool = True) -> None:
    """Nobody asks again: it is proved dead, and put in order as its owner; the alarm was told once."""
    world.wait_status(name, "killed", "completed", "failed")
    world.wait_event("agent.ended", name=name)
    told = world.count("kill.finished", name=name), world.count("kill.unkillable", name=name)
    assert told == (int(signalled), 1), world.events()
    assert not Path(world.dir, "temp").exists(), [e for e in world.events() if e["event"].startswith("cleanup")]


def between(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Seconds between two lines of the daemon's log."""
    began, ended = (datetime.fromisoformat(event["ts"]) for event in (first, second))
    return (ended - began).total_seconds()
