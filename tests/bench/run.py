"""`make bench`: every figure in one run, paired with the floor and with peers, written to RESULTS.md."""

import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import peers
from tests.bench.crowd import Crowd, cpu_exact, rss_mb, watched_crowd
from tests.world import BIN, World, make_world

QUICK = os.environ.get("QUICK") == "1"
SECONDS = float(os.environ.get("SECONDS") or (12 if QUICK else 60))
SIZES = (10, 100, 1000)
HERE = Path(__file__).parent
SETTINGS = {"sweep": {"interval_seconds": 10}, "stall": {"after_seconds": 120}, "kill": {"grace_seconds": 2}}
NONE = "not installed"
Row = tuple[str, str, str, str, str]
FLOORS = [sys.executable, "-IS", str(HERE / "floors.py")]


def floor(mode: str, pids: list[int]) -> subprocess.Popen[str]:
    process = subprocess.Popen([*FLOORS, mode, *map(str, pids)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def hourly(pids: dict[str, int]) -> dict[str, float]:
    """CPU seconds an hour of each, over one window for all."""
    before, began = {name: cpu_exact(pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(SECONDS)
    took = time.monotonic() - began
    return {name: (cpu_exact(pid) - before[name]) * 3600 / took for name, pid in pids.items()}


def sweeps(world: World, after: int) -> str:
    found = [e["ms"] for e in world.events()[after:] if e["event"] == "sweep.finished"]
    return f"{statistics.median(found):.1f} (max {max(found):.1f})" if found else "none in the window"


def restarted(world: World) -> float:
    """A daemon that has migrated before; the seconds from its start to `daemon.ready`."""
    if world.daemon is not None:
        world.stop()
    began = time.monotonic()
    world.start()
    return time.monotonic() - began


def pid_of(world: World) -> int:
    assert world.daemon is not None
    return world.daemon.pid


def watching(size: int, target: str) -> list[Row]:
    """Nobody beats: ours, the floor, monit and fleet-guard watch the same crowd; supervisord its own after it."""
    rows: list[Row] = []
    for world in make_world(**SETTINGS, log={"level": "debug"}):
        world.start()
        crowd = watched_crowd(world, size)
        restarted(world)
        bare = floor("watch", crowd.pids)
        others = {"monit": peers.monit(world.dir, crowd.pids), "fleet-guard": peers.fleet_guard(world.dir, crowd.pids)}
        time.sleep(5)
        after = len(world.events())
        running = {name: process.pid for name, process in others.items() if process is not None}
        used = hourly({"ours": pid_of(world), "floor": bare.pid, **running})
        memory = {name: rss_mb(pid) for name, pid in {"ours": pid_of(world), **running}.items()}
        took = sweeps(world, after)
        for process in others.values():
            peers.end(process)
        bare.kill()
        bare.communicate()
        if size == SIZES[-1]:
            rows += with_history(world)
        crowd.close()
        with tempfile.TemporaryDirectory() as directory:
            own = peers.supervisord(Path(directory), size)
            if own is not None:
                used |= hourly({"supervisord": own.pid})
                memory["supervisord"] = rss_mb(own.pid)
            peers.end(own)
    names = ("monit", "supervisord", "fleet-guard")
    cpu = " · ".join(f"{n} {used[n]:.1f}" if n in used else f"{n}: {NONE}" for n in names)
    held = " · ".join(f"{n} {memory[n]:.0f}" if n in memory else f"{n}: {NONE}" for n in names)
    first: list[Row] = [
        (f"CPU s/h, {size} silent", f"{used['ours']:.1f}", f"{used['floor']:.2f}", cpu, target),
        (f"RSS MB, {size}", f"{memory['ours']:.1f}", "–", held, {10: "64", 1000: "72"}.get(size, "–")),
        (f"one sweep ms, {size}", took, "–", "–", "–"),
    ]
    return first + rows


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
    time.sleep(5)
    after = len(world.events())
    used = hourly({"ours": pid_of(world)})
    return [
        ("start to ready s, 1,000 + 100,000 ended", f"{ready:.2f}", "–", "–", "1.0"),
        ("CPU s/h, 1,000 silent + 100,000 ended", f"{used['ours']:.1f}", "–", "–", "as without"),
        ("one sweep ms, 1,000 + 100,000 ended", sweeps(world, after), "–", "–", "as without"),
    ]


def beating(size: int, every: float, target: str) -> list[Row]:
    """Each agent beats so often through its own socket."""
    for world in make_world(**SETTINGS):
        world.start()
        crowd = watched_crowd(world, size, every=every)
        time.sleep(3)
        first, began = beats(world), time.monotonic()
        used = hourly({"ours": pid_of(world)})["ours"]
        taken, took = beats(world) - first, time.monotonic() - began
        refused = crowd.close()
        text = f"{taken / took:.0f} of {size / every:.0f}/s taken, {refused} refused"
    return [(f"CPU s/h, {size:,} beat each {every:g} s", f"{used:.1f}; {text}", "–", "–", target)]


def beats(world: World) -> int:
    return sum(agent["beats"] for agent in world.ask("GET", "/v1/agents")[1]["agents"])


def stopping(*, deaf: bool) -> Row:
    """100 that obey TERM, or ignore it and have 2 s of grace."""
    for world in make_world(**SETTINGS):
        world.start()
        crowd = watched_crowd(world, 100, deaf=deaf)
        time.sleep(2)
        began = time.monotonic()
        world.ask("POST", "/v1/kill", {"targets": ["all"]})
        ours = time.monotonic() - began
        crowd.close()
    other = Crowd(100, deaf=deaf)
    bare = float(floor("stop", other.pids).communicate()[0])
    other.close()
    with tempfile.TemporaryDirectory() as directory:
        process = peers.supervisord(Path(directory), 100, deaf=deaf)
        peer = f"supervisord {peers.end(process):.2f}" if process is not None else f"supervisord: {NONE}"
    words = ("100 ignore TERM, grace 2 s: s", "2.3") if deaf else ("100 obey TERM: s", "0.2")
    return (words[0], f"{ours:.2f}", f"{bare:.2f}", peer, words[1])


def noticing() -> Row:
    """From SIGKILL of one of 1,000 to the line of it in the log; the floor: to the line of epoll."""
    for world in make_world(**SETTINGS):
        world.start()
        crowd = watched_crowd(world, 1000)
        bare = floor("watch", crowd.pids)
        assert bare.stdout is not None
        time.sleep(3)
        ours, floors = [], []
        with world.log.open() as log:
            for pid in crowd.pids[: 10 if QUICK else 30]:
                log.seek(0, os.SEEK_END)
                began = time.monotonic()
                os.kill(pid, 9)  # it lives: it is ours, and nobody else ends it
                bare.stdout.readline()
                floors.append((time.monotonic() - began) * 1000)
                while "agent.gone" not in log.readline():
                    if time.monotonic() - began > 20:
                        break
                ours.append((time.monotonic() - began) * 1000)
                time.sleep(0.3)
        bare.kill()
        bare.communicate()
        crowd.close()
    return ("death to notice of one in 1,000: ms, median (max)", spread(ours), spread(floors), "–", "2 (20)")


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({max(values):.1f})"


def one_beat() -> Row:
    """The whole process."""

    def timed(command: list[str], environ: dict[str, str]) -> str:
        took = []
        for _ in range(10 if QUICK else 40):
            began = time.monotonic()
            subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            took.append((time.monotonic() - began) * 1000)
        return spread(took)

    for world in make_world(**SETTINGS):
        world.start()
        crowd = watched_crowd(world, 1)
        agent = world.ask("GET", "/v1/agents")[1]["agents"][0]["agent_id"]
        environ = {**world.environ, "AGENT_WATCHDOG_ID": agent, "NOTIFY_SOCKET": f"{world.runtime}/notify/{agent}"}
        ours = timed([str(BIN / "agent-watchdog"), "beat"], environ)
        bare = timed([sys.executable, "-IS", "-c", "pass"], environ)
        others = [f"systemd-notify {timed(['systemd-notify', '--no-block', 'WATCHDOG=1'], environ)}"]
        hcom = peers.there("hcom")
        others.append(f"hcom list {timed([hcom, 'list'], environ)}" if hcom else f"hcom: {NONE}")
        crowd.close()
    return ("one `beat`, whole process: ms, median (max)", ours, bare, " · ".join(others), "20")


def main() -> None:
    peers.install()
    steps: list[Callable[[], list[Row]]] = [
        lambda: watching(10, "1"),
        lambda: watching(100, "2"),
        lambda: watching(1000, "8"),
        lambda: beating(1000, 10, "20"),
        lambda: beating(1000, 1, "0 lost"),
        lambda: [noticing()],
        lambda: [one_beat(), ("one vendor hook", "not yet", "–", "–", "35")],
        lambda: [stopping(deaf=False), stopping(deaf=True)],
    ]
    rows: list[Row] = []
    for step in steps:
        try:
            rows += step()
        except Exception as error:  # one figure that cannot be taken must not cost the others
            rows.append((f"failed: {type(error).__name__}: {str(error)[:80]}", "–", "–", "–", "–"))
        print(*(" | ".join(row) for row in rows[-4:]), sep="\n", flush=True)
        write(rows)


def write(rows: list[Row]) -> None:
    """Anew after each step, so that a run that is broken off leaves what it had."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    lines = [
        "# Figures",
        "",
        f"Written by `make bench`{' QUICK=1' if QUICK else ''} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit"
        f" {head.stdout.strip()}: {os.cpu_count()} cores, Linux {platform.release()},",
        f"Python {platform.python_version()}, windows of {SECONDS:g} s, load {os.getloadavg()[0]:.1f} at the end. "
        "Ratios within one run hold; absolute times",
        "move from day to day. Floor: a bare Python loop that does the same and nothing else (tests/bench/floors.py).",
        "",
        "| figure | ours | floor | peers | target |",
        "| --- | --- | --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    (HERE / "RESULTS.md").write_text("\n".join(lines) + "\n")


main()
