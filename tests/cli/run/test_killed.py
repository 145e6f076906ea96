"""The line that `run` prints at a terminal when its agent was killed through the watchdog."""

import os
import signal

import pytest

from tests.cli.conftest import Answer, FakeDaemon, Request, Start
from tests.cli.run.conftest import RUN, agent_of
from tests.cli.terminal import Terminal

SILENT = "silent for 44s, promised 30s; confirmed by 2 looks"


def order(**more: object) -> dict[str, object]:
    """A kill order as `GET /v1/agents/ID` tells it."""
    usual: dict[str, object] = {"reason": "stalled", "by": "daemon", "step": "term_main", "options": {"why": SILENT}}
    return {**usual, **more}


def answering(daemon: FakeDaemon, told: dict[str, object], *, closed: bool = False) -> None:
    """The daemon answers the report of an end as one that has that order: it is open, or its row is `closed`."""

    def answer(request: Request) -> Answer | None:
        if request.method == "GET":
            return 200, {"requests": [told]}
        if request.method == "PATCH" and "pid" not in request.body:
            return (404, {"message": "it has ended"}) if closed else (200, {"status": "ending"})
        return None

    daemon.answer = answer


def killed_at(terminal: Terminal, daemon: FakeDaemon) -> str:
    """What the terminal shows of an agent that is killed by TERM."""
    terminal.type(f"{RUN} sleep 1000; echo sta''tus=$?")
    os.kill(agent_of(daemon), signal.SIGTERM)
    return terminal.expect("status=143")


@pytest.mark.parametrize("closed", [False, True])
def test_a_person_at_the_terminal_reads_who_killed_it_and_why(
    terminal: Terminal, daemon: FakeDaemon, closed: bool
) -> None:
    """One line, after the agent's screen was put back; the exit status stays the agent's."""
    answering(daemon, order(), closed=closed)
    said = killed_at(terminal, daemon)
    assert f"agent-watchdog run: t was killed by the daemon: {SILENT}; the whole story: agent-watchdog why t\n" in said


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"reason": "operator", "by": "uid 7", "options": {"why": "asked for by uid 7"}},
            "killed: asked for by uid 7;",
        ),
        ({"reason": "operator", "by": "uid 7", "options": {"why": "demo over"}}, "killed by uid 7: demo over;"),
        ({"reason": "stop", "by": "uid 7", "options": {"why": "lunch"}}, "stopped by uid 7: lunch;"),
        ({"reason": "expired", "options": {}}, "killed by the daemon: expired;"),
    ],
)
def test_it_says_whose_order_it_was(
    terminal: Terminal, daemon: FakeDaemon, more: dict[str, object], words: str
) -> None:
    """A person's order with their reason, or with their uid where they gave none."""
    answering(daemon, order(**more))
    assert f"agent-watchdog run: t was {words}" in killed_at(terminal, daemon)


def test_a_reason_moves_no_cursor(terminal: Terminal, daemon: FakeDaemon) -> None:
    """A reason is anybody's text, an agent's note is in the daemon's: they were printed as they came."""
    why = "go\x1b[2J\nagent-watchdog run: fine \u202e"
    answering(daemon, order(reason="operator", by="uid 7", options={"why": why}))
    assert r"t was killed by uid 7: go\x1b[2J\nagent-watchdog run: fine \u202e; the whole" in killed_at(
        terminal, daemon
    )


@pytest.mark.parametrize("told", [order(reason="gone"), order(step="looked"), order(step=None)])
def test_an_end_that_no_order_caused_is_not_claimed(
    terminal: Terminal, daemon: FakeDaemon, told: dict[str, object]
) -> None:
    """It exited by itself, perhaps while an order had signalled nothing yet."""
    answering(daemon, told)
    assert "agent-watchdog run: t was" not in killed_at(terminal, daemon)


def test_without_a_terminal_the_daemon_is_not_even_asked(start: Start, daemon: FakeDaemon) -> None:
    """Standard error in a file or a pipe is the agent's: programs read it."""
    answering(daemon, order())
    wrapper = start("run", "--name", "t", "--stall-after", "1m", "--", "sh", "-c", "kill $$")
    assert wrapper.communicate(timeout=60) == ("", "")
    assert not daemon.seen("GET")
