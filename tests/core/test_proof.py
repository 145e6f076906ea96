"""Case Q9: a relay of processes, each of which starts the next and exits."""

from watchdog.core.proof import OUTRUN, ROW, Looks


def seen(*looks: str) -> Looks:
    """Scans: `n` found a new process, `a` a known one alive, `-` nothing; with `~` incomplete, with `?` one was
    lost.
    """
    found = Looks()
    for look in looks:
        found = found.after(new=look == "n", alive=look == "a", whole=look != "~", lost=look == "?")
    return found


def test_one_empty_scan_is_proof_for_a_tree_that_starts_nothing() -> None:
    """The normal case: the first scan finds all processes new and alive."""
    assert seen("n", "a", "-").prove
    assert seen("-").prove
    assert seen("n", "~").prove
    assert not seen("n", "a").prove


def test_one_empty_scan_after_new_processes_were_found_is_no_proof() -> None:
    """Several in a row are; if scans are incomplete, more of them."""
    relay = ("n", "n", "-", "n", "-")
    assert not seen(*relay).prove
    assert seen(*relay, *["-"] * (ROW - 1)).prove
    assert not seen(*relay, *["~"] * 5).prove
    assert seen(*relay, *["~"] * 3 * ROW).prove


def test_a_scan_that_lost_a_process_is_no_proof_even_if_none_was_new_before() -> None:
    """Seen at a load of 25: the first scan found only the main process and missed its relay."""
    assert not seen("n", "?").prove
    assert not seen("n", "?", "-", "-").prove
    assert seen("n", "?", "-", "-", "-").prove
    assert seen("n", *["?"] * 3 * ROW).prove


def test_those_that_replace_themselves_count_as_alive() -> None:
    """Otherwise it would scan for ever and send nothing."""
    assert not seen("n", *["n"] * OUTRUN).outrun
    assert seen("n", *["n"] * (OUTRUN + 1)).outrun
    assert seen("n", *["n", "-"] * (OUTRUN + 1)).outrun
    assert not seen("n", *["n"] * (OUTRUN + 1), "a").outrun


def test_processes_that_replaced_themselves_until_they_were_killed_are_dead() -> None:
    """Seen on a busy host: all were killed at once, so no scan found one alive, and `outrun` stayed True for ever."""
    relay = ("n", *["n"] * (OUTRUN + 1))
    assert seen(*relay, "-", "-").outrun
    killed = seen(*relay, *["-"] * ROW)
    assert (killed.prove, killed.outrun) == (True, False)
