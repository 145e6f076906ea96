"""Valid names of agents."""

import pytest

from watchdog.core.names import MAX_LENGTH, name_for, name_problem


@pytest.mark.parametrize("name", ["a", "alpha-1", "A.b_c", "7up", "x" * MAX_LENGTH])
def test_accepts_names(name: str) -> None:
    """Letters, digits, dot, underscore, hyphen."""
    assert name_problem(name) is None


@pytest.mark.parametrize(
    "name", ["", "x" * (MAX_LENGTH + 1), "7", "all", "stalled", "orphans", "a b", "ä", "tag:x", "a/b", "-9", "--go"]
)
def test_refuses_names_that_would_be_taken_for_something_else(name: str) -> None:
    """A pid, a reserved target, a path."""
    assert name_problem(name)


@pytest.mark.parametrize("program", ["/usr/bin/claude", "my agent.sh", "x" * 200, "", "/", "123", "-bash"])
def test_every_program_gives_a_name(program: str) -> None:
    """Whatever the program is called."""
    assert name_problem(name_for(program, "ab12")) is None
