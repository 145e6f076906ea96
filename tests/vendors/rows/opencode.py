"""opencode."""

from tests.vendors import steps
from tests.vendors.table import Row

ROWS = [
    Row("hooks installed", "in its settings, out again byte for byte", steps.hooks_are_installed, share=True),
    Row(
        "events of a turn",
        "working, its tool, completed",
        steps.events("chat.message", "tool.execute.before", "tool.execute.after", "session.status", tool="bash"),
        share=True,
        recorded=True,
    ),
    Row("works for long", "lives", steps.works("long")),
    Row("a tool within its declared limit", "lives", steps.works("limit")),
    Row("stall in a stream", "stalled, ended", steps.stalls("stall"), share=True),
    Row("no answer at all", "stalled, ended", steps.stalls("mute")),
    Row("stall in a tool", "stalled, ended whole", steps.stalls_in_a_tool),
    Row("kill", "the whole tree, MCP children too", steps.kill, share=True),
    Row("retries after 429", "lives, calls nobody", steps.retries("limited")),
    Row("retries after 429, then", "nothing of it is said any more", steps.note_after_a_retry, recorded=True),
    Row("a turn that fails", "waits, lives", steps.failed_turn(30)),
    Row("subagent at work", "lives", steps.works("sub"), recorded=True),
    Row("subagent stalls", "stalled, ended", steps.stalls("sub-stall")),
    Row("idle", "idle, lives", steps.idle),
    Row("permission dialog", "waiting, told, lives", steps.permission, share=True, recorded=True),
    Row("permission dialog without hooks", "told, lives", steps.permission_without_hooks),
    Row("a question of the model", "waiting, told, lives", steps.question("Which way", "Enter")),
    Row("a tool within its declared limit, behind a dialog", "lives", steps.limit_behind_a_dialog),
    Row("Esc in a turn", "idle, lives", steps.escape("slow", "again to interrupt")),
    Row("Esc in a tool", "idle, lives", steps.escape("long", "again to interrupt", tool=True)),
    Row("Esc at a dialog", "idle, lives", steps.escape_at_a_dialog),
    Row("before the first prompt", "lives", steps.first_prompt_waits, tables=steps.STARTING),
    Row("stop at rest", "stopped", steps.stop_at_rest),
    Row("stop at work", "stopped after that tool", steps.stop_at_work, recorded=True),
    Row("stop over a draft", "the draft is not sent", steps.draft(hooks=True)),
    Row("words of `run`", "killed for silence before its first beat", steps.words_of_run),
]
