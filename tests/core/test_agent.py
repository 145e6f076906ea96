"""The words of the house: which statuses are ends, what an agent's registration says of its care, what a beat says."""

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
    """An unkillable agent lives on; a queued one lives already."""
    assert frozenset(Status) == LIVE | ENDED
    assert not LIVE & ENDED
    assert {str(one) for one in ENDED} == {"stopped", "killed", "completed", "failed", "lost"}


def test_where_it_was_found_to_sit_counts_before_what_a_registry_says() -> None:
    """The first entry that names a pane is asked where nobody has looked."""
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
def test_of_whom_the_daemon_only_tells(source: str, entries: list[Listed], unproved: bool, told_of: bool) -> None:
    """An entry that may mean another process counts only where the agent came from it."""
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
    """None is "not said"; a progress of 0 is a word."""
    assert beat.bare is bare
