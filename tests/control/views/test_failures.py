"""How far the end of an agent has come, and which of its hooks did not end well: what `why` and `list` say of it."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.control.views.test_next_change import agent
from watchdog.agents.holds import Holds
from watchdog.control.views.evidence import signals
from watchdog.control.views.failures import ending, in_words
from watchdog.control.views.next_change import next_changes
from watchdog.core.agent import Status, Verdict
from watchdog.core.kill import Reason
from watchdog.registry.rows import RequestRow, RunRow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATE = "ended after 60 s; it was at work in /w: does that hang? timeout 5 ls /w"


def said(reason: Reason, step: str | None, *runs: RunRow) -> str:
    """What `why` says comes next for an agent that is being ended for that reason."""
    one = agent(status=Status.ENDING, verdict=Verdict.GONE, request_id="r1")
    request = RequestRow("r1", one.agent_id, reason, "daemon", "claimed", NOW, step=step)
    older = RequestRow("r0", one.agent_id, Reason.OPERATOR, "uid 0", "withdrawn", NOW, step="cleanup")
    found = ending(one, [older, request], runs, {"git_locks": 2, "worktree": 2})
    return " ".join(next_changes(one, Holds(), NOW, ending=found))


def run(hook: str, status: str, attempts: int, message: str = "", after: int = 0) -> RunRow:
    return RunRow(f"r-{hook}", "a" * 32, hook, status, attempts, NOW + timedelta(seconds=after), "r1", message)


@pytest.mark.parametrize(
    ("reason", "step", "runs", "words"),
    [
        (Reason.GONE, None, [], "It has ended by itself; what it left behind is killed (request r1) and cleaned up"),
        (Reason.GONE, "cleanup", [], "It has ended by itself; its cleanup goes on."),
        (Reason.LOST, "cleanup", [], "It ended with its boot; its cleanup goes on."),
        (
            Reason.GONE,
            "cleanup",
            [run("pane", "done", 1), run("git_locks", "running", 1, after=1)],
            "its cleanup goes on, and waits for the hook git_locks, try 1 of 3.",
        ),
        (
            Reason.GONE,
            "cleanup",
            [run("git_locks", "timeout", 1, LATE)],
            f"waits for the hook git_locks, whose try 1 of 3 ran out of time ({LATE}).",
        ),
        (
            Reason.STALLED,
            "cleanup",
            [run("git_locks", "running", 2, LATE)],
            f"It has ended; its cleanup goes on, and waits for the hook git_locks, try 2 of 3 (the one before: {LATE})",
        ),
        (
            Reason.GONE,
            "cleanup",
            [run("git_locks", "timeout", 3, LATE)],
            "It has ended by itself; its cleanup goes on.",
        ),
        (Reason.STALLED, "kill", [], "It is being killed (request r1); a heartbeat no longer changes that."),
        (Reason.OPERATOR, None, [], "It is being killed (request r1)"),
    ],
)
def test_an_end_is_told_by_how_far_it_has_come(
    reason: Reason, step: str | None, runs: list[RunRow], words: str
) -> None:
    """A2: of an agent that had ended by itself and waited for a hook it said "It is being killed"."""
    assert words in said(reason, step, *runs)


def test_a_hook_that_is_tried_again_has_failed_until_its_agent_is_clean() -> None:
    """A2: `list` said "the main process has ended" while the hook hung for the second time."""
    runs = [run("git_locks", "running", 2, LATE), run("pane", "running", 1), run("worktree", "running", 2)]
    assert in_words(runs, ending=True) == [f"cleanup hook git_locks is in try 2; the one before: {LATE}"]
    assert in_words(runs) == []


def test_what_has_ended_is_not_said_to_have_lost_its_way_to_us() -> None:
    """A2: "further ones could not reach the daemon" was said of a dead agent, whose socket is gone as it is."""
    for verdict, told in ((Verdict.LATE, True), (Verdict.GONE, False)):
        heartbeat = next(
            one for one in signals(agent(channel_lost=True, verdict=verdict), NOW) if one["signal"] == "heartbeat"
        )
        assert ("could not reach the daemon" in str(heartbeat["more"])) is told
    looks = {one["signal"]: one["missing"] for one in signals(agent(verdict=Verdict.GONE), NOW)}
    assert looks["cpu"] == "it has ended"
