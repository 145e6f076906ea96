"""The seven ways in which a process parts from its agent."""

import contextlib
import os
import signal
from collections import Counter
from functools import partial

import pytest

from tests.faults.table import Row, Run
from tests.scripted_agents.escapes import KINDS
from tests.world import World, alive, make_world, wait_for

AT_ONCE = 10


def survivors(world: World, names: list[str], pinned: dict[int, int]) -> list[str]:
    """End these agents; the kinds of those that live on. All of their processes are held by pidfds in `pinned`."""
    told = {name: kinds_of(world, name) for name in names}
    for kinds in told.values():
        assert tuple(kinds) == KINDS
        for pid in kinds.values():
            pinned[pid] = os.pidfd_open(pid)
    world.cli("kill", *names)
    return [kind for kinds in told.values() for kind, pid in kinds.items() if alive(pid)]


def kinds_of(world: World, name: str) -> dict[str, int]:
    """Who was started, as the agent has written it down."""
    path = world.dir / name
    wait_for(path.exists, f"{name} is up")
    words = path.read_text().split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def escape(run: Run, *, own_cgroup: bool) -> None:
    """So many agents, ten at once; every other one ignores TERM in all its processes."""
    lived: Counter[str] = Counter()
    pinned: dict[int, int] = {}
    with contextlib.contextmanager(make_world)(kill={"grace_seconds": 0.5}) as world:
        world.start()
        kind = world.ask("GET", "/v1/status")[1]["own_cgroup"]
        if own_cgroup and kind.startswith("none"):
            pytest.skip("needs root: a cgroup v2 that may be divided")
        try:
            for first in range(0, run.times, AT_ONCE):
                names = [f"e{number}" for number in range(first, min(first + AT_ONCE, run.times))]
                for number, name in enumerate(names):
                    command = world.script("escapes.py", str(world.dir / name), *(["deaf"] if number % 2 else []))
                    if own_cgroup:
                        world.run(name, *command)
                    else:
                        world.registered(name, *command)
                lived.update(survivors(world, names, pinned))
        finally:
            for pidfd in pinned.values():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)
    run.note(f"{len(pinned) - lived.total()} of {len(pinned)} ended; survivors: {dict(lived) or 'none'}")
    assert set(lived) <= (set() if own_cgroup else {"cleared"})


HOW = "an agent starts one of each: " + ", ".join(KINDS)
ROWS = [
    Row(
        "escapes of 7 kinds, started by `run`",
        HOW,
        "nobody survives: the agent's own cgroup knows all",
        partial(escape, own_cgroup=True),
        runs=200,
        least=10,
        limit=1200,
    ),
    Row(
        "escapes of 7 kinds, only registered",
        HOW,
        "the double fork with a cleared environment alone survives: nothing shows whose it is",
        partial(escape, own_cgroup=False),
        runs=200,
        least=10,
        limit=1200,
    ),
]
