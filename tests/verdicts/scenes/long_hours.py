"""What takes hours: nights, rate limits, caps, parents. A look each two minutes, silence of four."""

from typing import Any

from tests.verdicts.hours import BEAT, Spoken, every, scene
from tests.verdicts.scenes.an_hour import dies, lease, lives, state, tool
from tests.verdicts.table import EXPIRED

HOUR = 3600.0
LENGTH = 8 * HOUR
AFTER, CONFIRMED = 240.0, 2 * 120 + 1.0
WAIT_LIMIT, BUSY_LIMIT = 6 * HOUR, HOUR  # of the shipped file
YEARS = 10 * 365 * 24 * HOUR
TEN_YEARS = {"after_seconds": YEARS}
TABLES: dict[str, dict[str, float]] = {"sweep": {"interval_seconds": 120}, "stall": {"after_seconds": AFTER}}
# Most of a scene's agents fall silent in the same minute, each for a reason of its own: no mass stall is meant.
EACH_ALONE: dict[str, dict[str, float]] = {"hold": {"mass_stall_count": 1000}}


def over(name: str, situation: str, at: float, *says: Any, **rest: Any) -> Spoken:
    """It is to be ended at that second, by the slower rhythm of these scenes."""
    return dies(name, situation, at, *says, **{"slack": CONFIRMED, **rest})


NIGHT = [
    lives(
        "idle",
        "idle over night",
        [(0, BEAT), (60, state("idle"))],
        told=dict.fromkeys(("agent.needs_human", "agent.late", "agent.stalled", "kill.held"), 0),
    ),
    lives(
        "works-after",
        "idle over night, works in the morning",
        [(60, state("idle"))],
        every(120, LENGTH, start=7 * HOUR),
        told={"agent.late": 0},
    ),
    over(
        "mute-after",
        "idle over night, works in the morning, then mute",
        7 * HOUR + 120 + AFTER,
        [(60, state("idle"))],
        every(120, 7 * HOUR + 120, start=7 * HOUR),
    ),
    lives("prompt", "waits at a permission prompt over night", [(60, state("waiting"))], told={"agent.needs_human": 1}),
    lives("unpromised", "never promised a beat, silent over night", []),
    over(
        "ttl",
        "its four hours to live are over, at a prompt",
        4 * HOUR,
        [(0, state("waiting"))],
        right=EXPIRED,
        body={"ttl_seconds": 4 * HOUR},
    ),
]
LIMITS = [
    lives(
        "limited",
        "B6: waits five hours for its rate limit, then works",
        [(0, lease(5 * HOUR))],
        every(120, LENGTH, start=5 * HOUR),
        told={"agent.late": 0},
    ),
    over(
        "limited-mute",
        "B6: waits two hours for its rate limit, and never works again",
        2 * HOUR + AFTER,
        [(0, lease(2 * HOUR))],
    ),
    over("ten-years", "B6: will be silent for ten years", WAIT_LIMIT + AFTER, [(0, lease(YEARS))]),
    over("ten-years-tool", "runs a tool for ten years", WAIT_LIMIT + AFTER, [(60, tool(YEARS))]),
    over("ten-years-limit", "sets its own limit to ten years", WAIT_LIMIT, [(0, TEN_YEARS)]),
    over("blocked", "blocked by somebody else, for ever", WAIT_LIMIT, [(0, state("blocked"))]),
    over(
        "lease-beaten",
        "a thread beats through its hour's lease, then it is mute",
        2 * HOUR + AFTER,
        [(0, lease(HOUR))],
        every(20, 2 * HOUR),
    ),
]
CHILD = "a child agent beats, its parent"


def family(parent: Spoken, *child: Any) -> list[Spoken]:
    """A parent, and its child that says so much and lives."""
    return [parent, lives(f"{parent.name}-child", f"{parent.situation}: the child", *child, parent=parent.name)]


PARENTS = [
    *family(
        lives(
            "works",
            f"{CHILD} is silent for 50 min",
            [(0, BEAT)],
            every(120, LENGTH, start=3000),
            told={"agent.late": 1},
        ),
        every(60, LENGTH),
    ),
    *family(over("busy", f"{CHILD} is silent for ever", AFTER + BUSY_LIMIT, [(0, BEAT)]), every(60, LENGTH)),
    *family(over("idle", "a child agent is idle, its parent is silent", AFTER, [(0, BEAT)]), [(0, state("idle"))]),
    *family(over("quiet", "a child agent never promised a beat, its parent is silent", AFTER, [(0, BEAT)])),
    *family(
        lives(
            "asks",
            "a child waits for a human, its parent is silent for 50 min",
            [(0, BEAT)],
            every(120, LENGTH, start=3000),
        ),
        [(0, state("waiting"))],
    ),
    lives("silent-child", "a parent beats beside its mute child", every(120, LENGTH)),
    over("mute-child", "a mute child, its parent beats", 600 + AFTER, every(60, 600), parent="silent-child"),
]

SCENES = [
    scene("a night", LENGTH, NIGHT, tables=TABLES),
    scene("rate limits and caps", LENGTH, LIMITS, tables=TABLES | EACH_ALONE),
    scene("parents and children", 2 * HOUR, PARENTS, tables=TABLES | EACH_ALONE),
]
