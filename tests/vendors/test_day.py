"""A day in the life: nobody is killed wrongly, and no stall is missed: `make day SEED=N MINUTES=30`."""

import os
import random

import pytest

from tests.vendors.day import day, play, story
from tests.vendors.programs import PINNED, versions

MINUTES = float(os.environ.get("MINUTES", "30"))
pytestmark = [
    pytest.mark.day,
    pytest.mark.timeout(MINUTES * 60 + 2400),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a host's daemon and another uid's"),
]


def test_a_day_in_the_life() -> None:
    """Twenty sessions, two daemons, operators; what is off the diagonal is told with its whole story."""
    there = [version for version in versions() if PINNED in version.why and not version.lacks]
    assert len({version.vendor for version in there}) == 4, "not all four programs are there: make vendors"
    seed = os.environ.get("SEED") or str(random.SystemRandom().randrange(10**6))
    print(f"SEED={seed}", flush=True)
    with day(there, seed, MINUTES) as host:
        ledger = play(host)
        print("\n".join(story(host)), flush=True)
    wrong = [f"{one.agent}, {one.situation}:\n{one.why}" for one in ledger.wrong]
    assert not wrong, "\n\n".join(wrong)
    assert not ledger.undecided, "who still waits at the end may wait for a stall that is missed"
    assert len(ledger.verdicts) > len(ledger.broken), "more broke off than was judged"
