"""Two daemons on one registry, one stopped (SIGSTOP) at an effect: `python -m tests.faults.crash.pair JOB.json`.

This process has imported everything and has one thread; each daemon of a round is a fork of it, so a thousand rounds
take minutes. What keeps a second daemon away, the locks, is left out: only the claims are between the two.
"""

import asyncio
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import alembic.command  # noqa: F401 - so that no fork has to import it

from tests.faults.crash.failpoints import Effect, Plan, effects, in_the_daemon
from tests.faults.crash.own import admit, own_daemon
from watchdog.core.hooks import HookContext, HookOutcome, HookResult, HookSpec
from watchdog.errors import RegistryUnavailable
from watchdog.helpers import pool
from watchdog.registry.registry import Registry

HOOK = '[[hook]]\nname = "hook"\ncommand = ["true"]\n'
LIMIT = 60.0  # seconds for one round
UP = 5.0  # seconds for the second daemon; while the first is stopped inside a transaction it cannot come up at all
SLOW = 0.02  # the share of rounds in which the first is stopped inside a transaction
# The effects of one kill of a process that obeys, in the order in which they come; some more than once.
EFFECTS = [
    *(Effect(f"commit {name}", 1) for name in ("open_request", "claim_agent ending", "save_step term_main")),
    *(Effect(name, 1) for name in ("signal SIGTERM", "signal SIGCONT", "commit add_event kill.signal_sent")),
    *(Effect(f"commit {name}", 1) for name in ("save_step cleanup", "open_run hook")),
    Effect("hook hook", 1),
    *(Effect(f"commit {name}", 1) for name in ("finish_run hook", "close_agent killed")),
]


@dataclass(frozen=True)
class Round:
    """What came of one."""

    at: str
    killed: bool  # the stopped one was killed, else continued
    double: list[str]  # what both did
    early: list[str]  # what the other did while the first was stopped and held the claim
    ended: bool  # the agent is dead, its row and its order are closed


def wait(child: int, options: int = 0) -> int:
    """Its wait status, within the limit."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, options | os.WNOHANG)
        if pid:
            return status
        time.sleep(0.002)
    raise TimeoutError(f"{child} within {LIMIT} s")


def fork(do: Coroutine[Any, Any, None]) -> int:
    """A daemon: a process with its own identity, that ends when `do` has ended."""
    pid = os.fork()
    if pid:
        do.close()
        return pid
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a round that fails leaves nobody behind
    try:
        asyncio.run(do)
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        os._exit(1)
    os._exit(0)


def with_points(plan: Path) -> None:
    """All effects go to the trace; the hook is none that takes a process, and a second daemon is not refused."""

    async def run_hook(_: pool.HelperPool, spec: HookSpec, context: HookContext) -> HookResult:
        return HookResult(HookOutcome.DONE)

    setattr(pool.HelperPool, "run_hook", run_hook)  # noqa: B010 - mypy refuses the plain assignment
    setattr(Registry, "claim_host", lambda *_: None)  # noqa: B010
    in_the_daemon(str(plan))


async def first(directory: Path, url: str, plan: Path, agent_process: subprocess.Popen[bytes]) -> None:
    """Finds the agent silent and ends it; is stopped somewhere on the way."""
    with_points(plan)
    async with own_daemon(directory, url=url, hooks=HOOK) as daemon:
        agent = await admit(daemon, agent_process.pid)
        await daemon.sweeper.sweep()
        while agent.ending.request_id is not None and daemon.fleet.get(agent.agent_id) is not None:
            await asyncio.sleep(0.005)


async def second(directory: Path, url: str, plan: Path, stop: Path) -> None:
    """Takes up what it may, and looks at everybody, until it is told to stop."""
    with_points(plan)
    while not stop.exists():
        with suppress(RegistryUnavailable):  # while the first is stopped inside a transaction: systemd would restart us
            async with own_daemon(directory, url=url, hooks=HOOK) as daemon:
                (directory / "up").touch()
                while not stop.exists() or daemon.kills.busy:
                    await daemon.registry_poll.poll()
                    await daemon.sweeper.sweep()
                    await asyncio.sleep(0.005)


def one(directory: Path, url: str, chance: random.Random) -> Round:
    """One agent, two daemons."""
    at, after, killed = chance.choice(EFFECTS), chance.random() < 0.5, chance.random() < 0.5
    if at.name.startswith("commit"):  # before: it holds the database's lock, and the other one waits for seconds
        after = chance.random() < 1 - SLOW
    ours, theirs, stop = directory / "first", directory / "second", directory / "stop"
    for path in (ours, theirs, stop, directory / "up"):
        path.unlink(missing_ok=True)
    plans = [
        Plan(str(ours), at, after, "SIGSTOP").write(directory / "first.json"),
        Plan(str(theirs)).write(directory / "second.json"),
    ]
    quiet = subprocess.DEVNULL  # a round that fails leaves it behind, and whoever reads our words must not wait for it
    agent = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=quiet, stderr=quiet)
    a = fork(first(directory, url, plans[0], agent))
    how = wait(a, os.WUNTRACED)
    stopped = os.WIFSTOPPED(how)
    assert how == 0 or stopped, f"the first daemon fell by itself: {how}"
    b = fork(second(directory, url, plans[1], stop))
    patience = time.monotonic() + UP
    while not (directory / "up").exists() and time.monotonic() < patience:
        time.sleep(0.002)
    time.sleep(chance.random() * 0.05)  # the other one looks, and takes up what is nobody's
    early = acts(theirs)
    claimed = any(effect.name == "commit claim_agent ending" for effect, _ in effects(ours))
    claimed = claimed and not (at.name == "commit claim_agent ending" and not after)
    if stopped:
        os.kill(a, signal.SIGKILL if killed else signal.SIGCONT)
        wait(a)
    registry, deadline = Registry(url).open(), time.monotonic() + LIMIT
    try:
        while not (ended := closed(registry)) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        registry.close()
    stop.touch()
    wait(b)
    dead = agent.poll() is not None
    agent.kill()
    agent.wait()
    both = acts(ours) & acts(theirs)
    taken_over = stopped and killed  # then the step that may not have been done is done again
    return Round(
        f"{'after' if after else 'before'} {at}",
        killed,
        [] if taken_over else sorted(both),
        sorted(early) if stopped and claimed else [],
        ended and dead,
    )


def acts(trace: Path) -> set[str]:
    """Signals and hook runs of one daemon."""
    return {effect.name for effect, _ in effects(trace) if effect.name.startswith(("signal", "hook"))}


def closed(registry: Registry) -> bool:
    """Whether nothing is open any more."""
    with registry.engines.begin(registry.engines.reading) as connection:
        counts = connection.exec_driver_sql(
            "SELECT (SELECT count(*) FROM kill_request WHERE status IN ('open', 'claimed', 'unkillable')),"
            " (SELECT count(*) FROM agent_lifecycle WHERE status IN ('running', 'ending', 'unkillable'))"
        )
        return tuple(counts.one()) == (0, 0)


def rounds(times: int, seed: str, url: str = "") -> list[Round]:
    """In a process of its own; `url`: an empty registry in PostgreSQL, else a file of SQLite."""
    with tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp") as directory:
        job = Path(directory, "job.json")
        job.write_text(json.dumps({"times": times, "seed": seed, "url": url or f"sqlite:///{directory}/registry.db"}))
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.crash.pair", str(job)],
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            check=True,
        )
        return [Round(**found) for found in map(json.loads, done.stdout.splitlines())]


def main() -> None:
    job = Path(sys.argv[1])
    given = json.loads(job.read_text())
    Registry(given["url"]).open().close()
    chance = random.Random(given["seed"])
    play = partial(one, job.parent, given["url"], chance)
    for _ in range(given["times"]):
        print(json.dumps(play().__dict__), flush=True)


if __name__ == "__main__":
    main()
