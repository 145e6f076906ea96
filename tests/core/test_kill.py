"""The steps of a kill request, as stored in its row."""

import pytest

from watchdog.core.kill import KillStep
from watchdog.core.ladder import Move


def test_every_move_that_signals_is_a_step_of_the_same_name() -> None:
    """A later daemon reads from the row what this one was about to do."""
    looks = {Move.WAIT, Move.LOOK, Move.VERIFIED, Move.GIVE_UP}
    assert {move.value for move in set(Move) - looks} == {step.value for step in list(KillStep)[5:-1]}


@pytest.mark.parametrize(
    ("stored", "step"),
    [(None, KillStep.REQUESTED), ("", KillStep.REQUESTED), ("keys", KillStep.KEYS), ("cleanup", KillStep.CLEANUP)],
)
def test_a_row_says_how_far_its_order_has_come(stored: str | None, step: KillStep) -> None:
    """Each stored text maps to its step."""
    assert KillStep.of(stored) is step


def test_an_unknown_step_may_have_been_a_signal() -> None:
    """An edited row, or another version's: a daemon that resumes it must not withdraw it as if nothing had happened."""
    assert KillStep.of("term") is KillStep.TERM_ALL
