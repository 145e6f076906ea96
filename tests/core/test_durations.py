"""How durations are written."""

import pytest

from watchdog.core.durations import seconds_of
from watchdog.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400), ("1.5h", 5400), ("0s", 0)]
)
def test_reads_durations(text: str, seconds: float) -> None:
    """A number and a unit."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "5", "-5s", "5 s", "5ms", "1h30m", "nan", "infs", "1e3s", "1..5s", "٣s", "400d"]
)
def test_refuses_what_could_mean_anything(text: str) -> None:
    """Above all a number without a unit."""
    with pytest.raises(BadRequest):
        seconds_of(text)
