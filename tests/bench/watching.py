"""What it costs to watch: silent and beating agents, the history, registering, a flood of beats."""

import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from functools import partial
from pathlib import Path

from tests.bench import peers
from tests.bench.crowd import Crowd, register, rss_mb, watched_crowd
from tests.bench.table import HERE, NONE, QUICK, SECONDS, SETTINGS, Row, floor, hourly, pid_of, side_by_side, spread
from tests.world import World, make_world, wait_for

PEERS = ("monit", "supervisord", "fleet-guard")
MEMORY = {10: "64", 1000: "72"}
OFFERED = 50_000  # beats a second


def silent(size: int, target: str, *, history: bool = False) -> list[Row]:
    """Nobody beats: ours, the floor, monit and fleet-guard watch one crowd, supervisord its own, in one window."""
    rows: list[Row] = []
    for world in make_world(**SETTINGS, log={"level": "debug"}):
        world.start()
        crowd = watched_crowd(world, size)
        restarted(world)
        bare = floor("watch", crowd.pids)
        directory = Path(tempfile.mkdtemp(dir=world.dir))
        others = {
            "monit": peers.monit(world.dir, crowd.pids),
            "fleet-guard": peers.fleet_guard(world.dir, crowd.pids),
            "supervisord": peers.supervisord(directory, size),
        }
        time.sleep(3)
        after = len(world.events())
        running = {name: process.pid for name, process in others.items() if process is not None}
        used = hourly({"ours": pid_of(world), "floor": bare.pid, **running})
        memory = {name: rss_mb(pid) for name, pid in {"ours": pid_of(world), **running}.items()}
        took = sweeps(world, after)
        for process in others.values():
            peers.end(process)
        bare.kill()
        bare.communicate()
        if history:
            rows = with_history(world)
        crowd.close()
    return [
        (
            f"CPU s/h, {size:,} silent",
            f"{used['ours']:.1f}",
            f"{used['floor']:.2f}",
            side_by_side(PEERS, used, ".1f"),
            target,
        ),
        (
            f"RSS MB, {size:,}",
            f"{memory['ours']:.1f}",
            NONE,
            side_by_side(PEERS, memory, ".0f"),
            MEMORY.get(size, NONE),
        ),
        (f"one sweep ms, {size:,}: median (max)", took, NONE, NONE, NONE),
        *rows,
    ]


def with_history(world: World) -> list[Row]:
    """The same crowd beside 100,000 rows of agents that have ended."""
    world.stop()
    with sqlite3.connect(world.state / "registry.db") as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(agent_lifecycle)")]
        changed = {"agent_id": "printf('old%029d', n)", "status": "'completed'", "pid": "NULL"}
        chosen = ", ".join(changed.get(name, name) for name in columns)
        database.execute(
            "WITH RECURSIVE k(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM k WHERE n < 100000)"
            f" INSERT INTO agent_lifecycle SELECT {chosen} FROM k, (SELECT * FROM agent_lifecycle LIMIT 1)"
        )
    database.close()
    ready = restarted(world)
    time.sleep(3)
    after = len(world.events())
    used = hourly({"ours": pid_of(world)})
    return [
        ("start to ready s, 1,000 + 100,000 ended", f"{ready:.2f}", NONE, NONE, "1.0"),
        ("CPU s/h, 1,000 silent + 100,000 ended", f"{used['ours']:.1f}", NONE, NONE, "as without"),
        ("one sweep ms, 1,000 + 100,000 ended: median (max)", sweeps(world, after), NONE, NONE, "as without"),
    ]


def beating(size: int, every: float, target: str, seconds: float = SECONDS) -> list[Row]:
    """Each agent beats so often through its own socket.

    The window begins when the daemon knows everybody: each has beaten, and the first whole scan has seen who was
    registered last. Before, each agent is new: looked at in each sweep, its words written at once. That time is
    registering's, not watching's; until 2026-11-29 the window (30 s) began in it, which made it twice as much.
    """
    for world in make_world(**SETTINGS):
        world.start()
        crowd = watched_crowd(world, size, every=every)
        wait_for(partial(_all_known, world, size), "everybody has beaten and was seen by a scan", 120)
        first, began = beats(world), time.monotonic()
        used = hourly({"ours": pid_of(world)}, 12 if QUICK else seconds)["ours"]
        taken, took = beats(world) - first, time.monotonic() - began
        refused = crowd.close()
        text = f"{taken / took:.0f} of {size / every:.0f}/s taken, {refused} refused"
    return [(f"CPU s/h, {size:,} beat each {every:g} s", f"{used:.1f}; {text}", NONE, NONE, target)]


def _all_known(world: World, size: int) -> bool:
    """Asked once a second: an answer about a thousand costs the daemon 20 ms."""
    time.sleep(1)
    agents = world.ask("GET", "/v1/agents")[1]["agents"]
    if len(agents) != size or any(agent["verdict"] != "healthy" or agent["beats"] == 0 for agent in agents):
        return False
    last = max(agents, key=lambda agent: agent["created_at"])["agent_id"]
    return bool(world.ask("GET", f"/v1/agents/{last}")[1]["agent"]["members"])


def registering() -> list[Row]:
    """1,000 agents by 32 clients at a time (the most of one uid); the floor: as many rows, each committed durably."""
    for world in make_world(**SETTINGS):
        world.start()
        crowd = Crowd(1000)
        began = time.monotonic()
        waited = register(world, crowd, [uuid.uuid4().hex for _ in crowd.pids], clients=32)
        ours = time.monotonic() - began
        database = sqlite3.connect(world.dir / "bare.db", isolation_level=None)
        database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (a, b)")
        began = time.monotonic()
        for pid in crowd.pids:
            database.execute("INSERT INTO t VALUES (?, ?)", (pid, "x" * 200))
        bare = time.monotonic() - began
        database.close()
        crowd.close()
    each = spread([seconds * 1000 for seconds in waited], ".0f")
    return [("1,000 register at once: s; answer ms, median (p99)", f"{ours:.2f}; {each}", f"{bare:.2f}", NONE, NONE)]


def flood() -> list[Row]:
    """50,000 beats a second by one process to 1,000 agents' sockets; none that was accepted may be lost."""
    seconds = 3 if QUICK else 6
    for world in make_world(**SETTINGS):
        world.start()
        crowd = Crowd(1000)
        ids = [uuid.uuid4().hex for _ in crowd.pids]
        register(world, crowd, ids)
        accepted, refused = offered(seconds, [str(world.runtime / "notify" / agent_id) for agent_id in ids])
        time.sleep(1)
        taken = beats(world)
        directory = Path(tempfile.mkdtemp(dir=world.dir))
        paths = [str(directory / str(number)) for number in range(1000)]
        bare = floor("hear", paths)
        bare_accepted, bare_refused = offered(seconds, paths)
        time.sleep(0.5)
        bare.terminate()
        heard = int(bare.communicate()[0])
        crowd.close()

    def told(accepted: int, refused: int, taken: int) -> str:
        return f"{taken / seconds:,.0f}/s taken, {refused / seconds:,.0f}/s refused, {accepted - taken} lost"

    ours, limit = told(accepted, refused, taken), told(bare_accepted, bare_refused, heard)
    return [(f"{OFFERED:,} beats/s offered to 1,000 agents", ours, limit, NONE, "50,000 taken, 0 lost")]


def offered(seconds: float, paths: list[str]) -> tuple[int, int]:
    """How many the sockets accepted and how many they refused."""
    command = [sys.executable, "-IS", str(HERE / "flood.py"), str(OFFERED), str(seconds), *paths]
    accepted, refused = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(accepted), int(refused)


def sweeps(world: World, after: int) -> str:
    found = [e["ms"] for e in world.events()[after:] if e["event"] == "sweep.finished"]
    return f"{statistics.median(found):.1f} ({max(found):.1f})" if found else "none in the window"


def restarted(world: World) -> float:
    """A daemon that has migrated before; the seconds from its start to `daemon.ready`."""
    if world.daemon is not None:
        world.stop()
    began = time.monotonic()
    world.start()
    return time.monotonic() - began


def beats(world: World) -> int:
    return sum(agent["beats"] for agent in world.ask("GET", "/v1/agents")[1]["agents"])
