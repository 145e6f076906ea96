"""Chance, and the seed that it comes from: what a scene draws is the same in each worker, and can be played again.

`VERDICTS_SEED` is printed at the end of a run, and given it plays the same scenes.
"""

import os
import random

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
