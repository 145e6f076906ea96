"""Which processes were stopped on purpose, and how."""

import pytest

from watchdog.core.halts import StopState, halt

MAIN, CHILD, GDB = 10, 11, 99


@pytest.mark.parametrize(
    ("stops", "words"),
    [
        ({MAIN: StopState("t", GDB)}, "a debugger (process 99) holds it"),
        ({CHILD: StopState("t", GDB)}, "a debugger (process 99) holds its process 11"),
        ({MAIN: StopState("t", CHILD)}, None),  # its own crash handler
        ({MAIN: StopState("T", 0, "SIGTSTP", has_terminal=True)}, "it is stopped in its terminal, by Ctrl-Z"),
        (
            {MAIN: StopState("T", 0, "SIGTTIN", has_terminal=True)},
            "it is stopped in the background of its terminal, from",
        ),
        (
            {MAIN: StopState("T", 0, "SIGTTOU", has_terminal=True)},
            "it is stopped in the background of its terminal, to",
        ),
        ({MAIN: StopState("T", 0, "SIGTSTP", has_terminal=False)}, None),  # sent by `kill`: no person is there
        ({MAIN: StopState("T", 0, "SIGSTOP", has_terminal=True)}, None),  # case B9
        ({MAIN: StopState("T", 0, "", has_terminal=True)}, "it is stopped in its terminal, and its shell"),
        ({MAIN: StopState("T", 0, "", has_terminal=True, in_front=True)}, None),  # no shell took the terminal back
        ({MAIN: StopState("T", 0, "", has_terminal=False)}, None),
        ({CHILD: StopState("T", 0, "SIGTSTP", has_terminal=True)}, None),  # a job of its own shell
        ({}, None),
    ],
)
def test_only_a_debugger_and_the_person_at_its_terminal_count(stops: dict[int, StopState], words: str | None) -> None:
    """Case N22."""
    found = halt(stops, MAIN, {MAIN, CHILD})
    assert found == words or (words is not None and found is not None and found.startswith(words))
