"""Row H1 as seen at the daemon's end: whatever hangs, SIGTERM is obeyed, a dead scheduler ends it, the next one starts.

At f87b3bd one call that never returned kept the daemon: `asyncio.run` and concurrent.futures joined its thread, the
registry's close waited for its writer, the end waited for a sweep that held its lock; and while a group list was asked
of NSS, or a program was being started, no thread of it ran at all. The locks were held as long, so that a second start
said "already running". Its end is bounded by 20 s now (`watchdog.service.exit_timer.LIMIT`).
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.faults.hanging import Hanging
from tests.world import BIN, World, make_world, wait_for
from watchdog.service.exit_timer import LIMIT, LOOP_LIMIT
from watchdog.service.main import PATIENCE

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(300)]

MARGIN = 6.0  # seconds of a loaded machine
DEAD = 30.0  # seconds without a sweep until the scheduler counts as dead (`schedule.PATIENCE`)

# What hangs, by the call and the path for which it does.
HANGS: dict[str, tuple[str, Callable[[World], object]]] = {
    "the registry's fsync": ("fsync", lambda world: world.state),
    "the state directory": ("path", lambda world: world.state),
    "the runtime directory": ("path", lambda world: world.runtime),
    "NSS": ("nss", lambda _: ""),
    "NSS for groups": ("groups", lambda _: ""),
    "the start of a program": ("exec", lambda _: ""),
    "the log": ("write", lambda world: world.log),
}
# A sweep that waits for ever from then on, with its lock held, as one did that read a hung file of /proc.
STUCK_SWEEP = """
import asyncio, os
from watchdog.sweep.sweeper import Sweeper
real = Sweeper.sweep
async def sweep(self):
    if os.path.exists(os.environ["WORLD"] + "/dead"):
        async with self.lock:
            await asyncio.Event().wait()
    await real(self)
Sweeper.sweep = sweep
import agent_watchdogd, sys
sys.exit(agent_watchdogd.daemon())
"""


@pytest.fixture
def world() -> Iterator[World]:
    yield from make_world()


def hang(world: World, hanging: Hanging, kind: str) -> None:
    """It begins, and the daemon is in such a call: an agent is registered, ends, and has a hook."""
    call, path = HANGS[kind]
    hanging.begin(call, path(world))
    world.run("late", "true", options=("--temp-dir", "auto"))
    hanging.wait_met(call)


def ends(world: World, code: int, limit: float) -> float:
    """It ends by that status, within so many seconds; after how many."""
    assert world.daemon is not None
    began = time.monotonic()
    try:
        assert world.daemon.wait(limit + MARGIN) == code, world.log.read_text()[-3000:]
    except subprocess.TimeoutExpired:
        pytest.fail(f"it lives {limit + MARGIN:g} s later:\n{world.log.read_text()[-2000:]}")
    return time.monotonic() - began


def starts_again(world: World) -> None:
    """Without the library, so nothing hangs for this one."""
    world.configure()
    world.start()
    assert world.stop() == 0


def terminate(world: World) -> None:
    assert world.daemon is not None
    world.daemon.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("kind", HANGS)
def test_sigterm_is_obeyed_whatever_hangs(world: World, kind: str) -> None:
    """Worked at f87b3bd for all but the plain NSS: alive 26 s after SIGTERM."""
    world.configure(log={"file": str(world.log)})
    hanging = Hanging(world.dir)
    hanging.start(world)
    hang(world, hanging, kind)
    terminate(world)
    ends(world, 0, LIMIT)
    starts_again(world)


@pytest.mark.parametrize("kind", [None, "the state directory", "NSS for groups", "the start of a program", "the log"])
def test_a_dead_scheduler_ends_it_whatever_hangs(world: World, kind: str | None) -> None:
    """Worked at f87b3bd, with nothing else that hangs too: `scheduler.dead` was said, and its end waited for the sweep.

    70, 30 s after the last sweep and within the limit of an end.
    """
    hanging = Hanging(world.dir)
    hanging.start(world, daemon=(sys.executable, "-c", STUCK_SWEEP))
    if kind is not None:
        hang(world, hanging, kind)
    (world.dir / "dead").touch()
    ends(world, 70, DEAD + 10 + LIMIT)  # 10: until the sweep that waits for the registry has ended
    starts_again(world)


def test_a_loop_that_stands_still_ends_it(world: World) -> None:
    """Worked at f87b3bd: who was to notice a dead scheduler was the loop itself."""
    hanging = Hanging(world.dir)
    hanging.start(world)
    hanging.begin("loop")
    hanging.wait_met("loop")
    ends(world, 70, LOOP_LIMIT + 5)
    assert "MainThread" in str(next(e for e in world.events() if e["event"] == "scheduler.dead")["waiting_for"])
    starts_again(world)


def test_sigterm_is_obeyed_by_a_loop_that_stands_still(world: World) -> None:
    """Worked at f87b3bd: the handler in Python never ran. What it waits for is said."""
    hanging = Hanging(world.dir)
    hanging.start(world)
    hanging.begin("loop")
    hanging.wait_met("loop")
    terminate(world)
    took = ends(world, 0, LIMIT + 5)
    assert took > 1
    assert "MainThread" in str(next(e for e in world.events() if e["event"] == "stop.overdue")["waiting_for"])
    starts_again(world)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_more_signals_while_it_stops_change_nothing(world: World, number: signal.Signals) -> None:
    """Neither a longer nor another end, and no traceback."""
    hanging = Hanging(world.dir)
    hanging.start(world)
    hang(world, hanging, "the state directory")
    terminate(world)
    world.wait_event("daemon.stopping")
    assert world.daemon is not None
    began = time.monotonic()
    while world.daemon.poll() is None and time.monotonic() - began < LIMIT + MARGIN:
        with suppress(ProcessLookupError):
            world.daemon.send_signal(number)
        time.sleep(0.05)
    assert world.daemon.poll() == 0
    assert "Traceback" not in world.log.read_text()
    starts_again(world)


@pytest.mark.parametrize(
    ("call", "path"),
    [
        ("path", "s/registry.db"),
        ("fsync", "s"),
        ("path", "r"),
        ("path", "config.toml"),
        ("nss", ""),
        ("path", "/etc/machine-id"),
    ],
)
def test_sigterm_is_obeyed_by_a_start_that_hangs(world: World, call: str, path: str) -> None:
    """Worked at f87b3bd for the registry: `store.open` ran in a thread that was joined. 0, or dead by it."""
    world.configure(control={"admin_group": "root"})
    hanging = Hanging(world.dir)
    hanging.begin(call, path if path.startswith("/") else path and world.dir / path)
    hanging.start(world, wait=False)
    hanging.wait_met(call)
    terminate(world)
    assert world.daemon is not None
    assert world.daemon.wait(LIMIT + MARGIN) in (0, -signal.SIGTERM), world.log.read_text()[-2000:]
    hanging.take_away()
    starts_again(world)


def test_the_starter_of_a_daemon_that_hangs_can_be_interrupted(world: World) -> None:
    """`--daemonize` waits for a registry that hangs: Ctrl-C ends the starter, SIGTERM the daemon, which tells it so."""
    hanging = Hanging(world.dir)
    hanging.begin("fsync", world.state)
    with subprocess.Popen(
        ["env", *hanging.words, str(BIN / "agent-watchdogd"), "--config", str(world.config), "--daemonize"],
        env=world.environ,
        stderr=subprocess.PIPE,
        text=True,
    ) as starter:
        hanging.wait_met("fsync")
        pid = int(wait_for(lambda: (world.runtime / "agent-watchdog.pid").read_text(), "its pid"))
        os.kill(pid, signal.SIGTERM)
        assert starter.wait(LIMIT + MARGIN) == 70
        assert starter.stderr is not None
        assert "ended before it was ready" in starter.stderr.read()
    starts_again(world)


@pytest.mark.parametrize(
    "command", [("agent-watchdogd", "--check"), ("agent-watchdogd",), ("agent-watchdog", "doctor")]
)
def test_a_file_that_hangs_is_named_in_time(world: World, command: tuple[str, ...]) -> None:
    """`--check`, the start and `doctor` end, and name the file."""
    hanging = Hanging(world.dir)
    hanging.begin("path", world.config)
    began = time.monotonic()
    done = subprocess.run(
        ["env", *hanging.words, str(BIN / command[0]), *command[1:], "--config", str(world.config)],
        env=world.environ,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
    )
    assert time.monotonic() - began < 2 * PATIENCE + MARGIN
    assert done.returncode == (1 if "doctor" in command else 75)
    assert f"no answer within {PATIENCE:g} s: {world.config}" in done.stdout + done.stderr


def test_a_terminal_that_takes_nothing_keeps_nobody(world: World) -> None:
    """The invitation and the last flush go to a pipe that is full."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    with world.log.open("ab") as log:
        world.daemon = subprocess.Popen(
            [str(BIN / "agent-watchdogd"), "--config", str(world.config)],
            env=world.environ,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=log,
            start_new_session=True,
        )
    os.close(writing)
    world.wait_event("daemon.ready")
    wait_for(lambda: world.json("status")["last_sweep"], "a sweep")
    terminate(world)
    ends(world, 0, LIMIT)
    os.close(reading)
