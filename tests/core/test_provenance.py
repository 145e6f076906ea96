"""Which process a row of a foreign registry means by its pid."""

from dataclasses import replace

import pytest

from watchdog.core.provenance import Named, ToldTime, named, zone_of

NOW, HOUR = 1_900_000_000.0, 3600.0
IN_NEW_YORK = ToldTime(since=NOW - 4 * HOUR, since_local=NOW, started=NOW - 4 * HOUR, started_local=NOW)
AHEAD = ToldTime(since_ahead=NOW + 13 * HOUR, started_ahead=NOW + 13 * HOUR)  # Auckland's
IN_AUCKLAND = replace(AHEAD, since_local=NOW, started_local=NOW)


@pytest.mark.parametrize(
    ("told", "began", "seen", "whom"),
    [
        (ToldTime(since=NOW, started=NOW), NOW - 1, {}, Named.IT),
        (ToldTime(since=NOW, started=NOW), NOW - 9, {}, Named.IT),
        (ToldTime(since=NOW, started=NOW), NOW - 25, {}, Named.STRANGER),  # case Q4: the host's process with that pid
        (ToldTime(since=NOW, started=NOW - HOUR), NOW - HOUR, {}, Named.IT),  # its row was rewritten since
        (ToldTime(since=NOW), NOW - HOUR, {}, Named.IT),
        (ToldTime(since=NOW), NOW + 2, {}, Named.ANOTHER),  # case D1: the pid was reused
        (ToldTime(), NOW, {}, Named.PERHAPS),
        # Case P16: it leads a session and is older than the row.
        (ToldTime(), NOW - HOUR, {"came": NOW, "leads": True}, Named.STRANGER),
        (ToldTime(since=NOW), NOW - HOUR, {"came": NOW, "leads": True}, Named.STRANGER),
        (ToldTime(since=NOW), NOW - 3, {"came": NOW, "leads": True}, Named.IT),
        (ToldTime(), NOW - HOUR, {"came": NOW}, Named.PERHAPS),
        (ToldTime(), NOW - HOUR, {"leads": True}, Named.STRANGER),
        (ToldTime(), NOW - 9, {"leads": True}, Named.PERHAPS),
        (ToldTime(since=NOW), NOW - HOUR, {"leads": True}, Named.IT),
        # Case Q7: times of another zone without an offset.
        (IN_NEW_YORK, NOW - 2, {}, Named.PERHAPS),
        (IN_NEW_YORK, NOW - 2, {"came": NOW - 5}, Named.IT),
        (IN_NEW_YORK, NOW - 2, {"zone": 4 * HOUR}, Named.IT),
        (IN_NEW_YORK, NOW - 2, {"zone": 0.0}, Named.ANOTHER),
        (IN_NEW_YORK, NOW - 25, {"zone": 4 * HOUR}, Named.STRANGER),
        (IN_NEW_YORK, NOW + 2, {"came": NOW}, Named.ANOTHER),
        # Times in the future mean nothing until their offset is known.
        (AHEAD, NOW - 2, {}, Named.PERHAPS),
        (AHEAD, NOW - 2, {"came": NOW - 5}, Named.PERHAPS),
        (AHEAD, NOW - 2, {"zone": -13 * HOUR}, Named.IT),
        (AHEAD, NOW + 2, {"zone": -13 * HOUR}, Named.ANOTHER),
        (AHEAD, NOW - 25, {"zone": -13 * HOUR}, Named.STRANGER),
        (IN_AUCKLAND, NOW - 2, {}, Named.PERHAPS),
        (IN_AUCKLAND, NOW - 2, {"came": NOW - 5}, Named.IT),
        (IN_AUCKLAND, NOW + 2, {"came": NOW - 5}, Named.PERHAPS),
        (IN_AUCKLAND, NOW - 25, {"came": NOW - 5}, Named.STRANGER),
        # In Kolkata the times look later than they are: the process is not five and a half hours older.
        (ToldTime(NOW, NOW - 5.5 * HOUR, NOW, NOW - 5.5 * HOUR), NOW - 5.5 * HOUR, {}, Named.IT),
    ],
)
def test_a_pid_means_a_process_only_if_its_row_can_have_been_written_about_it(
    told: ToldTime, began: float, seen: dict[str, object], whom: Named
) -> None:
    """A process older than the row is another one, and so is a younger one."""
    how = {"came": None, "first": NOW, "leads": False, "zone": None, **seen}
    found, why = named(told, began, **how)  # type: ignore[arg-type]
    assert found is whom, why


def test_a_heartbeat_that_was_just_written_tells_its_zone() -> None:
    """In quarters of an hour; the remaining minutes are its age."""
    assert zone_of(NOW - 4 * HOUR - 3, NOW) == 4 * HOUR
    assert zone_of(NOW + 5.5 * HOUR, NOW) == -5.5 * HOUR
    assert zone_of(NOW - 200, NOW) == 0


@pytest.mark.parametrize(
    ("told", "zone", "latest"),
    [
        (ToldTime(), None, None),
        (ToldTime(since=NOW), None, NOW),
        (IN_NEW_YORK, None, NOW),
        (replace(IN_NEW_YORK, since_local=None), None, NOW - 4 * HOUR),
        (replace(IN_NEW_YORK, since_local=None), 4 * HOUR, NOW),
        (AHEAD, None, None),
        (AHEAD, -13 * HOUR, NOW),
        (ToldTime(since=NOW), -2 * HOUR, NOW - 2 * HOUR),  # two hours later it is no longer in the future
    ],
)
def test_the_last_moment_at_which_a_number_can_have_been_written(
    told: ToldTime, zone: float | None, latest: float | None
) -> None:
    """As written, or shifted by the zone offset that heartbeats showed."""
    assert told.latest(zone) == latest


@pytest.mark.parametrize(
    ("told", "began", "zone"),
    [
        (ToldTime(), NOW, None),
        (ToldTime(since=NOW), NOW - 5, 0.0),
        (IN_NEW_YORK, NOW - 5, 4 * HOUR),
        (IN_NEW_YORK, NOW + 5, None),
        (IN_AUCKLAND, NOW - 5, -13 * HOUR),
        (AHEAD, NOW - 5, None),
    ],
)
def test_a_start_tells_the_zone_where_its_words_fit_in_one_way(
    told: ToldTime, began: float, zone: float | None
) -> None:
    """A time that cannot be UTC but fits the zone of its process was written in that zone."""
    assert told.by_start(began) == zone
