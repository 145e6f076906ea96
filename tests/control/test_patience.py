"""How long an answer waits for the cleanup of who is dead."""

from watchdog.control.patience import OTHERS, OWN, Patience, what_goes_on
from watchdog.core.peer import Peer

ME, OTHER = 1000, 1001


def test_one_that_took_all_the_time_leaves_none_for_those_after_it() -> None:
    """Of its kind: others' agents use up nothing of the time for one's own."""
    patience = Patience(Peer(ME, ME, 1))
    assert (patience.for_cleanup(ME), patience.for_cleanup(OTHER)) == (OWN, OTHERS)
    patience.heard([{"owner_uid": OTHER, "success": True}, {"owner_uid": ME, "success": True}])
    assert (patience.for_cleanup(ME), patience.for_cleanup(OTHER)) == (OWN, OTHERS)
    patience.heard([{"owner_uid": OTHER, "success": True, "cleanup_left": []}])
    assert (patience.for_cleanup(ME), patience.for_cleanup(OTHER)) == (OWN, 0.0)


def test_what_is_left_is_named_where_it_is_known() -> None:
    assert what_goes_on({"cleanup_left": ["a", "b"]}, "x") == "its cleanup goes on (a, b): agent-watchdog why x"
    assert what_goes_on({"cleanup_left": []}, "x@h") == "its cleanup goes on: agent-watchdog why x@h"
