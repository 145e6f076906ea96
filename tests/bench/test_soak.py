"""A soak: agents come, beat, stall, exit, are killed and leave litter, while clients come and go; nothing may grow.

Every so often the world falls quiet (nobody lives, nothing runs) and the daemon is weighed: memory, descriptors,
threads, child processes, and the bytes of the database for each row. What it needed in the first half must be enough
for the second. `FULL=1`: 20 minutes, else a share of 75 s. The figures are printed (`pytest -s`).
"""

import itertools
import os
import re
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from tests.bench.crowd import rss_mb, tree_of
from tests.world import World, make_world, wait_for

SECONDS = 1200 if os.environ.get("FULL") == "1" else 75
QUIET_POINTS = 24 if SECONDS > 600 else 6
PACE = 0.25 if SECONDS > 600 else 0.0
AT_ONCE = 8
GROWTH_MB = 1.5  # of memory over the second half, by the line through its quiet points (a leak of 1 KB an agent: 3 MB)
# Of database: 750 to 760 in four runs. An event with its evidence has about 350; an agent its tree and the identity of
# its places besides.
BYTES_A_ROW = 850

TURNS = itertools.count()

pytestmark = [pytest.mark.faults, pytest.mark.timeout(SECONDS + 240)]


@dataclass(frozen=True)
class Weight:
    """What the daemon holds at one quiet point."""

    seconds: float
    agents: int  # that have ended so far
    rss_mb: float
    descriptors: int
    threads: int
    children: int
    rows: int
    database_kb: float


@pytest.fixture
def world() -> Iterator[World]:
    """Sweeps each half second; three seconds of silence are too many."""
    yield from make_world(log={"level": "info"})


def weigh(world: World, began: float) -> Weight:
    assert world.daemon is not None
    pid = world.daemon.pid
    with sqlite3.connect(f"file:{world.state}/registry.db?mode=ro", uri=True) as database:
        tables = ("agent_lifecycle", "lifecycle_event", "kill_request", "cleanup_run", "operator_hold")
        counts = {name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}
        size = database.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()[0]
    database.close()
    return Weight(
        seconds=round(time.monotonic() - began, 1),
        agents=counts["agent_lifecycle"],
        rss_mb=round(rss_mb(pid), 2),
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=len(os.listdir(f"/proc/{pid}/task")),
        children=len(tree_of(pid)) - 1,
        rows=sum(counts.values()),
        database_kb=round(size / 1024, 1),
    )


def agents(world: World) -> Iterator[None]:
    """One agent after another, each in another manner; some are started by `run`, some only registered."""
    manners = itertools.cycle(
        (
            ("beat=0.5", "for=2", "exit=0"),
            ("beat=0.5", "for=1", "exit=3"),
            ("beat=0.5/2", "sleep"),  # stalls
            ("deaf", "grandchild", "beat=0.5/1", "sleep"),  # stalls, and needs KILL
            ("by=sdnotify", "beat=0.5", "for=3", "exit=0"),
            ("state=done", "beat=0.5"),  # the operator ends it
            ("by=beat", "beat=0.5/3", "exit=0"),
        )
    )
    for number, manner in enumerate(manners):
        name = f"a{number}"
        if number % 3:
            options = ("--stall-after", "2s", "--tag", "crowd", *(["--temp-dir", "auto"] if number % 2 else []))
            world.run(name, *world.script("agent.py", *manner), options=options)
        else:
            process = world.spawn(*world.script("agent.py", "sleep"))
            body = {"name": name, "pid": process.pid, "stall_after_seconds": 2, "tags": ["crowd"]}
            status, answer = world.ask("POST", "/v1/agents", body)
            assert status in (200, 201), answer
            world.ask("POST", f"/v1/agents/{answer['agent_id']}/beat", {"note": "x" * 200})
            if number % 2:
                process.kill()
        yield


def clients(world: World) -> Iterator[None]:
    """One act of an operator after another."""
    while True:
        for words in (("list",), ("status",), ("events",), ("list", "--all"), ("hold", "--for", "1s"), ("unhold",)):
            world.cli(*words, check=False)
            yield
        world.spawn("timeout", "3", "agent-watchdog", "events", "--follow")
        yield
        world.cli("kill", "tag:crowd", "--grace", "0.3s", check=False)
        yield
        sweeps_so_far(world)
        yield
        reload(world)
        yield


def reload(world: World) -> None:
    """SIGHUP, each time with another file: other limits and hooks, by turns one that cannot be used."""
    turn = next(TURNS)
    text = world.config.read_text().split("[[hook]]")[0].split("[nonsense]")[0]
    if turn % 3 == 2:
        text += "[nonsense]\n"
    elif turn % 3:
        text += '[[hook]]\nname = "temp_dir"\nrun = "temp_dir"\n'  # else it would stay behind
        text += '[[hook]]\nname = "own"\non = ["killed"]\ncommand = ["/bin/true"]\n'
    world.config.write_text(re.sub("max_per_minute = .*", f"max_per_minute = {1000 + turn}", text))
    assert world.daemon is not None
    world.daemon.send_signal(signal.SIGHUP)


def living(world: World) -> int:
    return len(world.ask("GET", "/v1/agents")[1]["agents"])


def reap(world: World) -> None:
    """Whoever of our own children has ended leaves no zombie and no log behind."""
    for process in list(world.started):
        if process.poll() is not None:
            world.started.remove(process)
    for left in world.dir.glob("a*.out"):
        if not any(left.stem in map(str, p.args) for p in world.started if isinstance(p.args, list)):
            left.unlink()


def sweeps_so_far(world: World) -> float:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(world.socket)
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    return next(
        float(line.split()[1]) for line in text.splitlines() if line.startswith("agent_watchdog_sweep_seconds_count")
    )


def fall_quiet(world: World) -> None:
    """Everybody ends, and the daemon has finished with them."""

    def ended() -> bool:
        world.cli("kill", "all", "--grace", "0.3s", check=False)
        return not living(world)

    world.cli("unhold", check=False)
    wait_for(ended, "nobody lives", 60)
    wait_for(lambda: all(p.poll() is not None for p in world.started), "clients and wrappers have gone", 30)
    reap(world)
    sweeps = sweeps_so_far(world)
    wait_for(lambda: sweeps_so_far(world) >= sweeps + 2, "two sweeps over nobody", 30)


def slope(points: list[Weight]) -> float:
    """MB a second: the least-squares line through the quiet points."""
    mean_x = sum(p.seconds for p in points) / len(points)
    mean_y = sum(p.rss_mb for p in points) / len(points)
    above = sum((p.seconds - mean_x) * (p.rss_mb - mean_y) for p in points)
    return above / sum((p.seconds - mean_x) ** 2 for p in points)


def show(points: list[Weight]) -> str:
    names = [field.name for field in fields(Weight)]
    rows = [names, *([str(getattr(point, name)) for name in names] for point in points)]
    return "\n".join("  ".join(cell.rjust(11) for cell in row) for row in rows)


def test_nothing_grows(world: World) -> None:
    """What the first half needed is enough for the second."""
    world.start()
    began = time.monotonic()
    points: list[Weight] = []
    coming, acting = agents(world), clients(world)
    fall_quiet(world)
    for number in range(1, QUIET_POINTS + 1):
        while time.monotonic() - began < SECONDS * number / QUIET_POINTS:
            if living(world) < AT_ONCE:
                next(coming)
            next(acting)
            reap(world)
            time.sleep(PACE)  # leaves the machine to others for the most part; nothing is waited for
        fall_quiet(world)
        points.append(weigh(world, began))
    print(f"\n{show(points)}")

    first, second = points[: QUIET_POINTS // 2], points[QUIET_POINTS // 2 :]
    assert points[-1].agents > SECONDS / 3, "too few agents came and went to tell anything"
    grown = slope(second) * (second[-1].seconds - second[0].seconds)
    # Threads and pooled connections are made when many are needed at once: a few may come late, they have an upper end.
    for name, spare in (("descriptors", 4), ("threads", 2), ("children", 0)):
        before, after = (max(getattr(point, name) for point in half) for half in (first, second))
        assert after <= before + spare, f"{name}: {before} in the first half, {after} in the second\n{show(points)}"
    limit = GROWTH_MB if SECONDS > 600 else 4 * GROWTH_MB  # a share of it is all warm-up
    assert grown <= limit, f"memory grew by {grown:.2f} MB in the second half\n{show(points)}"
    per_row = (points[-1].database_kb - points[0].database_kb) * 1024 / (points[-1].rows - points[0].rows)
    assert per_row <= BYTES_A_ROW, f"{per_row:.0f} bytes of database a row\n{show(points)}"
    reloads = [world.count(event) for event in ("config.reloaded", "config.invalid")]
    print(f"reloads: {reloads[0]} taken, {reloads[1]} refused")
    assert min(reloads) > 0
    wal = Path(f"{world.state}/registry.db-wal")
    assert wal.stat().st_size < 16 << 20, "the write-ahead log is never taken back"
    assert world.count("sweep.failed") + world.count("kill.failed") == 0
