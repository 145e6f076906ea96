"""Races of the kill: a beat at every point, two daemons at once, and whatever comes to a random mind."""

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.crash.beats import interleave
from tests.faults.crash.own import own_daemon
from tests.faults.crash.pair import rounds
from tests.faults.model.machine import Families, forget_template
from tests.faults.table import Row, Run
from tests.tables import FULL

PAIRS = 4  # of two daemons at once: most of a round is waiting


def beats_at_every_point(run: Run) -> None:
    """Half of them datagrams, half words of the control socket; the points evenly over the whole way."""

    async def all_of_them(directory: Path) -> None:
        killed = late = 0
        async with own_daemon(directory) as daemon:
            lines = (await interleave(daemon, 0, word=False)).lines
            for number in range(run.times):
                at = 1 + int((number + run.random.random()) * 1.02 * lines / run.times)
                marks = await interleave(daemon, at, word=bool(number % 2))
                killed += "signal" in marks.found
                late += marks.too_late
        run.note(
            f"{lines} points; {run.times - killed} spared, {killed} killed, {late} of them beat after the last look"
        )

    with tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp") as directory:
        asyncio.run(all_of_them(Path(directory)))


def two_daemons(run: Run, *, in_postgresql: bool) -> None:
    """One is stopped at an effect, then killed or continued. Each pair has a registry of its own."""
    pairs = PAIRS if FULL else 1
    times = [run.times // pairs + (number < run.times % pairs) for number in range(pairs)]
    urls = [run.fixture("server").database() if in_postgresql else "" for _ in times]
    with ThreadPoolExecutor(pairs) as pool:
        parts = pool.map(rounds, times, [str(run.random.random()) for _ in times], urls)
        found = [one for part in parts for one in part]
    wrong = [str(one) for one in found if one.double or one.early or not one.ended]
    assert not wrong, "\n".join(wrong)
    run.note(f"{len(found)} rounds, {sum(one.killed for one in found)} times it was killed; 0 double actions")


def families(run: Run) -> None:
    """Each example is played to its end by a daemon of its own."""
    limits = settings(
        max_examples=run.times,
        stateful_step_count=20,
        deadline=None,
        database=None,
        phases=tuple(Phase) if FULL else (Phase.generate,),  # to make a failure short takes many minutes
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(seed(run.random.getrandbits(64))(Families), settings=limits)
    finally:
        forget_template()
    run.note(f"{run.times} random stories of 20 steps; each ended as the model says")


ROWS = [
    *(
        Row(
            f"two daemons on one registry in {where}, one stopped",
            "SIGSTOP at a commit, a signal or a hook run, while another takes up and sweeps; then SIGKILL or SIGCONT",
            "the other takes over only when the first is dead; one of the two ends the agent, its hooks and its rows",
            partial(two_daemons, in_postgresql=where == "PostgreSQL"),
            runs=runs,
            share=100,
            least=6,
            limit=7200,
        )
        for where, runs in (("SQLite", 1000), ("PostgreSQL", 300))
    ),
    Row(
        "a beat at every point between look and signal",
        "at each line that the event loop's thread comes to, a datagram, or a word before the loop's next step",
        "killed if and only if no beat came before the first signal",
        beats_at_every_point,
        runs=1000,
        limit=1200,
    ),
    Row(
        "whatever comes to a random mind",
        "a hypothesis machine with real processes: agents in agents, fork, setsid, double fork, cleared environment,"
        " exit, SIGKILL and SIGSTOP by others, deaf and spared programs, beats, sweeps, orders one over another",
        "who must die by a model of membership dies, everybody else lives, no signal went to others",
        families,
        runs=300,
        share=40,
        limit=1800,
    ),
]
