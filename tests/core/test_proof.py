"""Case Q9: a relay of processes, each of which starts the next and ends."""

from watchdog.core.proof import OUTRUN, ROW, Looks


def seen(*looks: str) -> Looks:
    """`n`ew somebody, `a`live one that was known, `-` nobody; `~` the same, not whole; `?` the same, one was lost."""
    found = Looks()
    for look in looks:
        found = found.after(new=look == "n", alive=look == "a", whole=look != "~", lost=look == "?")
    return found


def test_of_a_tree_that_begets_nobody_one_look_is_proof() -> None:
    """As ever: the first look finds all of it new, and that it lives."""
    assert seen("n", "a", "-").prove
    assert seen("-").prove
    assert seen("n", "~").prove
    assert not seen("n", "a").prove


def test_a_look_that_finds_nobody_after_one_that_found_new_ones_is_none() -> None:
    """Several in a row are; where others come and go, more of them."""
    relay = ("n", "n", "-", "n", "-")
    assert not seen(*relay).prove
    assert seen(*relay, *["-"] * (ROW - 1)).prove
    assert not seen(*relay, *["~"] * 5).prove
    assert seen(*relay, *["~"] * 3 * ROW).prove


def test_a_look_that_lost_somebody_is_none_even_where_nobody_new_was_found_yet() -> None:
    """Seen at a load of 25: the first look found the main process alone, and missed its relay."""
    assert not seen("n", "?").prove
    assert not seen("n", "?", "-", "-").prove
    assert seen("n", "?", "-", "-", "-").prove
    assert seen("n", *["?"] * 3 * ROW).prove


def test_those_that_replace_themselves_count_as_alive() -> None:
    """Else it would be looked for ever, and nothing be sent."""
    assert not seen("n", *["n"] * OUTRUN).outrun
    assert seen("n", *["n"] * (OUTRUN + 1)).outrun
    assert seen("n", *["n", "-"] * (OUTRUN + 1)).outrun
    assert not seen("n", *["n"] * (OUTRUN + 1), "a").outrun


def test_who_replaced_themselves_until_they_were_killed_are_dead() -> None:
    """Seen on a busy host: all were killed at once, so that no look found one of them alive: `outrun` for ever."""
    relay = ("n", *["n"] * (OUTRUN + 1))
    assert seen(*relay, "-", "-").outrun
    killed = seen(*relay, *["-"] * ROW)
    assert (killed.prove, killed.outrun) == (True, False)
