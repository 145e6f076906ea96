"""Processes that no signal ends, or that we may not signal: told once, tried again, and closed when they go."""

from functools import partial

import pytest

from tests.cgroups import scratch
from tests.faults.private import UP, cannot_be_ended, inside, is_closed, running, start, temp_dir
from tests.faults.table import Row, Run
from watchdog.processes import cgroups

FOREVER = "\nwhile True: time.sleep(1000)\n"


def freezer(run: Run) -> None:
    """SIGKILL stays pending while it is frozen."""
    if cgroups.version_1("freezer") is None:
        pytest.skip("this kernel has no cgroup v1 of freezer mounted")
    for _ in range(run.times):
        with scratch("freezer") as cold, running(kill={"grace_seconds": 0.5, "verify_seconds": 2}) as world:
            pid = start(world, "cold", UP + FOREVER, options=("--temp-dir", temp_dir(world)))
            (cold / "cgroup.procs").write_text(str(pid))
            (cold / "freezer.state").write_text("FROZEN")
            reason = cannot_be_ended(world, "cold", pid, "d_state", "frozen")
            (cold / "freezer.state").write_text("THAWED")
            is_closed(world, "cold")
    run.note(f"reason {reason}")


def disk(run: Run) -> None:
    found = inside("disk", run.times)
    run.note(f"reason {found['reason']}")


def changed(run: Run, *, mode: str) -> None:
    for _ in range(run.times):
        inside("changed", mode)


def setuid(run: Run) -> None:
    for _ in range(run.times):
        inside("setuid")


ROWS = [
    Row(
        "a setuid-root helper",
        "started by an agent of a daemon that is not root's: one keeps its caller's real uid, one becomes root whole",
        "the first dies; the second: unkillable (not_permitted), closes by itself when it ends",
        setuid,
        root=True,
    ),
    Row(
        "frozen by a v1 freezer",
        "freezer.state FROZEN before the order",
        "unkillable, nothing put in order; closes by itself after the thaw",
        freezer,
        runs=5,
        root=True,
        limit=400,
    ),
    Row(
        "in D state",
        "fsfreeze of the ext4 that it writes to",
        "unkillable, nothing put in order; closes by itself after the thaw",
        disk,
        runs=5,
        root=True,
        limit=400,
    ),
    Row(
        "not ours to signal",
        "a daemon of nobody; the agent takes back root's uid (setresuid)",
        "unkillable (not_permitted), nothing put in order; closes by itself when it ends",
        partial(changed, mode="plain"),
        runs=5,
        root=True,
        limit=300,
    ),
    Row(
        "hidden from us",
        "the same, and /proc with hidepid=2; the daemon is killed and started again",
        "live stays live: not gone, nothing put in order; its end is seen",
        partial(changed, mode="hidden"),
        runs=5,
        root=True,
        limit=300,
    ),
]
