"""Turns an event of a vendor hook into a beat, and a request to stop into the hook's answer. Pure.

The tables are in `core.vendors`. Events and fields are those that the vendors document (Claude Code, Codex, Gemini CLI:
JSON on stdin; opencode: what our plugin passes on). An event that is not in the table only shows that its agent lives.
Imported at each event, so it imports nothing that costs time.
"""

import json
import zlib

from watchdog.core.sd_notify import MAX_SECONDS, Words, printable
from watchdog.core.vendors import KNOWN, VENDORS

Event = dict[str, object]
MAX_PATH = 4096  # bytes of a path including its NUL (PATH_MAX, limits.h)

# A sign of life: the state is left as it is, so that an idle agent stays idle, and nothing is promised.
SIGN: Words = {"promises": False}
RESTS: Words = {"state": "idle", "tool": ""}
_EVENTS = {name: KNOWN[name].events for name in VENDORS}
_ASKING_TOOLS = frozenset({"AskUserQuestion", "ExitPlanMode", "ask_user", "request_user_input", "question"})
# Keys that not all events of one call have: a question's answers come with its end, Codex' reason only with its prompt.
_BESIDE = frozenset({"answers", "annotations", "description"})
_SHELL_SECONDS = 120.0  # Claude Code and opencode kill a shell command after two minutes unless the call sets a timeout
_ASKED = frozenset({"permission_prompt", "elicitation_dialog", "ToolPermission"})
# Reasons that end the session but not the process: the next session begins in the same process.
_GOES_ON = frozenset({"clear", "resume"})
_ABORTED = frozenset({"MessageAbortedError", "AbortError"})  # by a person's Escape, or by us: nothing is asked
_PERSONS = frozenset({"cli"})  # values of CLAUDE_CODE_ENTRYPOINT that mean a person uses Claude Code interactively


def event_name(event: Event) -> str:
    """The name of an event in its vendor's spelling; empty if it has none."""
    return _text(event, "hook_event_name")


def kind_of(vendor: str, event: Event) -> str:
    """The kind of an event, in our terms."""
    return _EVENTS[vendor].get(event_name(event), "sign")


def begins(vendor: str, event: Event) -> bool:
    """Whether it starts a session, of which the daemon hears for the first time."""
    return _EVENTS[vendor].get(event_name(event)) == "start"


def words_of_event(vendor: str, event: Event, environ: dict[str, str], *, main: bool) -> Words | None:
    """The beat for an event, or None: it says nothing about its agent.

    `main`: the vendor's process is the agent's main process; if a script merely runs the program, its end is not the
    agent's. A subagent's event resets the silence and declares its tool; only the main thread sets the state. But a
    subagent's prompt is over when the call in question is: no event of the main thread would report that.
    """
    kind = _EVENTS[vendor].get(event_name(event), "sign")
    words = _tool(vendor, event, environ) if kind == "tool" else _words(kind, event, environ)
    if words is None:
        return None
    if kind == "ask" or (kind == "tool" and words.get("state") == "waiting"):
        words["asks"] = _call(event)
    if event.get("agent_id"):
        return words if words.get("state") == "waiting" else _of_thread(kind, words, event)
    if words.get("state") == "done" and not main:
        words = dict(SIGN)
    transcript = _text(event, "transcript_path")
    if transcript.startswith("/") and transcript.isprintable() and len(transcript) < MAX_PATH:
        words["transcript"] = transcript
    return words


def session_of(vendor: str, event: Event) -> Words:
    """Which session reports, or ends with, this event, if one process may have many at once (app servers, editors'
    ACP).

    Claude Code's process has one at a time, and may leave one without an event when it resumes another.
    """
    session = _text(event, "session_id")
    if not KNOWN[vendor].many_sessions or not session:
        return {}
    ends = _EVENTS[vendor].get(event_name(event)) == "end"
    return {"session_ended" if ends else "session": printable(session[:128])}


def _of_thread(kind: str, words: Words, event: Event) -> Words:
    """The words of a subagent's event: its tool, the start or end of its turn, and the call that is over."""
    said: Words = {"thread": printable(_text(event, "agent_id")[:128]), **SIGN}
    match kind:
        case "tool":
            said |= {key: value for key, value in words.items() if key.startswith("tool")}
        case "tool_over":
            said |= {"tool": "", "answered": _call(event)}
        case "prompt" | "thread":
            said["goes_on"] = True
        case "rest" | "failure" | "interrupt" | "thread_over":
            said["goes_on"] = False
    return said


def _words(kind: str, event: Event, environ: dict[str, str]) -> Words | None:
    match kind:
        case "start":  # it waits for its first prompt; a compaction starts a session during work
            # opencode: a subagent's session, or another session of a working process
            within = _text(event, "source") == "compact" or event.get("parent") or event.get("busy")
            return dict(SIGN) if within else {"state": "idle"}
        case "prompt":
            return {"state": "working", "tool": "", "note": ""}
        case "work":
            return {"state": "working"}
        case "tool_over":
            return {"state": "working", "tool": ""}
        case "ask":
            return {"state": "waiting"}
        case "notification":
            return _notification(event)
        case "rest":
            return dict(SIGN) if event.get("busy") else {**RESTS, **_left_running(event, environ)}
        case "interrupt":  # a person is there
            return {**RESTS, "goes_on": False}
        case "failure" if _error(event) in _ABORTED:
            return _words("rest", event, environ)
        case "failure":  # it does not retry on its own
            return {
                "state": "waiting",
                "tool": "",
                "asks": "turn",
                "note": printable(f"its turn failed: {_error(event)}"),
            }
        case "status":
            return _status(event, environ)
        case "end" if _text(event, "reason") in _GOES_ON:  # the next session reports again what continues
            return {**RESTS, "goes_on": False}
        case "end":
            return {"state": "done", "tool": ""}
        case _:
            return dict(SIGN)


def _call(event: Event) -> str:
    """Identifies the tool call and its thread. A prompt has no id of its call, only the call's arguments."""
    call = event.get("tool_input")
    if isinstance(call, dict):
        call = {key: value for key, value in call.items() if key not in _BESIDE}
    words = json.dumps(call, sort_keys=True, default=str)
    thread = _text(event, "agent_id")[:64]
    return printable(f"{thread} {event.get('tool_name', '')}"[:128] + f" {zlib.crc32(words.encode()):08x}")


def _tool(vendor: str, event: Event, environ: dict[str, str]) -> Words:
    name = _text(event, "tool_name")
    words: Words = {"state": "waiting" if name in _ASKING_TOOLS else "working", "tool": printable(name)}
    call = event.get("tool_input")
    arguments = call if isinstance(call, dict) else {}
    known = KNOWN[vendor]
    if name and name == known.shell_tool and not arguments.get("run_in_background"):
        asked = _milliseconds(arguments.get("timeout"))
        usual = _milliseconds(environ.get(known.shell_limit))
        words["tool_limit_seconds"] = asked or usual or _SHELL_SECONDS
    return words


def _notification(event: Event) -> Words | None:
    kind, message = _text(event, "notification_type"), _text(event, "message").lower()
    if kind in _ASKED or (not kind and "permission" in message):  # before 2.0.37 Claude Code sent no type
        return {"state": "waiting"}
    if kind == "idle_prompt" or (not kind and "waiting for your input" in message):
        return dict(RESTS)
    return None


def _left_running(event: Event, environ: dict[str, str]) -> Words:
    """What continues while the agent is idle: that will wake it, and its promise stays in force meanwhile.

    A background command may be a server that is meant to run for days: in an interactive session it promises nothing.
    Without a person (`claude -p`) the session ends after it.
    """
    parts = []
    words: Words = {}
    for key, one in (("background_tasks", "background task"), ("session_crons", "scheduled prompt")):
        listed = event.get(key)
        if not isinstance(listed, list):
            continue
        found = [each for each in listed if _goes_on(each)]
        if key == "background_tasks":
            attended = environ.get("CLAUDE_CODE_ENTRYPOINT", "cli") in _PERSONS
            words["goes_on"] = any(not (attended and _is_command(task)) for task in found)
        if found:
            parts.append(f"{len(found)} {one}{'s' if len(found) > 1 else ''}")
    return {**words, "note": f"idle; continues by itself: {', '.join(parts)}"} if parts else words


def _is_command(task: object) -> bool:
    return isinstance(task, dict) and (task.get("type") == "shell" or ("type" not in task and "command" in task))


def _goes_on(task: object) -> bool:
    """Whether a listed task is running or pending; without a status it counts as running."""
    status = task.get("status") if isinstance(task, dict) else None
    return status in (None, "running", "pending")


def _status(event: Event, environ: dict[str, str]) -> Words | None:
    """opencode: one of its sessions is busy, waits for its provider, or is idle. `was`: its previous status."""
    found = event.get("status")
    status = found if isinstance(found, dict) else {}
    over: Words = {"note": ""} if event.get("was") == "retry" else {}  # clears the note about the retry
    match _text(status, "type"):
        case "busy":
            return {"state": "working", **over}
        case "retry":
            return {"state": "blocked", "note": printable(f"tries again: {_text(status, 'message')}")}
        case "idle":
            return {**(_words("rest", event, environ) or {}), **over}
    return None


def ends_turn(event: Event, answer: dict[str, object]) -> bool:
    """Whether an answer that stops the agent is itself the end of the turn, without a further event.

    Claude Code 2.1 runs no Stop hook after `continue: false`. In a subagent only the subagent's turn ends.
    """
    return answer.get("continue") is False and not event.get("agent_id")


def stop_answer(vendor: str, event: Event, reason: str) -> dict[str, object] | None:
    """The answer that makes the vendor end its agent's turn and start no tool, as JSON for stdout; None: none does.

    Codex rejects `continue` before a tool and at a permission prompt (the hook fails, and the tool runs), so there the
    call is denied, and the next event ends the turn. Gemini and Claude Code accept both at once.
    """
    return KNOWN[vendor].stop(event_name(event), reason)


def _text(event: Event, key: str) -> str:
    value = event.get(key)
    return value if isinstance(value, str) else ""


def _error(event: Event) -> str:
    """The kind of a failure, never its full text, which may quote what was sent."""
    found = event.get("error")
    if isinstance(found, dict):
        found = found.get("name") or found.get("type")
    return found[:80] if isinstance(found, str) and found else "no reason given"


def _milliseconds(value: object) -> float | None:
    """Milliseconds as seconds; None if the value is not a positive number."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
        return None
    return min(value / 1000, MAX_SECONDS)
