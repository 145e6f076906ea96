"""Real payloads of the programs, as recorded by tests/vendors, and what our table makes of them, event by event.

`RECORD=1 make vendors` records them again, for each version that it runs.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from watchdog.agents.agent import Agent
from watchdog.core.agent import Policy, Registration, State, Status
from watchdog.core.beat import beat_of_json
from watchdog.core.vendor_hooks import event_name, session_of, words_of_event

Event = dict[str, Any]
RECORDED = Path(__file__).parents[1] / "vendors/recorded"
FILES = sorted(RECORDED.glob("*/*.jsonl"))


@dataclass(frozen=True)
class Then:
    """The agent as it is after an event."""

    event: Event
    state: State | None
    tool: str | None
    note: str | None
    asks: frozenset[str]

    @property
    def name(self) -> str:
        return event_name(self.event)


def events_in(path: Path) -> list[Event]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def replay(vendor: str, events: list[Event]) -> list[Then]:
    """The agent's state after each event."""
    agent = Agent(Registration("a" * 32, "alpha", 0, "host", "boot"), Policy(), Status.RUNNING)
    seen = []
    for number, event in enumerate(events):
        words = words_of_event(vendor, event, {}, main=True)
        if words is not None:
            beat, _ = beat_of_json({**words, **session_of(vendor, event)})
            agent.beat(beat, float(number), datetime.now(UTC))
        seen.append(
            Then(
                event,
                agent.heartbeat.said.state,
                agent.heartbeat.said.tool,
                agent.heartbeat.said.note,
                frozenset(agent.heartbeat.subagents.asks),
            )
        )
    return seen


def recorded(vendor: str, step: str) -> pytest.MarkDecorator:
    """The events of that step, for each recorded version."""
    paths = [path for path in FILES if path.parent.name.startswith(f"{vendor}-") and path.stem == step]
    assert paths, f"{vendor}: nobody has recorded {step!r}"
    return pytest.mark.parametrize("events", [pytest.param(events_in(path), id=path.parent.name) for path in paths])


def of(seen: list[Then], name: str, **fields: object) -> list[Then]:
    """The states after events of that name."""
    return [one for one in seen if one.name == name and all(one.event.get(k) == v for k, v in fields.items())]


def from_subagent(events: list[Event]) -> list[Event]:
    """The same events as a subagent sends them; its prompts and ends are not the main thread's."""
    return [{**event, "agent_id": "s1"} for event in events if "tool_name" in event or "notification_type" in event]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_event_is_a_beat(path: Path) -> None:
    """None is rejected, and a process with a single session always reports the same one."""
    vendor = path.parent.name.partition("-")[0]
    seen = replay(vendor, events_in(path))
    assert seen
    assert all(one.name for one in seen)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_nothing_of_a_machine_is_recorded(path: Path) -> None:
    """No directory, host, address, time, pid or long number of the recording machine."""
    found = re.findall(
        r"/(?:home|root|Users|opt|work)/|aw-\w+|\w+://[^\s\"]+|\w@\w+\.\w|20\d\d-\d\d|\b(?!1000000000000\b)[1-9]\d{4,}\b",
        path.read_text(),
    )
    assert not found


# -- Claude Code


@recorded("claude", "events_of_a_turn")
def test_claude_a_turn(events: list[Event]) -> None:
    """Prompt, tool, its end, rest, done."""
    seen = replay("claude", events)
    assert of(seen, "PreToolUse")[0].tool == "Bash"
    assert of(seen, "PostToolUse")[0].tool is None
    assert [one.state for one in of(seen, "Stop")] == [State.IDLE]
    assert seen[-1].state is State.DONE


@recorded("claude", "a_question_of_the_model")
def test_claude_a_question_is_over_with_its_answer(events: list[Event]) -> None:
    """It also sends a `permission_prompt`; the call's end has the answers besides the question."""
    seen = replay("claude", events)
    assert of(seen, "Notification", notification_type="permission_prompt")[0].state is State.WAITING
    ended = of(seen, "PostToolUse", tool_name="AskUserQuestion")[0]
    assert (ended.state, ended.asks) == (State.WORKING, frozenset())
    assert ended.event["tool_input"] != of(seen, "PreToolUse")[0].event["tool_input"]


@recorded("claude", "a_question_of_the_model")
def test_claude_a_subagents_question_is_over_with_its_answer(events: list[Event]) -> None:
    """Nothing else reports it: it once waited for ever, and a waiting agent is never found stalled."""
    seen = replay("claude", from_subagent(events))
    assert of(seen, "PreToolUse")[0].state is State.WAITING
    assert (seen[-1].state, seen[-1].asks) == (State.WORKING, frozenset())


@recorded("claude", "subagent_asks")
def test_claude_a_subagent_works_in_the_background(events: list[Event]) -> None:
    """The call that starts it is over at once, and the turn too; then its own events follow, with its id."""
    seen = replay("claude", events)
    assert of(seen, "PostToolUse", tool_name="Agent")[0].tool is None
    rests = of(seen, "Stop")[0]
    assert (rests.state, rests.note) == (State.IDLE, "idle; continues by itself: 1 background task")
    assert all(one.event["agent_id"] for one in of(seen, "PreToolUse", tool_name="Write"))


@recorded("claude", "background_command")
def test_claude_goes_on_by_itself(events: list[Event]) -> None:
    """The end of a background task is a prompt that no person typed."""
    seen = replay("claude", events)
    first, last = of(seen, "Stop")
    assert first.note == "idle; continues by itself: 1 background task"
    woken = of(seen, "UserPromptSubmit")[-1]
    assert woken.event["prompt"].startswith("<task-notification>")
    assert (woken.state, last.state, last.note) == (State.WORKING, State.IDLE, "")


@recorded("claude", "compaction")
def test_claude_rests_over_a_compaction(events: list[Event]) -> None:
    """PreCompact, ends of subagents that never started, a session start, PostCompact: none changes the state."""
    seen = replay("claude", events)
    began = next(number for number, one in enumerate(seen) if one.name == "PreCompact")
    assert {one.name for one in seen[began:]} >= {"PreCompact", "SubagentStop", "SessionStart", "PostCompact"}
    assert {one.state for one in seen[began - 1 :]} == {State.IDLE}
    assert of(seen, "SessionStart", source="compact")


@recorded("claude", "a_turn_that_fails")
def test_claude_a_failed_turn_has_no_stop(events: list[Event]) -> None:
    """StopFailure alone, and a minute later the notification that it is idle."""
    seen = replay("claude", events)
    assert not of(seen, "Stop")
    failed = of(seen, "StopFailure")[0]
    assert (failed.state, failed.note) == (State.WAITING, "its turn failed: unknown")
    assert of(seen, "Notification", notification_type="idle_prompt")[0].state is State.IDLE


# -- Codex


@recorded("codex", "events_of_a_turn")
def test_codex_a_turn(events: list[Event]) -> None:
    """Its exec_command is reported as `Bash`."""
    seen = replay("codex", events)
    before = of(seen, "PreToolUse")[0]
    assert (before.tool, set(before.event["tool_input"])) == ("Bash", {"command"})
    assert of(seen, "Stop")[0].state is State.IDLE
    assert seen[-1].state is State.DONE


@recorded("codex", "a_command_beyond_its_yield")
def test_codex_a_long_command_has_no_end(events: list[Event]) -> None:
    """It continues in the background after ten seconds: the end of the turn ends the tool."""
    seen = replay("codex", events)
    assert not of(seen, "PostToolUse")
    rests = of(seen, "Stop")[0]
    assert (rests.state, rests.tool) == (State.IDLE, None)


@recorded("codex", "subagent_stalls")
def test_codex_a_subagents_prompt_is_not_the_main_threads(events: list[Event]) -> None:
    """It has the subagent's id and the main thread's session; the main thread's tool and state stay."""
    (prompt,) = [event for event in events if event_name(event) == "UserPromptSubmit" and "agent_id" in event]
    assert prompt["session_id"] == events[0]["session_id"]
    in_a_tool = [event for event in events if "agent_id" not in event][:3]
    *_, before, after = replay("codex", [*in_a_tool, prompt])
    assert before.tool == "spawn_agent"
    assert (after.state, after.tool) == (before.state, before.tool)
    rests = [event for event in events if event_name(event) == "Stop" and "agent_id" not in event]
    assert replay("codex", [*in_a_tool, *rests, prompt])[-1].state is State.IDLE


@recorded("codex", "permission_dialog")
def test_codex_an_answered_prompt_is_over(events: list[Event]) -> None:
    """The call in the prompt has a description that the call itself lacks."""
    seen = replay("codex", events)
    asked, ended = of(seen, "PermissionRequest")[0], of(seen, "PostToolUse")[0]
    assert asked.event["tool_input"] != ended.event["tool_input"]
    assert (asked.state, ended.state) == (State.WAITING, State.WORKING)
    seen = replay("codex", from_subagent(events))
    assert of(seen, "PermissionRequest")[0].state is State.WAITING
    assert (seen[-1].state, seen[-1].asks) == (State.WORKING, frozenset())


@recorded("codex", "Esc_in_a_turn")
def test_codex_tells_of_esc(events: list[Event]) -> None:
    """Interrupt: it is back at its prompt."""
    seen = replay("codex", events)
    assert of(seen, "Interrupt")[0].state is State.IDLE


# -- Gemini CLI


@recorded("gemini", "events_of_a_turn")
def test_gemini_looks_at_its_memory_before_and_after_each_tool(events: list[Event]) -> None:
    """PreCompress changes neither state nor tool."""
    seen = replay("gemini", events)
    pairs = [(before, one) for before, one in pairwise(seen) if one.name == "PreCompress"]
    assert len(pairs) > 1
    assert all((one.state, one.tool) == (before.state, before.tool) for before, one in pairs)
    assert seen[-1].state is State.DONE


@recorded("gemini", "stop_at_rest")
def test_gemini_says_three_times_that_it_ends(events: list[Event]) -> None:
    """It is done from the first time on."""
    seen = replay("gemini", events)
    ends = of(seen, "SessionEnd")
    assert len(ends) > 1
    assert {one.state for one in ends} == {State.DONE}


@recorded("gemini", "permission_dialog")
def test_gemini_an_answered_prompt_is_over(events: list[Event]) -> None:
    """By the end of the tool."""
    seen = replay("gemini", events)
    assert of(seen, "Notification", notification_type="ToolPermission")[0].state is State.WAITING
    assert of(seen, "AfterTool")[0].state is State.WORKING
    assert of(seen, "AfterAgent")[0].state is State.IDLE


@recorded("gemini", "a_question_of_the_model")
def test_gemini_a_question_is_over_with_its_answer(events: list[Event]) -> None:
    """Its tool asks, and a notification follows."""
    seen = replay("gemini", events)
    assert of(seen, "BeforeTool", tool_name="ask_user")[0].state is State.WAITING
    assert of(seen, "AfterTool")[-1].state is State.WORKING


# -- opencode


@recorded("opencode", "events_of_a_turn")
def test_opencode_a_turn(events: list[Event]) -> None:
    """What our plugin passes on."""
    seen = replay("opencode", events)
    assert of(seen, "tool.execute.before")[0].tool == "bash"
    assert of(seen, "tool.execute.after")[0].tool is None
    assert seen[-1].state is State.IDLE
