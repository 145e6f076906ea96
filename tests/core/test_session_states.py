"""When a session file overrides what a hook reported, and when the hook's report stands."""

import json
from datetime import timedelta

import pytest

from watchdog.core.agent import State
from watchdog.core.session_states import ended_by, quiet_for, turn_over

WORKING, IDLE, WAITING, BLOCKED, DONE = State.WORKING, State.IDLE, State.WAITING, State.BLOCKED, State.DONE
ROWS = [  # reported by hooks at 100; listed in the file, since; result
    (WORKING, IDLE, 104.0, IDLE),  # Esc
    (WAITING, IDLE, 104.0, IDLE),  # Esc at a permission dialog
    (WAITING, WORKING, 104.0, WORKING),  # answered, and the tool runs
    (WORKING, WAITING, 104.0, WAITING),  # a dialog that no hook reported
    (WORKING, IDLE, 97.0, IDLE),  # a hook that came late
    (WORKING, IDLE, 40.0, None),  # a file that is not kept up to date
    (WORKING, IDLE, None, IDLE),  # without a time it is the current state
    (WORKING, WORKING, 104.0, None),
    (IDLE, WORKING, 104.0, None),  # a hook reports each prompt
    (BLOCKED, IDLE, 104.0, None),
    (DONE, IDLE, 104.0, None),
    (None, IDLE, 104.0, None),
    (WORKING, None, 104.0, None),
]


@pytest.mark.parametrize(("said", "listed", "since", "state"), ROWS)
def test_the_newer_word_counts(
    said: State | None, listed: State | None, since: float | None, state: State | None
) -> None:
    """The file's, if it ends the reported state and is not older."""
    assert ended_by(said, 100.0, listed, since) is state


def written(kind: str, at: str = "2026-11-29T20:30:43.328Z", what: str = "event_msg") -> str:
    """A line as Codex 0.171.0 writes it."""
    return f'{{"timestamp":"{at}","ordinal":9,"type":"{what}","payload":{{"type":"{kind}","turn_id":"t"}}}}'


@pytest.mark.parametrize(
    ("lines", "since"),
    [
        ([written("task_started"), written("task_complete")], 1795984243.328),  # with an `error`, or without
        ([written("task_started"), written("turn_aborted"), written("message", what="response_item")], 1795984243.328),
        ([written("task_complete"), written("task_started")], None),
        ([written("task_complete"), written("task_started"), written("item_completed"), ""], None),
        ([written("task_complete"), '{"type":"event_msg","payl'], 1795984243.328),  # a line is being written
        ([written("task_complete", what="response_item")], None),  # text of the model
        ([written("task_complete", at="soon")], None),
        (["[" * 100_000 + '"event_msg"', '["event_msg"]', '{"type":"event_msg","payload":7}'], None),
        ([], None),
    ],
)
def test_the_last_turn_of_codex_is_over(lines: list[str], since: float | None) -> None:
    """By the last record about a turn; other lines are ignored."""
    assert turn_over("codex", lines) == since


def told(kind: str, at: str = "2026-11-29T23:43:36.930Z", **more: object) -> str:
    """A line as Gemini CLI 0.61.0 writes it."""
    return json.dumps({"id": "1", "timestamp": at, "type": kind, **more})


PROMPT = told("user", at="2026-11-29T23:43:26.865Z", content=[{"text": "please"}])
ANSWER = told("gemini", content="", toolCalls=[{"name": "write_file", "status": "success"}])
RESULT = told("user", content=[{"functionResponse": {"name": "write_file"}}])
LATER = "2026-11-29T23:43:38.100Z"
NEXT = told("user", at=LATER, content=[{"text": "please"}])
ESC = told("info", content="Request cancelled.")
# What follows the cancellation after Esc in a tool or at a dialog.
CANCELLED = [told("gemini", content="", toolCalls=[{"name": "write_file", "status": "cancelled"}]), RESULT]
# What follows that after Esc at a dialog.
AGAIN = [
    told("user", content=[{"text": "<session_context>"}]),
    told("gemini", content=[{"functionCall": {"name": "write_file"}}]),
    RESULT,
]
UPDATED = '{"$set":{"lastUpdated":"2026-11-29T23:43:37.180Z"}}'


@pytest.mark.parametrize(
    ("lines", "since"),
    [
        ([PROMPT, ESC], 1795995816.93),
        ([PROMPT, UPDATED, ESC, UPDATED, *CANCELLED, UPDATED, '{"id":'], 1795995816.93),
        ([PROMPT, ESC, UPDATED, *AGAIN, UPDATED], 1795995816.93),
        ([PROMPT, ESC, *CANCELLED, NEXT], None),
        ([PROMPT, ESC, *AGAIN, NEXT], None),
        ([PROMPT, ESC, *CANCELLED, NEXT, ANSWER, RESULT], None),
        ([PROMPT, ANSWER, RESULT, UPDATED], None),
        ([PROMPT, ESC, told("gemini", at=LATER, content="Words.")], None),
        ([PROMPT, told("info", content="Update available.")], None),
        ([told("user", content=[{"text": "say: Request cancelled."}])], None),
        (["7", "[]", '{"type":"info"}', told("user", content=7), told("gemini", toolCalls=7)], None),
        ([told("info", at="soon", content="Request cancelled.")], None),
    ],
)
def test_a_person_broke_off_the_last_turn_of_gemini(lines: list[str], since: float | None) -> None:
    """The cancelled calls follow the cancellation; a prompt or an answer belongs to a turn that goes on."""
    assert turn_over("gemini", lines) == since


def test_a_short_limit_asks_sooner() -> None:
    """Before the agent has been silent for too long."""
    assert quiet_for(timedelta(minutes=15)) == timedelta(seconds=5)
    assert quiet_for(timedelta(seconds=4)) == timedelta(seconds=1)
