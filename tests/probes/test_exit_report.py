"""How an agent ended, by the report of its `run`: malformed reports are refused."""

import pytest

from watchdog.errors import BadRequest
from watchdog.probes.exit_report import end_of


@pytest.mark.parametrize(
    "said",
    [
        [],
        {},
        {"end": 3},
        {"end": {}},
        {"end": {"exit_code": 256}},
        {"end": {"exit_code": True}},
        {"end": {"exit_code": "0"}},
        {"end": {"exit_signal": 0}},
        {"end": {"exit_signal": 65}},
        {"end": {"exit_code": 0, "exit_signal": 9}},
    ],
)
def test_a_malformed_end_is_refused(said: object) -> None:
    """Exactly one of a status and a signal, in range."""
    with pytest.raises(BadRequest):
        end_of(said)


@pytest.mark.parametrize("at", [None, "now", float("nan"), -1, 1e300, 10**400, True])
def test_a_malformed_time_does_not_invalidate_the_end(at: object) -> None:
    """It is only displayed."""
    end = end_of({"end": {"exit_code": 0}, "ended_at": at})
    assert (end.exit_code, end.exit_signal, end.at) == (0, None, None)
