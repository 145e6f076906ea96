"""A number that has been reused by another process: nobody is signalled in error."""

import pytest

from tests.faults.private import inside
from tests.faults.table import Row, Run
from watchdog.processes import identity as identities


def reused(run: Run, mode: str) -> dict[str, int]:
    found: dict[str, int] = inside("reuse", run.times, mode)
    run.note(f"{found['same_tick']} of the same tick, {found['wrong']} wrong signals")
    assert found["reused"] == run.times
    assert found["wrong"] == found["sent"] == 0
    return found


def with_inodes(run: Run) -> None:
    if not identities.pidfd_inodes_work():
        pytest.skip("this kernel has no pidfs (>= 6.9)")
    found = reused(run, "pidfs")
    assert (found["gone"], found["pinned"]) == (run.times, 0)
    assert found["same_tick"]


def unpinned(run: Run) -> None:
    found = reused(run, "bare")
    run.note(f"{found['unpinned']} refused as not pinned, {found['gone']} gone")
    assert found["unpinned"] == found["same_tick"] > 0
    assert found["gone"] == run.times - found["same_tick"]


def registered(run: Run) -> None:
    found = reused(run, "registered")
    assert (found["gone"], found["same_tick"], found["pinned"]) == (run.times, 0, 0)


def hostile(run: Run) -> None:
    found = inside("hostile", run.times, run.random.randrange(2**32))
    run.note(f"{found['kinds']} kinds of refusal, {found['dead'] + found['hit']} signals")
    assert (found["dead"], found["hit"]) == (0, 0)
    assert found["examples"] >= run.times


FORCED = "ns_last_pid in a pid namespace of its own"
ROWS = [
    Row(
        "a pid used again, pidfd inodes known",
        FORCED,
        "nobody is signalled, also where the next one started in the same tick",
        with_inodes,
        runs=10_000,
        root=True,
        limit=300,
    ),
    Row(
        "a pid used again, no inodes, not pinned",
        f"{FORCED}, pidfd inodes forced off",
        "another tick: gone; the same tick: refused, as it may be another",
        unpinned,
        runs=10_000,
        root=True,
        limit=300,
    ),
    Row(
        "a pid used again, no inodes, registered before",
        f"{FORCED}, pidfd inodes forced off",
        "gone each time: it is registered once its tick is over, so nobody can have the same",
        registered,
        runs=10_000,
        root=True,
        limit=600,
    ),
    Row(
        "a hostile identity",
        "any host, boot, pid, tick, inode and signal (hypothesis) to the one send, in a pid namespace of canaries",
        "refused or gone: no canary gets a signal",
        hostile,
        runs=10_000,
        root=True,
        limit=600,
    ),
]
