"""Chance, and the seed that it comes from: what a scene draws is the same in each worker, and can be played again.

`VERDICTS_SEED` is printed at the end of a run, and given it plays the same scenes.
"""

import os
import random
from collections import Counter
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
    sums: dict[str, Counter[int]] = {}
    for outcome in ("passed", "failed"):
        for report in stats.get(outcome, []):
            facts = dict(getattr(report, "user_properties", ()))
            if "drawn" in facts:
                kind, _, *counts = facts["drawn"]
                sums.setdefault(kind, Counter()).update(dict(enumerate(counts)))
    found = []
    for kind, one in sorted(sums.items()):
        counts = f"{one[0]:5} died rightly  {one[1]:3} missed  {one[2]:3} wrongly  {one[3]:5} lived rightly"
        found.append(f"{kind:9} {counts}  {one[4]:3} wrong, early or late")
    return [*found, f"{NAME}={seed()}"] if found else []
