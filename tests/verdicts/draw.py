"""Chance, and the seed that it comes from: what a scene draws is the same in each worker, and can be played again.

`VERDICTS_SEED` is printed at the end of a run, and given it plays the same scenes.
"""

import os
import random
from typing import Any

NAME = "VERDICTS_SEED"


def plant() -> None:
    """Draw the seed of this run, unless it was given; before any worker starts."""
    os.environ.setdefault(NAME, str(random.SystemRandom().randrange(10**6)))


def seed() -> str:
    """Of this run; without a run of tests (a module that is only read) always the same."""
    return os.environ.get(NAME, "0")


def chance(of: str) -> random.Random:
    """What that scene draws from."""
    return random.Random(f"{seed()} {of}")


def told(stats: dict[str, list[Any]]) -> list[str]:
    """The confusion matrix of all agents that were drawn, by kind, with the seed."""
    found = []
    for outcome in ("passed", "failed"):
        for report in stats.get(outcome, []):
            facts = dict(getattr(report, "user_properties", ()))
            if "drawn" in facts:
                kind, _, killed, missed, wrongly, lived, wrong = facts["drawn"]
                counts = f"{killed:5} died rightly  {missed:3} missed  {wrongly:3} wrongly  {lived:5} lived rightly"
                found.append(f"{kind:8} {counts}  {wrong:3} wrong, early or late")
    return [*sorted(found), f"{NAME}={seed()}"] if found else []
