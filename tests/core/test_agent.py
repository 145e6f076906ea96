"""The project's terms as types: which statuses are ends, what follows from a registration, what a beat says."""

from datetime import timedelta

import pytest

from watchdog.core.agent import ENDED, LIVE, Beat, Registration, State, Status
from watchdog.core.process import Listed

PANE = {"terminal": "tmux", "pane": "%1"}


def registered(source: str = "register", *entries: Listed, pane: dict[str, object] | None = None) -> Registration:
    return Registration("a" * 32, "a", 1000, "h", "b", source=source, entries=entries, pane=pane)


def entry(kind: str, *, proved: bool = True, pane: dict[str, str] | None = None) -> Listed:
    return Listed(kind, "/p", "k", "t", proved=proved, pane=pane)


def test_every_status_is_of_a_living_agent_or_an_end() -> None:
    """An unkillable agent is still alive; a queued one counts as alive already."""
    assert frozenset(Status) == LIVE | ENDED
    assert not LIVE & ENDED
    assert {str(one) for one in ENDED} == {"stopped", "killed", "completed", "failed", "lost"}


def test_the_pane_where_it_was_found_counts_before_a_registrys() -> None:
    """If its pane was never looked up, the first entry that names one counts."""
    told = entry("hcom"), entry("claude", pane=PANE), entry("hcom", pane={"pane": "%9"})
    assert registered("run", *told).its_pane == PANE
    assert registered("run", *told, pane={"pane": "%2"}).its_pane == {"pane": "%2"}
    assert registered("run", entry("hcom")).its_pane is None


@pytest.mark.parametrize(
    ("source", "entries", "unproved", "told_of"),
    [
        ("run", [], False, False),
        ("hook", [], False, True),
        ("claude", [entry("claude")], False, True),
        ("hcom", [entry("hcom")], False, False),
        ("hcom", [entry("hcom", proved=False)], True, True),
        ("run", [entry("hcom", proved=False)], False, False),
    ],
)
def test_which_agents_the_daemon_only_reports(
    source: str, entries: list[Listed], unproved: bool, told_of: bool
) -> None:
    """An entry that may mean another process matters only if the agent came from it."""
    reg = registered(source, *entries)
    assert (reg.unproved, reg.told_of) == (unproved, told_of)


@pytest.mark.parametrize(
    ("beat", "bare"),
    [
        (Beat(), True),
        (Beat(state=State.IDLE, note="x"), True),
        (Beat(progress=0.0), False),
        (Beat(silent_for=timedelta()), False),
        (Beat(tool="Bash"), False),
        (Beat(after=timedelta(seconds=1)), False),
    ],
)
def test_a_beat_that_says_zero_has_said_something(beat: Beat, bare: bool) -> None:
    """None means "not said"; a progress of 0 is said."""
    assert beat.bare is bare
