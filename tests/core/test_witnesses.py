"""What one agent's beats say about another's silence."""

from datetime import timedelta

import pytest

from watchdog.core.witnesses import Witness, comes_back, cut_off, heard

AFTER = timedelta(seconds=120)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def witness(quiet: float, pause: float | None = 60, age: float = 3600, returned: float | None = None) -> Witness:
    known, back = (None if one is None else seconds(one) for one in (pause, returned))
    return Witness(0, seconds(quiet), AFTER, seconds(age), known, back)


def test_a_silent_agent_was_cut_off_at_the_latest_when_its_next_beat_was_due() -> None:
    """By its interval and a sixteenth of its limit; by half of the limit if its interval is unknown."""
    assert cut_off(witness(130)) == seconds(130 - 60 - 7.5)
    assert cut_off(witness(130, pause=None)) == seconds(130 - 60 - 7.5)
    assert cut_off(witness(130, pause=10)) == seconds(130 - 10 - 7.5)
    assert cut_off(witness(130, pause=119)) == seconds(10)  # never later than its limit allows


def test_right_after_another_agents_kill_more_time_is_allowed() -> None:
    """An outage may hit one agent after the other."""
    assert cut_off(witness(130), again=True) == seconds(130 - 60 - 30)


def test_an_agent_that_beats_rarely_comes_back_late() -> None:
    """Each by its own interval, and none later than its limit."""
    assert comes_back(witness(0, pause=20)) == seconds(27.5)
    assert comes_back(witness(0, pause=119)) == AFTER


@pytest.mark.parametrize(
    ("other", "was"),
    [
        (witness(10), True),
        (witness(61), True),
        (witness(63), False),  # no beat since then
        (witness(10, returned=10), False),  # only just back: the silent one is given its interval too
        (witness(10, returned=68), True),
        (witness(40, age=40), None),  # it was registered later
        (witness(30, age=40), True),  # and has beaten since
        (Witness(0, seconds(400), seconds(900), seconds(3600), seconds(300)), None),  # too rare to wait for
    ],
)
def test_another_agent_was_heard_since_or_not_or_is_no_evidence(other: Witness, was: bool | None) -> None:
    silent = witness(130)
    assert heard(other, silent, cut_off(silent)) is was
