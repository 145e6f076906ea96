"""Codex: headless, in one process (`--no-daemon`), and with the app-server that all sessions of a user share."""

from tests.vendors import steps
from tests.vendors.table import Row

ROWS = [
    Row("hooks installed", "in its settings, out again byte for byte", steps.hooks_are_installed, share=True),
    Row(
        "events of a turn",
        "working, its tool, completed",
        steps.events("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", tool="Bash"),
        share=True,
        recorded=True,
    ),
    Row("works for long", "lives", steps.works("long")),
    Row("a command beyond its yield", "idle, lives", steps.command_beyond_its_yield, recorded=True),
    Row("stall in a stream", "stalled, ended", steps.stalls("stall"), share=True),
    Row("no answer at all", "stalled, ended", steps.stalls("mute")),
    Row("stall in a tool", "stalled, ended whole", steps.stalls_in_a_tool),
    Row("kill", "the whole tree, MCP children too", steps.kill, share=True),
    Row("retries after 429", "lives, calls nobody", steps.retries("limited")),
    Row("retries after 529", "lives, calls nobody", steps.retries("overloaded")),
    Row("a turn that fails", "waits, lives", steps.failed_turn(30)),
    Row("subagent at work", "lives", steps.subagent_works_behind_a_prompt, recorded=True),
    Row(
        "subagent stalls",
        "stalled, ended",
        steps.subagent_stalls_behind_a_prompt,
        tables=steps.RESTING,
        recorded=True,
    ),
    Row("idle", "idle, lives", steps.idle),
    Row("permission dialog", "waiting, told, lives", steps.permission, share=True, recorded=True),
    Row("permission dialog without hooks", "told, lives", steps.permission_without_hooks),
    Row("Esc in a turn", "idle, lives", steps.escape("slow"), recorded=True),
    Row("Esc at a dialog", "idle, lives", steps.escape_at_a_dialog),
    Row(
        "trust dialog",
        "told, lives",
        steps.dialog("Trust this folder", nudged=False, prepare=steps.fresh_directory),
        tables=steps.STARTING,
    ),
    Row(
        "trust dialog, a policy that nudges",
        "nobody types",
        steps.dialog("Trust this folder", nudged=True, prepare=steps.fresh_directory),
        policies=steps.NUDGES,
    ),
    Row("before the first prompt", "lives", steps.first_prompt_waits, tables=steps.STARTING),
    Row("stop at rest", "stopped", steps.stop_at_rest),
    Row("stop at work", "stopped after that tool", steps.stop_at_work),
    Row("stop over a draft", "the draft is not sent", steps.draft(hooks=True)),
    Row("resume", "the same conversation", steps.resume),
    Row("shared app-server: the first agent leaves", "the second one's command runs on", steps.first_leaves),
    Row("shared app-server: the second is killed", "its command is ended", steps.second_is_killed(hooks=True)),
    Row(
        "shared app-server: the second is killed, no hooks",
        "its command is ended",
        steps.second_is_killed(hooks=False),
        "without hooks nothing tells whose session a command belongs to; `run` says what is not ended with it",
    ),
    Row("shared app-server: one of two hangs", "stalled, ended", steps.one_hangs_behind_another),
    Row("shared app-server: under --stall-after", "lives", steps.shared_session_has_started, tables=steps.STARTING),
]
