"""Claude Code."""

from tests.vendors import steps
from tests.vendors.table import Row

ROWS = [
    Row(
        "hooks installed",
        "in its settings, out again byte for byte",
        steps.hooks_are_installed,
        share=True,
    ),
    Row(
        "events of a turn",
        "working, its tool, completed",
        steps.events("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", tool="Bash"),
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
    Row("retries after 529", "lives, calls nobody", steps.retries("overloaded")),
    Row("a turn that fails", "waits, lives", steps.failed_turn(75), recorded=True),
    Row("subagent at work", "lives", steps.works("sub")),
    Row("subagent stalls", "stalled, ended", steps.stalls("sub-stall"), tables=steps.RESTING),
    Row("subagent asks", "waiting, then at work", steps.subagent_asks, recorded=True),
    Row("background command", "idle, with its task, then without", steps.background_command, recorded=True),
    Row("background session", "lives on", steps.background_session),
    Row("compaction", "idle, lives", steps.compaction, recorded=True),
    Row("idle", "idle, lives", steps.idle),
    Row("permission dialog", "waiting, told, lives", steps.permission, share=True, recorded=True),
    Row(
        "permission dialog without hooks",
        "told, lives",
        steps.permission_without_hooks,
    ),
    Row("a question of the model", "waiting, told, lives", steps.question("Which way", "1"), recorded=True),
    Row("Esc in a turn", "idle, lives", steps.escape("slow")),
    Row("Esc at a dialog", "idle, lives", steps.escape_at_a_dialog, recorded=True),
    Row(
        "trust dialog",
        "told, lives",
        steps.dialog("Accessing workspace", nudged=False, prepare=steps.fresh_directory),
        tables=steps.STARTING,
    ),
    Row(
        "trust dialog, a policy that nudges",
        "nobody types",
        steps.dialog("Accessing workspace", nudged=True, prepare=steps.fresh_directory),
        policies=steps.NUDGES,
    ),
    Row("before the first prompt", "lives", steps.first_prompt_waits, tables=steps.STARTING),
    Row("stop at rest", "stopped", steps.stop_at_rest),
    Row("stop at work", "stopped after that tool", steps.stop_at_work),
    Row("stop over a draft", "the draft is not sent", steps.draft(hooks=True)),
    Row("stop over a draft, without hooks", "the draft is not sent", steps.draft(hooks=False)),
    Row("resume", "the same conversation", steps.resume),
    Row("a script of its name", "heard, or told why not", steps.a_script_of_its_name, tables=steps.STARTING),
]
