"""Codex, by OpenAI.

Tests: tests/core/test_vendors.py, tests/core/test_vendor_hooks.py.
"""

from watchdog.core.vendors.vendor import ID, NOTHING_ENDS, Answer, Vendor, denied, halt


def stop(event: str, reason: str) -> Answer:
    """Deny the call: Codex rejects `continue` before a tool and at a permission prompt (the hook fails, the tool runs).

    The next event ends the turn.
    """
    match event:
        case "PreToolUse":
            return {"hookSpecificOutput": denied(event, reason)}
        case "PermissionRequest":
            refused = {"behavior": "deny", "message": reason}
            return {"hookSpecificOutput": {"hookEventName": event, "decision": refused}}
    return None if event in NOTHING_ENDS else halt(reason)


VENDOR = Vendor(
    "codex",
    exit_keys=("C-c", "C-c"),
    for_persons=frozenset({"resume", "fork"}),
    paths=("/@openai/codex",),
    markers=("CODEX_THREAD_ID", "CODEX_SESSION_ID"),  # in shell commands; the first is a subagent's own
    stop=stop,
    many_sessions=True,
    tells_file=True,
    hides_answers=True,
    conversation=rf"(/.*)/sessions/\d{{4}}/\d\d/\d\d/rollout-[^/]*-({ID})\.jsonl",
    resume="codex resume {}",
    events={
        "SessionStart": "start",
        "UserPromptSubmit": "prompt",
        "PreToolUse": "tool",
        "PostToolUse": "tool_over",
        "PermissionRequest": "ask",
        "SubagentStart": "thread",
        "SubagentStop": "thread_over",
        "Stop": "rest",
        "StopFailure": "failure",
        "Interrupt": "interrupt",
        "SessionEnd": "end",
    },
)
