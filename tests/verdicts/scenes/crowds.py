"""Many at once, a registry that is away: where the fault may be ours nobody is ended, and that ends by itself."""

from collections.abc import Mapping
from dataclasses import replace

from tests.verdicts.hours import BEAT, Hours, Spoken, every, scene
from tests.verdicts.scenes.an_hour import AFTER, CONFIRMED, dies, lease, lives, state
from tests.verdicts.table import EXPIRED, LINGERING, NEVER_STARTED

FELL, LENGTH = 300.0, 1800.0
LATER = 40.0  # so long one that beats each 30 s is waited for when others are back: its beat may come later than theirs
HELD = 900.0  # seconds that a hold of our own lasts at most, in the shipped file
TOLD: Mapping[str, int] = {"agent.stalled": 1, "kill.held": 1}


def of_twelve(row: Spoken, count: int = 12) -> Spoken:
    return replace(row, count=count)


def others(count: int, what: str) -> Spoken:
    return of_twelve(lives("others", f"{what}: those that beat", every(30, LENGTH)), count)


LIFTED = FELL + AFTER + 180


def lifted(hours: Hours) -> None:
    """An operator knows better: `unhold` ends the hold of a mass stall."""
    hours.at(LIFTED, lambda: hours.ask("POST", "/v1/unhold", {"targets": []}))


async def holding(hours: Hours) -> None:
    """One of them is held by name; that is another hold."""
    status, answer = await hours.ask("POST", "/v1/hold", {"targets": ["held"], "reason": "debugging"})
    assert status == 200, answer
    lifted(hours)


BACK = "12 of 20 fall silent for ten minutes"
STAY = "12 of 20 fall silent for ever"
FREED = "12 of 20 fall silent, an operator unholds after 3 min"
FEW = "12 of 20 fall silent, 10 of them for ten minutes"
SLOW = "6 of 8 promise a heartbeat that comes after ten minutes"
OLD = "4 have been silent for half an hour, and their ladder ends nobody"
START, PROMISE = 300.0, {"stall_after_seconds": 120}
SILENT = every(30, FELL)
AGAIN = every(30, LENGTH, start=FELL + 600)
MASS = [
    scene(
        "12 of 20 come back",
        LENGTH,
        [
            of_twelve(lives("fallen", f"{BACK}: they", SILENT, AGAIN, told=TOLD)),
            others(6, BACK),
            lives("idle", f"{BACK}: an idle one", [(0, BEAT), (60, state("idle"))]),
            dies(
                "ttl",
                f"{BACK}: its 15 min to live end",
                900,
                every(30, LENGTH),
                right=EXPIRED,
                slack=11,
                body={"ttl_seconds": 900},
            ),
            dies("finished", f"{BACK}: one that said done", 720, [(660, state("done"))], right=LINGERING, slack=11),
        ],
    ),
    scene(
        "12 of 20 stay silent",
        LENGTH + 600,
        [
            of_twelve(
                dies(
                    "fallen",
                    f"{STAY}: each, after 15 min, 10 a minute",
                    FELL + AFTER + HELD,
                    SILENT,
                    slack=60 + 2 * CONFIRMED,
                    told={"agent.stalled": 1},
                )
            ),
            of_twelve(lives("others", f"{STAY}: those that beat", every(30, LENGTH + 600)), 8),
        ],
    ),
    scene(
        "12 of 20 and unhold",
        LENGTH,
        [
            of_twelve(dies("fallen", f"{FREED}: each, 10 a minute", LIFTED, SILENT, slack=60 + 2 * CONFIRMED)),
            of_twelve(lives("others", f"{FREED}: those that beat", every(30, LENGTH)), 7),
            lives("held", f"{FREED}: a mute one that he still holds", SILENT, told={"kill.held": 1}),
        ],
        holding,
    ),
    scene(
        "10 of 12 come back",
        LENGTH,
        [
            of_twelve(lives("fallen", f"{FEW}: they", SILENT, AGAIN), 10),
            of_twelve(dies("mute", f"{FEW}: the other two", FELL + 600, SILENT, slack=CONFIRMED + LATER), 2),
            others(8, FEW),
        ],
    ),
    scene(
        "6 of 8 start late",
        LENGTH + 600,
        [
            of_twelve(lives("slow", f"{SLOW}: they", every(30, LENGTH + 600, start=600), body=PROMISE), 6),
            of_twelve(lives("others", f"{SLOW}: those that beat", every(30, LENGTH + 600)), 2),
        ],
    ),
    scene(
        "6 of 8 never start",
        LENGTH,
        [
            of_twelve(
                dies(
                    "never",
                    "6 of 8 promise a heartbeat that never comes: each, after 15 min",
                    START + HELD,
                    right=NEVER_STARTED,
                    slack=60 + 2 * CONFIRMED,
                    body=PROMISE,
                ),
                6,
            ),
            of_twelve(
                lives("others", "6 of 8 promise a heartbeat that never comes: those that beat", every(30, LENGTH)), 2
            ),
        ],
    ),
    scene(
        "4 of 7 are silent for long",
        2 * LENGTH,
        [
            of_twelve(lives("old", f"{OLD}: they", SILENT, body={"type": "warned"}), 4),
            dies("mute", f"{OLD}: one that falls silent then", LENGTH + 600 + AFTER, every(30, LENGTH + 600)),
            replace(others(2, OLD), says=every(30, 2 * LENGTH)),
        ],
        more='[[policy]]\nmatch = { type = "warned" }\nladder = ["warn"]\n',
    ),
]


def away(hours: Hours) -> None:
    """The registry's file is not at its place for ten minutes."""
    file, aside = hours.directory / "registry.db", hours.directory / "aside"

    def back() -> None:
        file.unlink(missing_ok=True)
        aside.rename(file)

    hours.at(FELL, lambda: file.rename(aside) and None)
    hours.at(FELL + 600, back)


AWAY = "the registry is away for ten minutes"
SCENES = [
    *MASS,
    scene(
        "registry away",
        LENGTH,
        [
            lives("beats", f"{AWAY}: beats", every(30, LENGTH), told={"agent.late": 0}),
            lives("leases", f"{AWAY}: on a lease", [(0, lease(LENGTH))]),
            lives("idle", f"{AWAY}: idle", [(0, state("idle"))]),
            lives(
                "comes-back",
                f"{AWAY}: silent meanwhile, then beats",
                every(30, FELL),
                every(30, LENGTH, start=FELL + 590),
            ),
            dies("mute", f"{AWAY}: mute meanwhile", FELL + 600, every(30, FELL + 60), slack=CONFIRMED),
            dies(
                "ttl",
                f"{AWAY}: its time to live ends meanwhile",
                FELL + 600,
                every(30, LENGTH),
                right=EXPIRED,
                slack=CONFIRMED,
                body={"ttl_seconds": 600},
            ),
            dies("muter", f"{AWAY}: mute afterwards", 1200 + AFTER, every(30, 1200)),
        ],
        away,
        tables={"hold": {"mass_stall_count": 1000}},
    ),
]
