"""The outcome of an order is the same text in the registry and on the wire, whichever version wrote it."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from watchdog.core.agent import Status
from watchdog.core.conversations import Conversation
from watchdog.core.kill import Reason
from watchdog.kill.outcome import AgentDeath, KillOutcome, result_of, withdrawn
from watchdog.registry.rows import RequestRow

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PROCESS: dict[str, object] = {"pid": 7, "name": "sleep", "how": "after SIGTERM", "started": None}


def death(**more: object) -> AgentDeath:
    facts: dict[str, object] = {
        "pid": 7,
        "task_id": "t",
        "task_status": "failed",
        "killed_at": AT,
        "grace": timedelta(seconds=10),
        "silence": timedelta(seconds=61.04),
        "resume": "claude --resume x",
        "conversation": None,
        "stop_reason": None,
        "exit_code": None,
        "exit_signal": 15,
    }
    return AgentDeath(**{**facts, **more})  # type: ignore[arg-type] # the test's own words


def test_the_death_of_an_agent_is_told_in_the_keys_of_the_first_version_and_in_their_order() -> None:
    """Text for text: the row and the history have it, and scripts read it."""
    told = KillOutcome("a", "stalled: 1 process ended on TERM", status=Status.KILLED, processes=(PROCESS,))
    told = KillOutcome(told.agent_id, told.message, None, told.status, False, told.processes, death())
    assert json.dumps(told.json(), separators=(",", ":")) == (
        '{"success":true,"agent_id":"a","action":"graceful_kill","pid":7,"kill_signal":"SIGTERM","task_id":"t",'
        '"killed_at":"2026-01-02T03:04:05Z","grace_period_seconds":10.0,"killed_gracefully":true,'
        '"seconds_since_heartbeat":61.0,"message":"stalled: 1 process ended on TERM","status":"killed",'
        '"resume":"claude --resume x","resumable":true,"stop_reason":null,"exit_code":null,"exit_signal":15,'
        '"processes":[{"pid":7,"name":"sleep","how":"after SIGTERM","started":null}],"task_status":"failed"}'
    )


def test_what_was_never_known_is_null_and_a_conversation_stands_behind_the_command_for_it() -> None:
    """An agent without a pid, a beat, or a grace, killed at once."""
    conversation = Conversation("claude", "0-1", None, "/w")
    facts = death(pid=None, grace=None, silence=None, resume=None, conversation=conversation)
    told = KillOutcome("a", "m", status=Status.KILLED, killed=True, death=facts).json()
    keys = ("action", "pid", "kill_signal", "grace_period_seconds", "killed_gracefully", "seconds_since_heartbeat")
    assert [told[key] for key in keys] == ["force_kill", None, "SIGKILL", None, False, None]
    assert told["resumable"] is False
    names = list(told)
    assert names[names.index("resumable") + 1] == "conversation"


def test_orphans_survivors_and_the_withdrawn_have_what_is_known_of_them() -> None:
    """Orphans have no death of their own: their agent's was told before."""
    orphans = KillOutcome("a", "1 process that outlived it ended", status=Status.LOST, processes=(PROCESS,)).json()
    assert list(orphans) == ["success", "agent_id", "action", "message", "status", "processes"]
    assert KillOutcome("a", "not ended, d_state: x", "kill_failed").json() == {
        "success": False,
        "error": "kill_failed",
        "agent_id": "a",
        "message": "not ended, d_state: x",
    }
    assert withdrawn("a").json() == {
        "success": False,
        "error": "withdrawn",
        "agent_id": "a",
        "message": "withdrawn",
    }


@pytest.mark.parametrize(
    "row",
    [
        {"success": True, "status": "killed", "message": "m", "a key of another version": [1]},
        {"message": "m", "error": 7},
        {"status": "weird"},
        {"status": []},
    ],
)
def test_what_an_earlier_daemon_wrote_goes_on_as_it_is(row: dict[str, object]) -> None:
    """Also what this version does not know; the note on a grace is taken out, once."""
    told, termed = KillOutcome.of_row("a", {"termed": {"mono": 1.0}, **row})
    assert termed == {"mono": 1.0}
    assert told is not None and told.json() == row
    assert told.status is (Status.KILLED if row.get("status") == "killed" else None)
    assert told.cleaned([]).json() == {**row, "cleanup": []}


def test_an_order_that_has_come_to_nothing_yet_has_no_outcome() -> None:
    """Nor has one of which only a grace is noted."""
    assert KillOutcome.of_row("a", {}) == (None, None)
    assert KillOutcome.of_row("a", {"termed": 1}) == (None, 1)


def test_a_hook_that_left_a_command_to_type_stands_beside_the_others() -> None:
    """The kill itself is a success."""
    run: dict[str, object] = {"hook": "pane", "outcome": "failed", "message": "m", "retry": "tmux kill-pane -t %1"}
    told = KillOutcome("a", "m", status=Status.KILLED, death=death()).cleaned([run]).json()
    assert list(told)[-3:] == ["cleanup", "pane_cleanup_failed", "pane_retry_command"]
    assert (told["cleanup"], told["pane_cleanup_failed"]) == ([run], True)
    assert told["pane_retry_command"] == "tmux kill-pane -t %1"


def test_a_finished_order_is_told_as_its_row_has_it() -> None:
    """One that was called off keeps only why; an open one is not told."""
    row = RequestRow("r", "a", Reason.STALLED, "daemon", "done", AT, outcome={"success": True}, finished_at=AT)
    assert result_of(row) == {"success": True}
    called_off = RequestRow("r", "a", Reason.STALLED, "daemon", "withdrawn", AT, outcome={"why": "w"}, finished_at=AT)
    assert result_of(called_off) == withdrawn("a", "w").json()
    assert result_of(RequestRow("r", "a", Reason.STALLED, "daemon", "open", AT)) is None
