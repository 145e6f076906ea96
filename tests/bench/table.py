"""One table for all figures: its rows, how values are written in it, and the file."""

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.crowd import cpu_exact
from tests.world import World

QUICK = os.environ.get("QUICK") == "1"
SECONDS = float(os.environ.get("SECONDS") or (12 if QUICK else 60))  # a window: one /proc scan falls into a minute
HERE = Path(__file__).parent
SETTINGS = {"sweep": {"interval_seconds": 10}, "stall": {"after_seconds": 120}, "kill": {"grace_seconds": 2}}
MISSING = "not installed"
NONE = "–"
Row = tuple[str, str, str, str, str]  # figure, ours, floor, peers, target


def floor(mode: str, words: Sequence[object]) -> subprocess.Popen[str]:
    """The bare limit (floors.py), when it is ready."""
    command = [sys.executable, "-IS", str(HERE / "floors.py"), mode, *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def pid_of(world: World) -> int:
    """Of its daemon."""
    assert world.daemon is not None
    return world.daemon.pid


def hourly(pids: dict[str, int], seconds: float = SECONDS) -> dict[str, float]:
    """CPU seconds an hour of each, over one window for all."""
    before, began = {name: cpu_exact(pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return {name: (cpu_exact(pid) - before[name]) * 3600 / took for name, pid in pids.items()}


def spread(values: Sequence[float], form: str = ".1f") -> str:
    """Median (p99; of fewer than a hundred: the greatest)."""
    ordered = sorted(values)
    last = ordered[-(-99 * len(ordered) // 100) - 1]
    return f"{statistics.median(ordered):{form}} ({last:{form}})"


def side_by_side(names: Sequence[str], values: dict[str, float], form: str) -> str:
    """Peers in one cell."""
    return " · ".join(f"{n} {values[n]:{form}}" if n in values else f"{n}: {MISSING}" for n in names)


def write(rows: list[Row]) -> None:
    """Anew after each step, so that a run that is broken off leaves what it had."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    lines = [
        "# Figures",
        "",
        f"Written by `make bench`{' QUICK=1' if QUICK else ''} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit"
        f" {head.stdout.strip()}: {os.cpu_count()} cores, Linux {platform.release()},",
        f"Python {platform.python_version()}, net.unix.max_dgram_qlen {_queue()}, windows of {SECONDS:g} s, load"
        f" {os.getloadavg()[0]:.1f} at the end. Ratios within one run hold;",
        "absolute times move from day to day. Floor: a bare Python loop that does the same and nothing else",
        "(tests/bench/floors.py). In brackets: p99 (of fewer than a hundred: the greatest).",
        "",
        "| figure | ours | floor | peers | target |",
        "| --- | --- | --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    (HERE / "RESULTS.md").write_text("\n".join(lines) + "\n")


def _queue() -> str:
    return Path("/proc/sys/net/unix/max_dgram_qlen").read_text().strip()
