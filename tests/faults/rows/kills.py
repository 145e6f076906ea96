"""Agents that do not want to end: each is ended whole, in time, and nobody else."""

from functools import partial
from statistics import median

from tests.faults.private import DEAF, UP, between, inside, left, running, start
from tests.faults.table import Row, Run
from tests.tables import FULL

FOREVER = "\nwhile True: time.sleep(1000)\n"

# -- those that fork

SAVER = f"""
def save(*_):
    {DEAF.strip()}
    for _ in range(20):
        subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    open("saved", "w").close()
signal.signal(signal.SIGTERM, save)
{UP}{FOREVER}"""


def savers(run: Run, *, by_run: bool) -> None:
    """Its handler starts 20 children and one in a session of its own, all deaf; then it goes on."""
    for _ in range(run.times):
        with running() as world:
            start(world, "saver", SAVER, by_run=by_run)
            world.cli("kill", "saver")
            assert (world.dir / "saved").exists()
            assert left(world) == []
            assert world.agents()["saver"]["status"] == "killed"
    run.note("0 survivors")


def bomb(run: Run, *, by_run: bool) -> None:
    """In a pid namespace, below a limit of its own."""
    found = inside("bomb", run.times, "run" if by_run else "register", pids=400)
    survivors = sum(one["survivors"] + one["inside"] for one in found)
    assert survivors == 0
    run.note("0 survivors")
    run.within(median(one["after_grace"] for one in found), 1.0, "from the grace's end to the proof")


# -- many at once

GRACE = 30.0 if FULL else 10.0


def stubborn(run: Run) -> None:
    """All ordered to end by one call."""
    with running(kill={"grace_seconds": GRACE}) as world:
        names = [f"s{number}" for number in range(100)]
        for name in names:
            world.registered(name, "sh", "-c", "trap '' TERM; sleep 1000 & wait")
        world.cli("kill", *names)
        assert left(world) == []
        told = world.events()
        ends = [event for event in told if event["event"] == "kill.finished"]
        took = between(next(event for event in told if event["event"] == "kill.requested"), ends[-1])
        assert len(ends) == 100
    run.within(took - GRACE, 0.15 * GRACE, f"from the grace's end ({GRACE:g} s) to the last proof")


ROWS = [
    Row(
        "fork bomb, started by `run`",
        "100 processes that fork without pause and ignore TERM, below a pids limit",
        "0 survivors, proved within 1 s after the grace",
        partial(bomb, by_run=True),
        runs=20,
        least=3,
        root=True,
        limit=400,
    ),
    Row(
        "fork bomb, only registered",
        "the same without a cgroup of its own",
        "0 survivors, proved within 1 s after the grace",
        partial(bomb, by_run=False),
        runs=20,
        least=3,
        root=True,
        limit=400,
    ),
    Row(
        "TERM handler that forks, started by `run`",
        "it starts 20 deaf children and a deaf saver in a session of its own, and goes on",
        "0 survivors",
        partial(savers, by_run=True),
        runs=20,
        limit=400,
    ),
    Row(
        "TERM handler that forks, only registered",
        "the same without a cgroup of its own",
        "0 survivors",
        partial(savers, by_run=False),
        runs=20,
        limit=400,
    ),
    Row(
        "100 stubborn agents at once",
        "100 agents with a child each ignore TERM; one order for all",
        "all dead within 1.15 x one grace",
        stubborn,
        limit=300,
    ),
]
