"""opencode: its events are what our plugin (`cli/opencode.js`) passes on.

Tests: tests/core/test_vendors.py, tests/core/test_vendor_hooks.py.
"""

from watchdog.core.vendors.vendor import Answer, Vendor


def stop(event: str, reason: str) -> Answer:
    """Tell our plugin, which ends the turn."""
    return {"stop": reason}


VENDOR = Vendor(
    "opencode",
    exit_keys=("/exit", "Enter"),
    prompted=frozenset({"--prompt"}),
    for_persons=frozenset({"attach"}),
    without=frozenset({"run", "serve", "acp", "web"}),
    takes_directory=True,
    paths=("/opencode-ai/", "/opencode-linux-"),
    shell_tool="bash",
    stop=stop,
    events={
        "plugin.loaded": "start",
        "session.created": "start",
        "chat.message": "prompt",
        "tool.execute.before": "tool",
        "tool.execute.after": "tool_over",
        "permission.asked": "ask",
        "permission.updated": "ask",  # before 1.1
        "permission.replied": "work",
        "session.status": "status",
        "session.idle": "rest",
        "session.error": "failure",
    },
)
