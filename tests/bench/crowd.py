"""What every figure needs: a daemon, a crowd of agents that are registered with it, and what processes use."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.world import World

HZ = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SLEEPERS = Path(__file__).parent / "sleepers.py"


class Crowd:
    """Light processes (tests/bench/sleepers.py); closing it ends them."""

    def __init__(
        self,
        count: int,
        *,
        deaf: bool = False,
        lead: bool = False,
        every: float = 0.0,
        sockets: tuple[str, ...] = (),
    ) -> None:
        """`deaf`: they ignore TERM. `lead`: each leads a process group of its own. `every`: seconds between beats."""
        words = [name for name, on in (("deaf", deaf), ("lead", lead)) if on]
        words += [*([f"every={every}"] if every else []), *sockets]
        self.refusals = subprocess.PIPE if every else subprocess.DEVNULL
        self._process = subprocess.Popen(
            [sys.executable, "-IS", str(SLEEPERS), str(count), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.refusals,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.pids = [int(word) for word in self._process.stdout.readline().split()]

    def close(self) -> int:
        """End them; how many beats were refused to them."""
        told = self._process.communicate(timeout=60)[1]
        return (told or "").count("refused")


@contextmanager
def crowd(count: int, *, deaf: bool = False) -> Iterator[Crowd]:
    """A crowd for a while."""
    made = Crowd(count, deaf=deaf)
    try:
        yield made
    finally:
        made.close()


def watched_crowd(world: World, count: int, *, deaf: bool = False, every: float = 0.0, **body: Any) -> Crowd:
    """A crowd whose members are agents `c0`, `c1`, ... of this world's daemon; with `every` they beat so often."""
    ids = [uuid.uuid4().hex for _ in range(count)]
    sockets = tuple(str(world.runtime / "notify" / agent_id) for agent_id in ids)
    made = Crowd(count, deaf=deaf, every=every, sockets=sockets if every else ())
    register(world, made, ids, **body)
    return made


def register(world: World, crowd: Crowd, ids: list[str], *, clients: int = 8, **body: Any) -> list[float]:
    """All of a crowd as agents, by so many clients at a time; the seconds that each had to wait for its answer."""

    def one(number: int) -> float:
        began = time.monotonic()
        asked = {"name": f"c{number}", "agent_id": ids[number], "pid": crowd.pids[number], **body}
        status, answer = world.ask("POST", "/v1/agents", asked)
        assert status in (200, 201), answer
        return time.monotonic() - began

    with ThreadPoolExecutor(clients) as threads:
        return list(threads.map(one, range(len(crowd.pids))))


def tree_of(pid: int) -> list[int]:
    """A process and all its living descendants."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))):
            parents.setdefault(int(fields[1]), []).append(int(name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def cpu_seconds(pid: int) -> float:
    """CPU of one process so far, its reaped children included (proc(5): fields 14 to 17). 0 when it has gone."""
    fields = _stat(pid)
    return sum(int(field) for field in fields[11:15]) / HZ if fields else 0.0


def cpu_exact(pid: int) -> float:
    """CPU of one process so far in µs steps (schedstat of each thread); threads that ended are not in it."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
        except OSError:
            continue
    return total / 1e9


def rss_mb(pid: int) -> float:
    """Resident memory in MB (10^6 bytes), by statm."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6


def cpu_per_hour(pids: list[int], seconds: float) -> float:
    """CPU seconds an hour of these processes together, measured over a window."""
    before, began = [cpu_exact(pid) for pid in pids], time.monotonic()
    time.sleep(seconds)
    used = sum(cpu_exact(pid) for pid in pids) - sum(before)
    return used * 3600 / (time.monotonic() - began)


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
