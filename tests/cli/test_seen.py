"""How old the daemon's last sweep is, by its own answer."""

from datetime import UTC, datetime

import pytest

from watchdog.cli.seen import sweep_age

NOW = datetime(2026, 11, 30, 12, 0, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "age"),
    [
        ({"last_sweep": "2026-11-30T12:00:00+00:00"}, 10.0),
        ({"last_sweep": "2026-11-30T13:00:10+01:00"}, 0.0),
        ({"last_sweep": None}, None),
        ({}, None),
        ({"last_sweep": "today"}, None),
        ({"last_sweep": 7}, None),
    ],
)
def test_a_daemon_that_has_ended_no_sweep_yet_has_no_age(status: dict[str, object], age: float | None) -> None:
    """Nor has one whose word is no time."""
    assert sweep_age(status, NOW) == age
