"""Cleanup hooks that do what they like: each ends in time and whole, is judged by its exit, and delays nobody else."""

import asyncio
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil

from tests.faults.private import running
from tests.faults.table import Row, Run
from tests.owner.repositories import context
from tests.world import BIN, World, environ_of, git, make_world, pids_with, wait_for
from watchdog.core.agent import Status
from watchdog.core.hooks import HookOutcome, HookResult, HookSpec
from watchdog.helpers.pool import HelperPool

LIMIT = 1.5  # seconds that a hook is given that would not end by itself
ENOUGH = 60.0  # seconds for one that ends by itself, on a busy machine; whoever waits for a grandchild waits for 600

LEAK = (
    "import os, subprocess, sys; fds = [os.dup(0) for _ in range(500)]; "
    "subprocess.Popen(['sleep', '600'], pass_fds=fds); print(len(os.listdir('/proc/self/fd')))"
)
HUGE = "import json; print(json.dumps({'outcome': 'kept', 'message': 'x' * 5_000_000}))"
FLOOD = "head -c 50000000 /dev/zero | tr '\\0' x; echo over >&2"

DONE, FAILED, TIMEOUT = HookOutcome.DONE, HookOutcome.FAILED, HookOutcome.TIMEOUT
Kind = tuple[tuple[str, ...], HookOutcome, str]
# What it is called -> the command, how it is judged, and a pattern that its message fits.
KINDS: dict[str, Kind] = {
    "ignores TERM": (("sh", "-c", "trap '' TERM HUP INT; while :; do sleep 600; done"), TIMEOUT, "ended after 1.5 s"),
    "forks twice into sessions of its own": (
        ("sh", "-c", "(setsid sh -c 'trap \"\" TERM; setsid sleep 600 & sleep 600' &); sleep 600"),
        TIMEOUT,
        "ended after",
    ),
    "floods its output": (("sh", "-c", FLOOD), DONE, "x{2000}$"),
    "floods its output without end": (("yes",), TIMEOUT, "ended after"),
    "reads its stdin to the end, and on": (
        ("sh", "-c", "cat > /dev/null; cat; read x; echo read all"),
        DONE,
        "read all$",
    ),
    "leaves a grandchild that keeps its pipes (H16)": (("sh", "-c", "sleep 600 & echo done"), DONE, "done$"),
    "leaks descriptors to a grandchild": ((sys.executable, "-c", LEAK), DONE, "50[345]$"),
    "says huge JSON": ((sys.executable, "-c", HUGE), DONE, r'\{"outcome": "kept", "message": "xxx'),
    "says no JSON": (("printf", "%s", '{"outcome": "done"'), DONE, r'\{"outcome": "done"$'),
    "is a missing program": (("/no/such/program",), FAILED, "exit status 127: /no/such/program: No such file"),
    **{
        f"ends with exit status {code}": (("sh", "-c", f"echo no >&2; exit {code}"), FAILED, f"exit status {code}: no$")
        for code in (1, 2, 77, 126, 255)
    },
    "ends by its own KILL": (("sh", "-c", "kill -KILL $$"), FAILED, "signal 9"),
}


def abusive(run: Run, *, command: tuple[str, ...], outcome: HookOutcome, message: str) -> None:
    """As the daemon runs it, in a helper of its own; another owner's hook beside it is done first."""
    for number in range(run.times):
        key = f"{os.getpid()}-{number}-{time.monotonic_ns()}"
        limit = LIMIT if outcome is TIMEOUT else ENOUGH
        result, took, other = asyncio.run(_beside(command, key, limit))
        assert result.outcome is outcome, result
        assert re.match(message, result.message), result.message[:300]
        assert took < LIMIT + ENOUGH, took
        assert other.outcome is DONE
        assert pids_with("AGENT_WATCHDOG_RUN", key) == []


async def _beside(command: tuple[str, ...], key: str, limit: float) -> tuple[HookResult, float, HookResult]:
    them, began = HelperPool(), time.monotonic()
    try:
        bad = asyncio.create_task(them.run_hook(_spec(command, limit), context(run_id=key)))
        other = await them.run_hook(_spec(("true",)), context(run_id=f"{key} beside"))
        result = await bad
        return result, time.monotonic() - began, other
    finally:
        await them.close()


def _spec(command: tuple[str, ...], limit: float = ENOUGH) -> HookSpec:
    return HookSpec("hook", frozenset(Status), command=command, timeout=timedelta(seconds=limit))


def descriptors(run: Run) -> None:
    """Hooks whose grandchildren keep all pipes, one after the other: the daemon's descriptors do not grow."""

    async def story() -> tuple[int, int]:
        them = HelperPool()
        try:
            keeper = _spec(("sh", "-c", "sleep 600 & echo done"))
            assert (await them.run_hook(keeper, context())).message == "done"
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(run.times):
                assert (await them.run_hook(keeper, context())).outcome is DONE
            await asyncio.sleep(0.2)
            return before, len(os.listdir("/proc/self/fd"))
        finally:
            await them.close()

    before, after = asyncio.run(story())
    assert after <= before, (before, after)
    run.note(f"{before} descriptors before, {after} after")


HOOKS = """
[[hook]]
name = "fails"
command = ["/bin/sh", "-c", "exit 1"]
retries = 0
[[hook]]
name = "hangs"
command = ["/bin/sh", "-c", "[ $AGENT_WATCHDOG_ENDED_NAME = first ] || exit 0; trap '' TERM; sleep 600 & sleep 600"]
timeout_seconds = 20
retries = 0
[[hook]]
name = "last"
command = ["/bin/sh", "-c", "echo $AGENT_WATCHDOG_ENDED_NAME >> {seen}"]
"""


def one_hangs(run: Run) -> None:
    """Case H15: one fails, one hangs and forks, one writes; meanwhile a second agent is killed."""
    for _ in range(run.times):
        with running() as world:
            seen = world.dir / "seen"
            with world.config.open("a") as config:
                config.write(HOOKS.replace("{seen}", str(seen)))
            world.stop()
            world.start()
            world.run("first", "sleep", "600")
            world.run("second", "sleep", "600")
            for name in ("first", "second"):
                world.wait_status(name, "running")
            killing = subprocess.Popen([str(BIN / "agent-watchdog"), "kill", "first"], env=world.environ)
            wait_for(lambda: world.count("cleanup.hook_failed", hook="fails") == 1, "the second hook hangs")
            world.cli("kill", "second", check=False)
            assert seen.read_text() == "second\n"  # its hooks did not wait for the one that hangs
            assert killing.wait(100) == 1  # cleanup_failed: it is dead, and its place is not in order
            assert seen.read_text() == "second\nfirst\n"
            runs = {one["hook"]: one["status"] for one in world.story("first")["cleanup"]}
            assert runs == {"fails": "failed", "hangs": "timeout", "last": "done"}
            owner_of_rest = [
                pid for pid in pids_with("WORLD", str(world.dir)) if "AGENT_WATCHDOG_RUN" in environ_of(pid)
            ]
            assert owner_of_rest == []


# -- who opens an owner's paths

OWNER = 23456
FILE_CALL = re.compile(r"^(\d+) +(\w+)\((.*)$")


def opens_no_path_of_an_owner(run: Run) -> None:
    """strace over a whole story of another uid's agent: worktree, temp dir, hooks, an orphan, `reap`."""
    for _ in range(run.times):
        with contextmanager(make_world)() as world:
            calls = _traced_story(world)
        run.note(f"{calls} calls with a path by the daemon, none below the owner's")


def _traced_story(world: World) -> int:
    for path in (world.dir, world.runtime):
        path.chmod(0o711)
    home = world.dir / "home"
    home.mkdir()
    git(home, "init", "-q", "-b", "main", "main")
    git(home / "main", "commit", "-q", "--allow-empty", "-m", "first")
    git(home / "main", "worktree", "add", "-q", "-b", "work", "../tree")
    (home / "temp").mkdir()
    (home / "temp" / ".agent-watchdog").touch()
    for path in [home, *home.rglob("*")]:
        os.chown(path, OWNER, OWNER, follow_symlinks=False)
    home.chmod(0o700)
    with world.config.open("a") as config:
        config.write(
            '[[hook]]\nname = "tree"\nrun = "worktree"\n[[hook]]\nname = "temp"\nrun = "temp_dir"\n'
            f'[[hook]]\nname = "own"\ncommand = ["/bin/sh", "-c", "id -u > {home}/seen"]\n'
        )
    out = world.dir / "strace"
    options = ("-D", "-f", "-qq", "-y", "-s", "300", "-e", "signal=none")
    trace = ("-e", "trace=%file,fchdir,connect,clone,clone3,fork,vfork")
    world.start(prefix=("strace", *options, *trace, "-o", str(out)))
    assert world.daemon is not None
    drop = ("setpriv", f"--reuid={OWNER}", f"--regid={OWNER}", "--clear-groups")
    places = {"worktree": str(home / "tree"), "temp_dir": str(home / "temp"), "beat_file": str(home / "beat")}
    world.registered("theirs", *drop, "sleep", "600", environ={"HOME": str(home)}, **places)
    wait_for(lambda: world.agents()["theirs"]["owner_uid"] == OWNER, "it has dropped to its uid")
    agent_id = str(world.agents()["theirs"]["agent_id"])
    (home / "temp" / ".agent-watchdog").write_text(agent_id)
    world.cli("kill", "theirs")
    world.wait_status("theirs", "killed")
    orphan = world.spawn(*drop, "sleep", "600", AGENT_WATCHDOG_ID=agent_id)
    wait_for(lambda: psutil.Process(orphan.pid).name() == "sleep", "it has dropped too")
    world.cli("reap")
    world.stop()
    assert (home / "seen").read_text() == f"{OWNER}\n"
    assert not (home / "tree").exists()
    assert not (home / "temp").exists()
    assert world.count("kill.finished", name="theirs") == 2
    return _own_calls(out, str(home))


def _own_calls(out: Path, place: str) -> int:
    """How many calls with a path the daemon's own threads made; fails when one leads below `place`."""
    text = out.read_text().splitlines()
    lines = [match.groups() for line in text if (match := FILE_CALL.match(line))]
    daemon, calls, begun = {text[0].split()[0]}, 0, dict[str, str]()
    for line in text:
        tid, _, call = line.partition(" ")
        if "clone" in call and call.endswith("<unfinished ...>"):
            begun[tid] = call
        made = re.search(r"clone3?(?:\(| resumed>).*= (\d+)$", call)
        if made is not None and tid in daemon and "CLONE_THREAD" in begun.pop(tid, "") + call:
            daemon.add(made[1])
    for tid, _, arguments in lines:
        if tid in daemon:
            calls += 1
            assert place not in arguments, f"{tid} {arguments}"
    assert calls > 100
    helpers = sum(place in arguments for tid, _, arguments in lines if tid not in daemon)
    assert helpers > 10, "nobody else looked there either: the test sees nothing"
    return calls


ROWS = [
    *(
        Row(
            f"a hook that {name}",
            "a command hook as the daemon runs it, another owner's beside it",
            f"{outcome}, judged by its own exit, whole tree ended, the other not delayed",
            partial(abusive, command=command, outcome=outcome, message=message),
            runs=5,
            alike=True,
        )
        for name, (command, outcome, message) in KINDS.items()
    ),
    Row(
        "100 hooks whose grandchildren keep their pipes (case H16)",
        "one after the other, `sleep 600 &` with all pipes in each",
        "each done at its own exit, no descriptor more than before",
        descriptors,
        runs=100,
        limit=300,
    ),
    Row(
        "one hook fails, one hangs, a second agent is killed meanwhile (case H15)",
        "a real daemon; the hook that hangs ignores TERM and forks",
        "its tree ends at its limit, the next hook runs, all three are recorded, the second agent waits for nobody",
        one_hangs,
        runs=3,
    ),
    Row(
        "the daemon opens no path of an owner",
        "strace over a story of another uid: worktree, temp dir, beat file, hooks, an orphan, `reap`",
        "every path below the owner's home is opened by his helpers alone",
        opens_no_path_of_an_owner,
        root=True,
        limit=240,
    ),
]
