"""The owner of an agent, by the four uids of its process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.core.ownership import Dropped, Owned, Uids, Untouchable, ownership

U, V = 1000, 2000
SAME = "same"
DROPPED = "dropped"
UNTOUCHABLE = "untouchable"


@pytest.mark.parametrize(
    ("owner", "uids", "meaning"),
    [
        (U, (U, U, U, U), SAME),
        (U, (U, 0, 0, 0), UNTOUCHABLE),  # a setuid-root program has started (passwd, chfn)
        (U, (0, 0, 0, 0), UNTOUCHABLE),  # it has become root entirely (sudo)
        (U, (U, U, 0, U), UNTOUCHABLE),  # can become root again at will
        (U, (U, U, U, 0), UNTOUCHABLE),
        (U, (0, U, U, U), UNTOUCHABLE),
        (U, (V, V, V, V), UNTOUCHABLE),  # su: never from user to user
        (U, (U, V, V, V), UNTOUCHABLE),
        (0, (0, 0, 0, 0), SAME),
        (0, (U, U, U, U), DROPPED),  # gosu, setpriv
        (0, (0, U, 0, U), UNTOUCHABLE),  # seteuid(2): can become root again at will
        (0, (U, U, 0, U), UNTOUCHABLE),
        (0, (U, V, V, V), UNTOUCHABLE),  # no longer root's, and not entirely one user's
    ],
)
def test_table(owner: int, uids: tuple[int, int, int, int], meaning: str) -> None:
    """Only a drop of all four uids to one user changes the owner."""
    match ownership(owner, Uids(*uids)):
        case Owned.SAME:
            assert meaning == SAME
        case Dropped(uid):
            assert (meaning, uid) == (DROPPED, uids[0])
        case Untouchable(why):
            assert meaning == UNTOUCHABLE
            assert f"its owner is uid {owner}" in why


def test_reasons_name_the_uids() -> None:
    """They show whether it is sudo, su or a setuid program."""
    assert str(Uids(U, 0, 0, 0)) == "real uid 1000, effective 0, saved 0, file system 0"
    assert str(Uids(V, V, V, V)) == "uid 2000"


SOME = st.sampled_from([0, U, V, 65534, 2**32 - 2])
FOUR = st.builds(Uids, SOME, SOME, SOME, SOME)


@given(SOME, st.lists(FOUR, max_size=12))
def test_no_run_of_uids_changes_an_owner_twice(first: int, looks: list[Uids]) -> None:
    """Whatever uids a process has, in any order: never to root, never between users, at most one drop."""
    owner, drops = first, 0
    for uids in looks:
        seen = ownership(owner, uids)
        if isinstance(seen, Dropped):
            assert owner == 0 != seen.uid
            assert uids == Uids(seen.uid, seen.uid, seen.uid, seen.uid)
            owner, drops = seen.uid, drops + 1
        else:
            assert (seen is Owned.SAME) == ({uids.real, uids.effective, uids.saved, uids.filesystem} == {owner})
    assert drops <= (first == 0)
    assert owner == first or first == 0


@given(FOUR)
def test_a_daemon_that_was_restarted_sees_no_second_drop(uids: Uids) -> None:
    """Only the owner has to be stored: once it is a user, it never changes."""
    assert not isinstance(ownership(U, uids), Dropped)
