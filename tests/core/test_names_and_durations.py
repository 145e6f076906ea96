"""What an agent may be called, and how durations are written."""

import pytest

from watchdog.core.durations import seconds_of
from watchdog.core.names import MAX_LENGTH, name_for, name_problem
from watchdog.errors import BadRequest


@pytest.mark.parametrize("name", ["a", "alpha-1", "A.b_c", "7up", "x" * MAX_LENGTH])
def test_accepts_names(name: str) -> None:
    """Letters, digits, dot, underscore, hyphen."""
    assert name_problem(name) is None


@pytest.mark.parametrize(
    "name", ["", "x" * (MAX_LENGTH + 1), "7", "all", "stalled", "orphans", "a b", "ä", "tag:x", "a/b", "-9", "--go"]
)
def test_refuses_names_that_would_be_taken_for_something_else(name: str) -> None:
    """A pid, a target of its own, a path."""
    assert name_problem(name)


@pytest.mark.parametrize("program", ["/usr/bin/claude", "my agent.sh", "x" * 200, "", "/", "123", "-bash"])
def test_every_program_gives_a_name(program: str) -> None:
    """Whatever the program is called."""
    assert name_problem(name_for(program, "ab12")) is None


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
    """A plain number above all."""
    with pytest.raises(BadRequest):
        seconds_of(text)
