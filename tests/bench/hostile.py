"""What twenty hostile users cost root and everybody else: M2 of the review, all of it at once, beside an idle run."""

import os
import subprocess
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tests.bench.table import NONE, QUICK, Row, spread
from tests.world import World, make_world

USERS = 20
PROGRAM = Path(__file__).parent.parent / "attacks" / "hostile.py"
FIRST_UID = 12200
INTERVAL = 2.0  # seconds between two sweeps
AFTER = 5.0  # seconds of silence that are allowed to the agents of others


@dataclass
class Seen:
    """Of one window: seconds from root's word to a proved kill, and how late stalls were found."""

    orders: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)

    def cells(self) -> tuple[str, str]:
        return spread(self.orders, ".3f"), spread(self.late, ".1f")


def hostile() -> list[Row]:
    """Each of 20 users: 10 clients that register and remove, 5 that ask for /restore, a flood on 12 agents' sockets.

    So 200 clients, 100 helpers wanted, 240 flooded sockets. The attackers are as nice as they can be: what is measured
    is the daemon's admission, not the scheduler's, which a slice for each user would take care of.
    """
    if os.geteuid() != 0:
        return [("20 hostile users: needs root", NONE, NONE, NONE, NONE)]
    seconds = 30.0 if QUICK else 60.0
    idle, attacked = _window(seconds / 2, users=0), _window(seconds, users=USERS)
    figures = ("root registers and kills, s", "stall of another found late by, s")
    targets = ("1 at p99", f"{INTERVAL:g}: one sweep")
    rows = zip(figures, attacked.cells(), idle.cells(), targets, strict=True)
    return [
        (f"{figure}, beside {USERS} hostile users: median (p99)", ours, f"idle: {bare}", NONE, target)
        for figure, ours, bare, target in rows
    ]


def _window(seconds: float, *, users: int) -> Seen:
    seen = Seen()
    for world in make_world(
        sweep={"interval_seconds": INTERVAL}, stall={"after_seconds": AFTER, "start_limit_seconds": 600}
    ):
        world.dir.chmod(0o755)
        world.runtime.chmod(0o755)
        world.start()
        running = [attack for number in range(users) for attack in _attacks(world, FIRST_UID + number, seconds + 10)]
        for attack in running:
            assert attack.stdout is not None and attack.stdout.readline() == "ready\n"
        until, number = time.monotonic() + seconds, 0
        began: dict[str, float] = {}
        while time.monotonic() < until:
            if number % 5 == 0 and time.monotonic() < until - 2 * AFTER and len(began) < 20:
                name = f"stalls{number}"
                world.registered(name, "sleep", "1000", stall_after_seconds=AFTER)
                assert world.ask("POST", f"/v1/agents/{name}/beat", {})[0] == 204
                began[name] = time.time()
            seen.orders.append(_order(world, f"root{number}"))
            number += 1
            time.sleep(0.1)
        for attack in running:
            attack.kill()
            attack.communicate()
        for name, at in began.items():
            found = world.wait_event("agent.late", name=name)
            seen.late.append(max(0.0, _stamp(found) - at - AFTER))
    return seen


def _attacks(world: World, uid: int, seconds: float) -> list[subprocess.Popen[str]]:
    """One user's three programs."""
    modes = (("churn", 10, seconds), ("restore", 5, seconds), ("flood", 12, seconds))
    return [
        subprocess.Popen(
            ["nice", "-n", "19", "/usr/bin/python3", "-I", str(PROGRAM), mode, world.socket, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            user=uid,
            group=uid,
            extra_groups=[],
            cwd="/",
            env={"WORLD": str(world.dir)},
        )
        for mode, *words in modes
    ]


def _order(world: World, name: str) -> float:
    process = world.spawn("sleep", "1000")
    began = time.monotonic()
    status, answer = world.ask("POST", "/v1/agents", {"name": name, "pid": process.pid})
    assert status == 201, answer
    status, answer = world.ask("POST", "/v1/kill", {"targets": [name], "force": True})
    took = time.monotonic() - began
    assert status == 200, answer
    process.wait()
    return took


def _stamp(event: dict[str, object]) -> float:
    return datetime.fromisoformat(str(event["ts"]).replace("Z", "+00:00")).timestamp()
