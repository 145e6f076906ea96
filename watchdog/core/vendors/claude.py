"""Claude Code, by Anthropic.

Tests: tests/core/test_vendors.py, tests/core/test_vendor_hooks.py.
"""

from watchdog.core.vendors.vendor import ID, NOTHING_ENDS, Answer, Vendor, denied, halt


def stop(event: str, reason: str) -> Answer:
    """End the turn and deny the call in one answer."""
    match event:
        case "PreToolUse":
            return {**halt(reason), "hookSpecificOutput": denied(event, reason)}
        case "PermissionRequest":
            decision = {"behavior": "deny", "message": reason, "interrupt": True}
            return {**halt(reason), "hookSpecificOutput": {"hookEventName": event, "decision": decision}}
    return None if event in NOTHING_ENDS else halt(reason)


VENDOR = Vendor(
    "claude",
    exit_keys=("/exit", "Enter"),
    prompted=frozenset({"-p", "--print"}),
    paths=("/@anthropic-ai/claude-code", "/claude/versions/"),
    markers=("CLAUDE_CODE_SESSION_ID",),  # in shell commands, hooks, MCP servers
    shell_tool="Bash",
    shell_limit="BASH_DEFAULT_TIMEOUT_MS",
    stop=stop,
    conversation=rf"(/.*)/projects/[^/]+/({ID})\.jsonl",
    resume="claude --resume {}",
    events={
        "SessionStart": "start",
        "UserPromptSubmit": "prompt",
        "PreToolUse": "tool",
        "PostToolUse": "tool_over",
        "PostToolUseFailure": "tool_over",
        "PermissionRequest": "ask",
        "PermissionDenied": "tool_over",
        "Elicitation": "ask",
        "ElicitationResult": "work",
        "Notification": "notification",
        "SubagentStart": "thread",
        "SubagentStop": "thread_over",
        "Stop": "rest",
        "StopFailure": "failure",
        "SessionEnd": "end",
    },
)
