"""What is seen of an agent from outside where the first beat has not come yet, and where children live for moments."""

from tests.verdicts.draw import chance
from tests.verdicts.scenes.everyday import dies, lives
from tests.verdicts.stage import Actor, scene
from tests.verdicts.table import NEVER_STARTED

START = 4.0
PROMISE = {"stall_after_seconds": 2.0}
drawn = chance("activity")


def grows(kind: str) -> dict[str, object]:
    return {"body": {**PROMISE, kind: f"{{directory}}/{kind}-grows"}}


def starting(name: str, situation: str, words: str, **rest: object) -> Actor:
    return lives(name, f"Q2: never beaten, {situation}", words, silent=2.5 * START, **rest)


PACE = f"{drawn.uniform(0.1, 0.45):.2f}"  # seen at one look in two at least: what was seen counts for half a limit
STARTS = [
    starting("log-grows", "its log grows", f"append={PACE}@{{directory}}/log-grows", **grows("log")),
    starting(
        "transcript-grows",
        "its transcript grows",
        f"append={PACE}@{{directory}}/transcript-grows",
        **grows("transcript"),
    ),
    starting("computes", "uses a core", f"children={drawn.uniform(0.02, 0.4):.3f}/0", body=PROMISE),
    dies("idles", "Q2: never beaten, and nothing is seen of it", "sleep", START, right=NEVER_STARTED, body=PROMISE),
    dies(
        "grew",
        "Q2: never beaten, and its log grows no more",
        "append=0.2/5@{directory}/grew",
        START,
        right=NEVER_STARTED,
        body={**PROMISE, "log": "{directory}/grew"},
    ),
]
WORKS = [
    lives("runner", "Q3: children of a quarter of a second use a core", "beat=0.3/3 children=0.25/0", silent=8),
    lives("moments", "Q3: children of a twentieth of a second use a core", "beat=0.3/3 children=0.05/0", silent=8),
    lives(
        "drawn",
        "Q3: short children use a part of a core",
        f"beat=0.3/3 children={drawn.uniform(0.02, 0.5):.3f}/{drawn.uniform(0.0, 0.3):.3f}",
        silent=8,
    ),
    lives(
        "in-run",
        "Q3: short children, below `run`",
        f"beat=0.3/3 children={drawn.uniform(0.02, 0.3):.3f}/0",
        by_run=True,
        silent=8,
    ),
    dies("did", "Q3: its short children are done", "beat=0.3/3 sleep", 2.0),
]
SCENES = [
    scene("starting", STARTS, tables={"stall": {"after_seconds": 2, "start_limit_seconds": START}}),
    scene(
        "short children",
        WORKS,
        tables={"sweep": {"interval_seconds": 1.5}, "stall": {"after_seconds": 3}},
    ),
]
