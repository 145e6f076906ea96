"""Which of two daemons that know an agent owns it: a table, and that both always reach the same answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.core.custody import Custody, DaemonProcess, custody

ROOTS, ANNS, BENS = DaemonProcess(0, 100, 1000), DaemonProcess(1001, 200, 2000), DaemonProcess(1002, 300, 500)
ANN = 1001
OURS, THEIRS = Custody.OURS, Custody.THEIRS


@pytest.mark.parametrize(
    ("what", "ours", "theirs", "held", "ordered", "whose"),
    [
        ("root's daemon learns of one that its owner's holds", ROOTS, ANNS, False, False, THEIRS),
        ("the owner's learns of one that root's holds", ANNS, ROOTS, False, False, THEIRS),
        ("root's holds it, and its owner's says so too", ROOTS, ANNS, True, False, OURS),
        ("the owner's holds it, and root's says so too", ANNS, ROOTS, True, False, THEIRS),
        ("root's learns of one that another user claims", ROOTS, BENS, False, False, OURS),
        ("root's holds one that another user claims", ROOTS, BENS, True, False, OURS),
        ("the owner's holds one that another user claims", ANNS, BENS, True, False, OURS),
        ("root orders something of one that its owner's holds", ROOTS, ANNS, False, True, OURS),
        ("our own claim, heard of ourselves", ANNS, ANNS, True, False, OURS),
        ("two of one user: the older one's", ANNS, DaemonProcess(ANN, 9, 1999), True, False, THEIRS),
        ("two of one user: not the younger one's", ANNS, DaemonProcess(ANN, 9, 2001), True, False, OURS),
        ("two of one tick: the lower pid's", ANNS, DaemonProcess(ANN, 199, 2000), True, False, THEIRS),
    ],
)
def test_whose_an_agent_of_anns_is(
    what: str, ours: DaemonProcess, theirs: DaemonProcess, held: bool, ordered: bool, whose: Custody
) -> None:
    """The table of the module."""
    assert custody(ours, theirs, ANN, held=held, ordered=ordered) is whose, what


daemons = st.builds(DaemonProcess, st.sampled_from([0, ANN]), st.integers(2, 1 << 22), st.integers(0, 1 << 40))


@given(daemons, daemons)
def test_of_two_that_hold_it_exactly_one_keeps_it(one: DaemonProcess, other: DaemonProcess) -> None:
    """Never both, never neither."""
    if one != other:
        answers = {custody(one, other, ANN, held=True), custody(other, one, ANN, held=True)}
        assert answers == {OURS, THEIRS}


@given(daemons, st.integers(1, 1 << 31), st.booleans())
def test_no_other_users_claim_counts(ours: DaemonProcess, uid: int, held: bool) -> None:
    """It neither protects an agent nor takes one over."""
    if uid != ANN:
        assert custody(ours, DaemonProcess(uid, 5, 5), ANN, held=held) is OURS
