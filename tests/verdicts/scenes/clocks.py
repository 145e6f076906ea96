"""Clocks that are set, machines that sleep, a daemon that does not watch: none of them makes anybody stale."""

from collections.abc import Callable
from typing import Any

from tests.verdicts.hours import BEAT, Hours, Spoken, every, scene
from tests.verdicts.scenes.an_hour import dies, lease, lives, state, tool
from tests.verdicts.table import EXPIRED, Scene

HOUR, LENGTH, WHEN = 3600.0, 1200.0, 300.0
AFTER = 120.0


def everybody(
    what: str, *, asleep: float = 0.0, counted: float = 0.0, slow: float = 5.0, fresh: bool = False
) -> list[Spoken]:
    """Who must live through it, who must be ended all the same, and when.

    `asleep`: seconds that nobody lived through, on the monotonic clock, of which `counted` make silence longer. `slow`:
    seconds that somebody needs until he beats again. `fresh`: everybody gets one fresh limit (case C3).
    """
    later, awake = asleep - counted, WHEN + asleep

    def words(seconds: float, word: str = BEAT) -> list[Any]:
        return [(t if t <= WHEN else t + asleep, word) for t, _ in every(seconds, LENGTH)]

    return [
        lives("beats", f"{what}: beats", words(30), told={"agent.late": 0}),
        lives(
            "late",
            f"{what}: silent for 110 s of 120 when it came, beats {slow:g} s later",
            [*every(30, WHEN - 110, start=10), *every(30, LENGTH + asleep, start=awake + slow)],
        ),
        lives("leases", f"{what}: on a lease of 40 min", [(0, lease(2400))]),
        lives("builds", f"{what}: runs a tool declared with 40 min", [(0, tool(2400))]),
        lives("idle", f"{what}: idle", [(0, state("idle"))]),
        lives("ttl", f"{what}: has half an hour to live", words(30), body={"ttl_seconds": 1800}),
        lives("never", f"{what}: starts, and promised a beat in half an hour", [], body={"stall_after_seconds": 1800}),
        dies(
            "mute",
            f"{what}: mute just before",
            awake + AFTER if fresh else WHEN - 20 + AFTER + later,
            every(20, WHEN - 20),
            slack=31,
        ),
        dies("muter", f"{what}: mute afterwards", 600 + AFTER + asleep, [w for w in words(20) if w[0] <= 600 + asleep]),
        dies(
            "expires",
            f"{what}: its 15 min to live end",
            900 + later,
            words(30),
            right=EXPIRED,
            slack=31,
            body={"ttl_seconds": 900},
        ),
    ]


def when(do: Callable[[Hours], None]) -> Callable[[Hours], None]:
    return lambda hours: hours.at(WHEN, lambda: do(hours))


def step(seconds: float) -> Callable[[Hours], None]:
    """Somebody sets the wall clock."""

    def do(hours: Hours) -> None:
        hours.clock.set += seconds

    return when(do)


def suspend(seconds: float) -> Callable[[Hours], None]:
    """The machine sleeps: CLOCK_MONOTONIC stands still (clock_gettime(2))."""

    def do(hours: Hours) -> None:
        hours.clock.asleep += seconds

    return when(do)


def gap(seconds: float) -> Callable[[Hours], None]:
    """Nobody runs, and the monotonic clock does: a stopped machine, or a stopped daemon with its agents."""

    def do(hours: Hours) -> None:
        hours.clock.ahead += seconds

    return when(do)


def told(name: str, story: Callable[[Hours], None], rows: list[Spoken], seconds: float = LENGTH) -> Scene:
    return scene(name, seconds, rows, story, tables={"hold": {"mass_stall_count": 1000}})


STEPS = {"-1 h": -HOUR, "+1 h": HOUR, "+1 year": 365 * 24 * HOUR}
SCENES = [
    *(told(f"clock {name}", step(seconds), everybody(f"the clock is set {name}")) for name, seconds in STEPS.items()),
    told("suspend", suspend(8 * HOUR), everybody("C3: the machine slept for 8 h", slow=60, fresh=True)),
    told(
        "gap",
        gap(8 * HOUR),
        everybody("C3: all stood still for 8 h", asleep=8 * HOUR, counted=20, slow=60, fresh=True),
        LENGTH + 8 * HOUR,
    ),
]
