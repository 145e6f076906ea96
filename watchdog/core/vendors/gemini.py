"""Gemini CLI, by Google.

Tests: tests/core/test_vendors.py, tests/core/test_vendor_hooks.py.
"""

from watchdog.core.vendors.vendor import NOTHING_ENDS, Answer, Vendor, halt


def stop(event: str, reason: str) -> Answer:
    """End the turn and deny the call in one answer, in its own format."""
    match event:
        case "BeforeTool":
            return {**halt(reason), "decision": "deny", "reason": reason}
        case "BeforeAgent" | "AfterAgent":
            return {**halt(reason), "reason": reason}
    return None if event in NOTHING_ENDS or event == "SessionStart" else halt(reason)


VENDOR = Vendor(
    "gemini",
    exit_keys=("C-c", "C-c"),
    prompted=frozenset({"-p", "--prompt", "-i", "--prompt-interactive"}),
    paths=("/@google/gemini-cli",),
    markers=("GEMINI_SESSION_ID",),  # in hooks
    stop=stop,
    many_sessions=True,
    tells_file=True,
    hides_answers=True,
    events={
        "SessionStart": "start",
        "BeforeAgent": "prompt",
        "BeforeTool": "tool",
        "AfterTool": "tool_over",
        "Notification": "notification",
        "AfterAgent": "rest",
        "SessionEnd": "end",
    },
)
