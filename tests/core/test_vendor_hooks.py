"""The documented events of each vendor, as tables: the beat for each, and the answer that stops its agent."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from watchdog.agents.agent import Agent
from watchdog.agents.heartbeat import newer_beat
from watchdog.agents.persistence import row_of
from watchdog.core.agent import Policy, Registration, State, Status
from watchdog.core.beat import beat_of_json
from watchdog.core.vendor_hooks import begins, ends_turn, stop_answer, words_of_event

SIGN = {"promises": False}
IDLE, WORKING, WAITING = {"state": "idle"}, {"state": "working"}, {"state": "waiting"}
RESTS, TOOL_OVER = {"state": "idle", "tool": ""}, {"state": "working", "tool": ""}
PROMPT = {"state": "working", "tool": "", "note": ""}
DONE = {"state": "done", "tool": ""}

Fields = dict[str, Any]
ROWS: list[tuple[str, str, Fields, Fields | None]] = [
    ("claude", "SessionStart", {"source": "startup", "model": "m"}, IDLE),
    ("claude", "SessionStart", {"source": "resume"}, IDLE),
    ("claude", "SessionStart", {"source": "compact"}, SIGN),
    ("claude", "UserPromptSubmit", {"prompt": "go"}, PROMPT),
    ("claude", "PreToolUse", {"tool_name": "Read", "tool_input": {"file_path": "/a"}}, {**WORKING, "tool": "Read"}),
    (
        "claude",
        "PreToolUse",
        {"tool_name": "Bash", "tool_input": {"command": "make", "timeout": 600000}},
        {**WORKING, "tool": "Bash", "tool_limit_seconds": 600.0},
    ),
    (
        "claude",
        "PreToolUse",
        {"tool_name": "Bash", "tool_input": {"command": "make"}},
        {**WORKING, "tool": "Bash", "tool_limit_seconds": 120.0},
    ),
    (
        "claude",
        "PreToolUse",
        {"tool_name": "Bash", "tool_input": {"command": "make run", "run_in_background": True}},
        {**WORKING, "tool": "Bash"},
    ),
    ("claude", "PreToolUse", {"tool_name": "AskUserQuestion"}, {**WAITING, "tool": "AskUserQuestion"}),
    ("claude", "PreToolUse", {"tool_name": "ExitPlanMode"}, {**WAITING, "tool": "ExitPlanMode"}),
    ("claude", "PreToolUse", {"tool_name": "mcp__x\x1b[2J"}, {**WORKING, "tool": "mcp__x [2J"}),
    ("claude", "PostToolUse", {"tool_name": "Bash", "tool_response": {}, "duration_ms": 3}, TOOL_OVER),
    ("claude", "PostToolUseFailure", {"tool_name": "Bash", "error": "boom"}, TOOL_OVER),
    ("claude", "PermissionRequest", {"tool_name": "Bash", "tool_input": {}}, WAITING),
    ("claude", "PermissionDenied", {"tool_name": "Bash"}, TOOL_OVER),
    ("claude", "Notification", {"notification_type": "permission_prompt", "message": "…"}, WAITING),
    ("claude", "Notification", {"notification_type": "elicitation_dialog"}, WAITING),
    ("claude", "Notification", {"notification_type": "idle_prompt"}, RESTS),
    ("claude", "Notification", {"notification_type": "auth_success"}, None),
    ("claude", "Notification", {"message": "Claude needs your permission to use Bash"}, WAITING),
    ("claude", "Notification", {"message": "Claude is waiting for your input"}, RESTS),
    ("claude", "Stop", {"stop_hook_active": False}, RESTS),
    ("claude", "Stop", {"background_tasks": [], "session_crons": []}, {**RESTS, "goes_on": False}),
    (
        "claude",
        "Stop",
        {"background_tasks": [{"id": "b1", "command": "TOKEN=x make"}, {"id": "b2"}], "session_crons": [{"id": "c"}]},
        {**RESTS, "goes_on": True, "note": "idle; continues by itself: 2 background tasks, 1 scheduled prompt"},
    ),
    (
        "claude",
        "Stop",
        {"background_tasks": [{"id": "s1", "type": "subagent", "status": "running"}], "session_crons": []},
        {**RESTS, "goes_on": True, "note": "idle; continues by itself: 1 background task"},
    ),
    # A background server in an interactive session may be meant to run for days.
    (
        "claude",
        "Stop",
        {"background_tasks": [{"id": "b1", "type": "shell", "command": "npm run dev"}], "session_crons": []},
        {**RESTS, "goes_on": False, "note": "idle; continues by itself: 1 background task"},
    ),
    (
        "claude",
        "Stop",
        {"background_tasks": [{"id": "b1", "status": "completed"}, {"id": "b2", "status": "running"}]},
        {**RESTS, "goes_on": True, "note": "idle; continues by itself: 1 background task"},
    ),
    ("claude", "Stop", {"background_tasks": [{"id": "b1", "status": "completed"}]}, {**RESTS, "goes_on": False}),
    (
        "claude",
        "StopFailure",
        {"error": "rate_limit"},
        {"state": "waiting", "tool": "", "note": "its turn failed: rate_limit"},
    ),
    ("claude", "SubagentStop", {"agent_id": "a1"}, {"thread": "a1", "goes_on": False, **SIGN}),
    ("claude", "PreCompact", {"trigger": "manual"}, SIGN),
    ("claude", "SessionEnd", {"reason": "clear"}, {**RESTS, "goes_on": False}),
    ("claude", "SessionEnd", {"reason": "resume"}, {**RESTS, "goes_on": False}),
    ("claude", "SessionEnd", {"reason": "prompt_input_exit"}, DONE),
    ("claude", "SessionEnd", {"reason": "other"}, DONE),
    ("claude", "SomethingNew", {}, SIGN),
    # A subagent's events say nothing about the main thread, which may be idle meanwhile.
    (
        "claude",
        "PreToolUse",
        {"agent_id": "a1", "tool_name": "Bash", "tool_input": {"timeout": 9000}},
        {"thread": "a1", "tool": "Bash", "tool_limit_seconds": 9.0, **SIGN},
    ),
    ("claude", "PostToolUse", {"agent_id": "a1", "tool_name": "Bash"}, {"thread": "a1", "tool": "", **SIGN}),
    ("claude", "PermissionRequest", {"agent_id": "a1", "tool_name": "Bash"}, WAITING),
    ("codex", "SessionStart", {"source": "startup", "model": "m"}, IDLE),
    ("codex", "UserPromptSubmit", {"turn_id": "t", "prompt": "go"}, PROMPT),
    ("codex", "PreToolUse", {"tool_name": "Bash", "tool_input": {"command": "make"}}, {**WORKING, "tool": "Bash"}),
    ("codex", "PermissionRequest", {"tool_name": "Bash", "tool_input": {}}, WAITING),
    ("codex", "PostToolUse", {"tool_name": "apply_patch", "tool_response": "ok"}, TOOL_OVER),
    ("codex", "Stop", {"stop_hook_active": False, "last_assistant_message": "done"}, RESTS),
    ("codex", "Interrupt", {}, {**RESTS, "goes_on": False}),
    ("codex", "UserPromptSubmit", {"agent_id": "t1", "prompt": "go"}, {"thread": "t1", "goes_on": True, **SIGN}),
    ("codex", "SubagentStop", {"agent_id": "t1"}, {"thread": "t1", "goes_on": False, **SIGN}),
    ("codex", "Interrupt", {"agent_id": "t1"}, {"thread": "t1", "goes_on": False, **SIGN}),
    ("codex", "SessionEnd", {"reason": "other"}, DONE),
    ("codex", "PreCompact", {"trigger": "auto"}, SIGN),
    ("gemini", "SessionStart", {"source": "startup", "timestamp": "…"}, IDLE),
    ("gemini", "BeforeAgent", {"prompt": "go"}, PROMPT),
    (
        "gemini",
        "BeforeTool",
        {"tool_name": "run_shell_command", "tool_input": {"command": "make"}},
        {**WORKING, "tool": "run_shell_command"},
    ),
    ("gemini", "BeforeTool", {"tool_name": "ask_user"}, {**WAITING, "tool": "ask_user"}),
    ("gemini", "AfterTool", {"tool_name": "run_shell_command", "tool_response": {}}, TOOL_OVER),
    ("gemini", "Notification", {"notification_type": "ToolPermission", "message": "…", "details": {}}, WAITING),
    ("gemini", "AfterAgent", {"prompt": "go", "prompt_response": "…"}, RESTS),
    ("gemini", "AfterModel", {"llm_response": {}}, SIGN),
    ("gemini", "SessionEnd", {"reason": "exit"}, DONE),
    ("opencode", "plugin.loaded", {"busy": 0}, IDLE),
    ("opencode", "session.created", {}, IDLE),
    ("opencode", "session.created", {"parent": "ses_1"}, SIGN),
    ("opencode", "session.created", {"busy": 1}, SIGN),
    ("opencode", "chat.message", {}, PROMPT),
    (
        "opencode",
        "tool.execute.before",
        {"tool_name": "bash", "tool_input": {"command": "make", "timeout": 300000}},
        {**WORKING, "tool": "bash", "tool_limit_seconds": 300.0},
    ),
    ("opencode", "tool.execute.after", {"tool_name": "bash"}, TOOL_OVER),
    ("opencode", "permission.asked", {}, WAITING),
    ("opencode", "permission.replied", {}, WORKING),
    ("opencode", "session.status", {"status": {"type": "busy"}}, WORKING),
    (
        "opencode",
        "session.status",
        {"status": {"type": "retry", "attempt": 2, "message": "overloaded"}},
        {"state": "blocked", "note": "tries again: overloaded"},
    ),
    ("opencode", "session.status", {"status": {"type": "busy"}, "was": "retry"}, {**WORKING, "note": ""}),
    ("opencode", "session.status", {"status": {"type": "idle"}, "was": "retry"}, {**RESTS, "note": ""}),
    ("opencode", "session.status", {"status": {"type": "idle"}}, RESTS),
    ("opencode", "session.idle", {}, RESTS),
    ("opencode", "session.idle", {"busy": 1}, SIGN),
    (
        "opencode",
        "session.error",
        {"error": {"name": "ProviderAuthError", "data": {"message": "key sk-1"}}},
        {"state": "waiting", "tool": "", "note": "its turn failed: ProviderAuthError"},
    ),
    # Aborted by a person's Escape, or at our request: no person is asked anything.
    ("opencode", "session.error", {"error": {"name": "MessageAbortedError"}}, RESTS),
    ("opencode", "session.error", {"error": {"name": "MessageAbortedError"}, "busy": 1}, SIGN),
]


def without_calls(words: Fields | None) -> Fields | None:
    """Without the key of the call that a prompt is about; that has tests of its own."""
    return None if words is None else {key: word for key, word in words.items() if key not in ("asks", "answered")}


@pytest.mark.parametrize(("vendor", "name", "fields", "words"), ROWS, ids=[f"{v}-{n}" for v, n, _, _ in ROWS])
def test_an_event_is_a_beat(vendor: str, name: str, fields: Fields, words: Fields | None) -> None:
    """As its vendor documents it; the result is a beat that the daemon accepts."""
    event = {"session_id": "s", "cwd": "/srv/p", "hook_event_name": name, **fields}
    said = words_of_event(vendor, event, {}, main=True)
    assert without_calls(said) == words
    if said is not None:
        beat_of_json(said)


@pytest.mark.parametrize(("vendor", "name", "fields", "words"), ROWS, ids=[f"{v}-{n}" for v, n, _, _ in ROWS])
def test_the_end_of_a_session_is_not_the_end_of_the_script_around_it(
    vendor: str, name: str, fields: Fields, words: Fields | None
) -> None:
    """`run -- sh -c 'claude -p …; make'`: nothing else differs."""
    event = {"hook_event_name": name, **fields}
    assert without_calls(words_of_event(vendor, event, {}, main=False)) == (SIGN if words == DONE else words)


@pytest.mark.parametrize("damage", [None, [], "x", 7, {"a": 1}, True, 1e400, "9" * 40, -3])
def test_no_event_is_too_strange(damage: object) -> None:
    """A vendor may change its fields, and a failing hook would disturb the agent."""
    fields = ("tool_name", "tool_input", "source", "reason", "error", "status", "background_tasks", "transcript_path")
    for vendor, name, _, _ in ROWS:
        event: Fields = {"hook_event_name": name, **dict.fromkeys(fields, damage), "tool_input": {"timeout": damage}}
        for each in (event, {**event, "tool_name": "Bash"}, {**event, "tool_input": damage}):
            words = words_of_event(vendor, each, {"BASH_DEFAULT_TIMEOUT_MS": str(damage)}, main=True)
            beat_of_json(words or {})


def test_the_users_own_limit_of_shell_commands_counts() -> None:
    """BASH_DEFAULT_TIMEOUT_MS, unless the call sets its own."""
    event: Fields = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {}}
    for environ, limit in (({"BASH_DEFAULT_TIMEOUT_MS": "1800000"}, 1800), ({"BASH_DEFAULT_TIMEOUT_MS": "x"}, 120)):
        words = words_of_event("claude", event, environ, main=True)
        assert words is not None
        assert words["tool_limit_seconds"] == limit


def call(name: str, thread: str | None, command: str = "make", tool: str = "Bash") -> Fields:
    more = {} if thread is None else {"agent_id": thread}
    return {"hook_event_name": name, "tool_name": tool, "tool_input": {"command": command}, **more}


NOTIFIED: Fields = {"hook_event_name": "Notification", "notification_type": "permission_prompt"}
ANSWERS = [
    ([call("PermissionRequest", "s"), call("PostToolUse", "s")], State.WORKING),
    ([call("PermissionRequest", "s"), call("PostToolUseFailure", "s")], State.WORKING),
    ([call("PermissionRequest", "s"), call("PostToolUse", "s", "ls")], State.WAITING),
    ([call("PermissionRequest", "s"), call("PostToolUse", "t")], State.WAITING),
    ([call("PermissionRequest", "s"), call("PreToolUse", "s", "ls")], State.WAITING),
    ([call("PermissionRequest", "s"), call("PermissionRequest", "t"), call("PostToolUse", "s")], State.WAITING),
    ([call("PermissionRequest", "s"), call("PermissionRequest", None, "ls"), call("PostToolUse", "s")], State.WAITING),
    ([call("PermissionRequest", "s"), call("PostToolUse", None), call("PostToolUse", "s")], State.WORKING),
    ([call("PermissionRequest", "s"), {"hook_event_name": "StopFailure"}, call("PostToolUse", "s")], State.WAITING),
    (
        [
            call("PermissionRequest", "s"),
            {"hook_event_name": "Notification", "notification_type": "permission_prompt"},
            call("PostToolUse", "s"),
        ],
        State.WORKING,
    ),
    # A notification alone names no call (Claude Code 2.1.332 sends it 6 s after the dialog).
    ([call("PreToolUse", "s"), NOTIFIED, call("PostToolUse", "s")], State.WORKING),
    ([call("PreToolUse", "s"), NOTIFIED, call("PostToolUseFailure", "s")], State.WORKING),
    ([NOTIFIED, call("PreToolUse", "s")], State.WORKING),
    ([call("PreToolUse", "s"), NOTIFIED, call("PostToolUse", "s"), NOTIFIED], State.WAITING),
    # Of two subagents that may be asked, the one that continues is not.
    ([call("PreToolUse", "s"), call("PreToolUse", "t"), NOTIFIED, call("PostToolUse", "t")], State.WAITING),
    (
        [
            call("PreToolUse", "s"),
            call("PreToolUse", "t"),
            NOTIFIED,
            call("PostToolUse", "t"),
            call("PreToolUse", "s", "ls"),
        ],
        State.WORKING,
    ),
    ([{"hook_event_name": "StopFailure"}, call("PreToolUse", "s")], State.WAITING),
]


@pytest.mark.parametrize(("events", "state"), ANSWERS)
def test_a_subagents_prompt_is_over_with_the_call_that_it_was_about(events: list[Fields], state: State) -> None:
    """Another call, another subagent or a prompt of the main thread leaves it waiting: a waiting agent is never
    killed.
    """
    agent = Agent(Registration("a" * 32, "alpha", 0, "host", "boot"), Policy(), Status.RUNNING)
    for number, event in enumerate(events):
        agent.beat(beat_of_json(words_of_event("claude", event, {}, main=True))[0], number, datetime.now(UTC))
    assert agent.heartbeat.said.state is state


SUBAGENT: Fields = {"agent_id": "t"}
RUNNING: Fields = {"background_tasks": [{"id": "t", "type": "subagent", "status": "running"}]}
RESTING = [
    ("claude", [{"hook_event_name": "Stop", **RUNNING}], True),
    ("claude", [{"hook_event_name": "Stop", "background_tasks": []}], False),
    ("claude", [{"hook_event_name": "Stop"}], False),  # before 2.1 they were not reported
    ("claude", [{"hook_event_name": "Stop", **RUNNING}, call("PreToolUse", "t"), call("PostToolUse", "t")], True),
    # Its idle notification after a minute says nothing about its tasks.
    (
        "claude",
        [
            {"hook_event_name": "Stop", **RUNNING},
            {"hook_event_name": "Notification", "notification_type": "idle_prompt"},
        ],
        True,
    ),
    (
        "claude",
        [
            {"hook_event_name": "Stop", **RUNNING},
            {"hook_event_name": "UserPromptSubmit"},
            {"hook_event_name": "Notification", "notification_type": "idle_prompt"},
        ],
        False,
    ),
    # Codex reports no tasks, but each subagent's turn.
    ("codex", [{"hook_event_name": "UserPromptSubmit", **SUBAGENT}, {"hook_event_name": "Stop"}], True),
    ("codex", [{"hook_event_name": "SubagentStart", **SUBAGENT}, {"hook_event_name": "Stop"}], True),
    (
        "codex",
        [
            {"hook_event_name": "UserPromptSubmit", **SUBAGENT},
            {"hook_event_name": "Stop"},
            {"hook_event_name": "SubagentStop", **SUBAGENT},
        ],
        False,
    ),
    ("codex", [{"hook_event_name": "UserPromptSubmit", **SUBAGENT}, {"hook_event_name": "Interrupt"}], False),
]


@pytest.mark.parametrize(("vendor", "events", "rests_on"), RESTING)
def test_an_agent_that_rests_until_its_subagents_wake_it_is_not_simply_idle(
    vendor: str, events: list[Fields], rests_on: bool
) -> None:
    """Its promise stays in force: otherwise a stalled subagent would never be found. A later daemon sees it as
    blocked.
    """
    agent = Agent(Registration("a" * 32, "alpha", 0, "host", "boot"), Policy(), Status.RUNNING)
    for number, event in enumerate(events):
        words = words_of_event(vendor, event, {}, main=True)
        agent.beat(beat_of_json(words)[0], number, datetime.now(UTC))
    assert (agent.heartbeat.said.state, agent.heartbeat.rests_on) == (State.IDLE, rests_on)
    assert row_of(agent).state is (State.BLOCKED if rests_on else State.IDLE)
    agent.heartbeat.silence.lasted = agent.policy.wait_limit
    assert agent.heartbeat.excused is not rests_on


def test_the_vendors_session_list_reports_what_no_hook_does() -> None:
    """A person's answer to a subagent's question fires no hook: `busy`, later than the question, ends the wait."""
    agent = Agent(Registration("a" * 32, "alpha", 0, "host", "boot"), Policy(), Status.RUNNING)
    now = datetime.now(UTC)
    assert newer_beat(agent.heartbeat, State.WORKING, now.timestamp()) is None  # it has not beaten yet
    agent.beat(beat_of_json(words_of_event("claude", NOTIFIED, {}, main=True))[0], 1.0, now)
    assert newer_beat(agent.heartbeat, State.WORKING, now.timestamp() - 6) is None  # older than the question
    assert newer_beat(agent.heartbeat, State.WORKING, None) is None
    assert newer_beat(agent.heartbeat, State.WAITING, now.timestamp() + 1) is None
    said = newer_beat(agent.heartbeat, State.WORKING, now.timestamp() + 1)
    assert said is not None
    agent.beat(said, 2.0, now + timedelta(seconds=2))
    assert (agent.heartbeat.said.state, agent.heartbeat.said.promised) == (State.WORKING, True)
    # And with two subagents, the one that is asked while the other continues.
    said = newer_beat(agent.heartbeat, State.WAITING, now.timestamp() + 3)
    assert said is not None
    assert said.state is State.WAITING
    agent.beat(beat_of_json(words_of_event("claude", {"hook_event_name": "StopFailure"}, {}, main=True))[0], 3.0, now)
    assert newer_beat(agent.heartbeat, State.WORKING, now.timestamp() + 9) is None  # a failed turn is not retried


def test_the_transcript_comes_with_the_main_threads_events() -> None:
    """A subagent has a transcript of its own."""
    event: Fields = {"hook_event_name": "Stop", "transcript_path": "/h/t.jsonl"}
    assert words_of_event("claude", event, {}, main=True) == {**RESTS, "transcript": "/h/t.jsonl"}
    said = words_of_event("claude", {**event, "agent_id": "a"}, {}, main=True)
    assert said == {"thread": "a", "goes_on": False, **SIGN}
    for bad in ("t.jsonl", "/h/\n", "/" * 5000, None):
        assert words_of_event("claude", {**event, "transcript_path": bad}, {}, main=True) == RESTS


def test_without_a_person_a_command_in_the_background_keeps_its_promise() -> None:
    """`claude -p` continues after its turn until the command is over, and no person will prompt it."""
    event: Fields = {"hook_event_name": "Stop", "background_tasks": [{"id": "b", "type": "shell"}]}
    for entrypoint, goes_on in (("sdk-cli", True), ("cli", False)):
        words = words_of_event("claude", event, {"CLAUDE_CODE_ENTRYPOINT": entrypoint}, main=True)
        assert words is not None
        assert words["goes_on"] is goes_on


@pytest.mark.parametrize(
    ("vendor", "fields", "ends"),
    [
        ("claude", {"hook_event_name": "PostToolUse"}, True),
        ("claude", {"hook_event_name": "PreToolUse"}, True),
        ("gemini", {"hook_event_name": "AfterTool"}, True),
        ("claude", {"hook_event_name": "PostToolUse", "agent_id": "a"}, False),
        ("codex", {"hook_event_name": "PreToolUse"}, False),
        ("opencode", {"hook_event_name": "tool.execute.before"}, False),
    ],
)
def test_an_answer_that_stops_is_the_end_of_the_turn(vendor: str, fields: Fields, ends: bool) -> None:
    """No other hook reports it; a denial, or a subagent's stop, ends no turn."""
    answer = stop_answer(vendor, fields, R)
    assert answer is not None
    assert ends_turn(fields, answer) is ends


R = "enough"
DENY = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": R}
REFUSE: Fields = {"behavior": "deny", "message": R}
HALT = {"continue": False, "stopReason": R}
STOPS: list[tuple[str, str, Fields | None]] = [
    ("claude", "PreToolUse", {**HALT, "hookSpecificOutput": DENY}),
    (
        "claude",
        "PermissionRequest",
        {
            **HALT,
            "hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": {**REFUSE, "interrupt": True}},
        },
    ),
    *(("claude", name, HALT) for name in ("PostToolUse", "UserPromptSubmit", "Stop", "SubagentStop", "PreCompact")),
    *(("claude", name, None) for name in ("SessionEnd", "Notification")),
    ("codex", "PreToolUse", {"hookSpecificOutput": DENY}),
    (
        "codex",
        "PermissionRequest",
        {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": REFUSE}},
    ),
    *(("codex", name, HALT) for name in ("SessionStart", "UserPromptSubmit", "PostToolUse", "Stop", "PreCompact")),
    *(("codex", name, None) for name in ("SessionEnd", "Interrupt")),
    ("gemini", "BeforeTool", {**HALT, "decision": "deny", "reason": R}),
    ("gemini", "AfterTool", HALT),
    *(("gemini", name, {**HALT, "reason": R}) for name in ("BeforeAgent", "AfterAgent")),
    *(("gemini", name, None) for name in ("SessionStart", "SessionEnd", "Notification", "PreCompress")),
    ("opencode", "tool.execute.before", {"stop": R}),
]


@pytest.mark.parametrize(("vendor", "name", "answer"), STOPS, ids=[f"{v}-{n}" for v, n, _ in STOPS])
def test_stop_in_the_vendors_own_words(vendor: str, name: str, answer: Fields | None) -> None:
    """Only what that vendor accepts for that event: Codex rejects `continue` before a tool, and runs the tool."""
    assert stop_answer(vendor, {"hook_event_name": name}, R) == answer


def test_a_session_begins_once() -> None:
    """Only at that event may the daemon take its time."""
    assert begins("claude", {"hook_event_name": "SessionStart"})
    assert not begins("claude", {"hook_event_name": "PreToolUse"})
    assert not begins("claude", {})
