"""Gemini CLI."""

from tests.vendors import steps
from tests.vendors.table import Row

TRUST = "Do you trust the files"

ROWS = [
    Row("hooks installed", "in its settings, out again byte for byte", steps.hooks_are_installed, share=True),
    Row(
        "events of a turn",
        "working, its tool, completed",
        steps.events("SessionStart", "BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent", tool="run_shell_command"),
        share=True,
        recorded=True,
    ),
    Row("works for long", "lives", steps.works("long")),
    Row("stall in a stream", "stalled, ended", steps.stalls("stall"), share=True),
    Row("no answer at all", "stalled, ended", steps.stalls("mute")),
    Row("stall in a tool", "stalled, ended whole", steps.stalls_in_a_tool),
    Row("stall in a shell command", "stalled, ended whole", steps.stalls("hang")),
    Row("kill", "the whole tree, MCP children too", steps.kill, share=True),
    Row("retries after 429", "lives, calls nobody", steps.retries("limited", "--stall-after", "60s")),
    Row("a turn that fails", "waits, lives", steps.failed_turn(30)),
    Row("subagent at work", "lives", steps.works("sub")),
    Row("subagent stalls", "stalled, ended", steps.stalls("sub-stall")),
    Row("idle", "idle, lives", steps.idle),
    Row("permission dialog", "waiting, told, lives", steps.permission, share=True, recorded=True),
    Row("permission dialog without hooks", "told, lives", steps.permission_without_hooks),
    Row("a question of the model", "waiting, told, lives", steps.question("Which way", "Enter"), recorded=True),
    Row("a tool hangs behind a dialog", "waiting, then stalled, ended", steps.stalls_behind_a_dialog),
    Row("Esc in a turn", "idle, lives", steps.escape("slow")),
    Row("Esc in a tool", "idle, lives", steps.escape("long", tool=True)),
    Row("Esc at a dialog", "idle, lives", steps.escape_at_a_dialog),
    Row(
        "trust dialog",
        "told, lives",
        steps.dialog(TRUST, nudged=False, prepare=steps.fresh_directory),
        tables=steps.STARTING,
    ),
    Row(
        "trust dialog, a policy that nudges",
        "nobody types",
        steps.dialog(TRUST, nudged=True, prepare=steps.fresh_directory),
        policies=steps.NUDGES,
    ),
    Row("before the first prompt", "lives", steps.first_prompt_waits, tables=steps.STARTING),
    Row("stop at rest", "stopped", steps.stop_at_rest, recorded=True),
    Row("stop at work", "stopped after that tool", steps.stop_at_work),
    Row("stop over a draft", "the draft is not sent", steps.draft(hooks=True)),
]
