"""How a process of each vendor looks in /proc, and how its agent is named."""

import re
from pathlib import Path

import pytest

from watchdog.cli.vendor_settings import FILES
from watchdog.core import session_states, vendors
from watchdog.core.names import name_problem
from watchdog.core.vendors import KNOWN, VENDORS, agent_name, is_called, is_launcher, is_prompt, is_unprompted, runs_as

NODE = "/usr/bin/node"
HOME = "/home/ada"
ROWS = [
    ("claude", ["claude"], f"{HOME}/.local/share/claude/versions/2.1.197", "native"),
    ("claude", [f"{HOME}/.local/bin/claude", "-p", "go"], f"{HOME}/.local/share/claude/versions/2.1.197", "native"),
    ("claude", ["2.1.197"], f"{HOME}/.local/share/claude/versions/2.1.197 (deleted)", "native"),  # after an update
    ("claude", ["claude"], NODE, "native"),  # it overwrote its argv with its title
    ("claude", ["node", "/usr/local/bin/claude", "--resume"], NODE, "script"),
    ("claude", ["node", "--no-warnings", f"{HOME}/n/@anthropic-ai/claude-code/cli.js"], NODE, "script"),
    ("claude", ["/bin/sh", "-c", "agent-watchdog beat --from claude"], "/usr/bin/dash", None),
    ("claude", ["bash", "/usr/local/bin/claude"], "/usr/bin/bash", None),
    ("claude", ["vim", "claude"], "/usr/bin/vim", None),
    ("claude", ["node", "server.js", "claude"], NODE, None),
    ("claude", ["claude-squad"], "/usr/local/bin/claude-squad", None),
    ("claude", ["codex"], "/usr/local/bin/codex", None),
    ("claude", [], "", None),
    ("codex", ["codex"], "/opt/codex/codex-x86_64-unknown-linux-musl", "native"),
    ("codex", ["/n/@openai/codex/vendor/codex/codex", "exec"], "/n/@openai/codex/vendor/codex/codex", "native"),
    ("codex", ["node", "/usr/bin/codex", "exec"], NODE, "script"),
    ("codex", ["codex-linux-sandbox", "--", "make"], "/usr/local/bin/codex", None),
    ("gemini", ["node", "/usr/bin/gemini"], NODE, "script"),
    ("gemini", ["/usr/bin/node", "--max-old-space-size=8192", "/n/@google/gemini-cli/dist/index.js"], NODE, "script"),
    ("opencode", ["opencode"], f"{HOME}/.opencode/bin/opencode", "native"),
    ("opencode", ["/n/opencode-ai/bin/.opencode"], "/n/opencode-ai/bin/.opencode", "native"),
    ("opencode", ["node", "/usr/bin/opencode"], NODE, "script"),
]


@pytest.mark.parametrize(("vendor", "argv", "executable", "how"), ROWS)
def test_a_process_is_the_vendors_program(vendor: str, argv: list[str], executable: str, how: str | None) -> None:
    """By its argv and its program file."""
    assert runs_as(vendor, argv, executable) == how


def test_a_launcher_only_starts_another_program() -> None:
    """A login shell has a dash before its name; npm and npx overwrite their argv with what they do."""
    for argv in (["sh", "-c", "x"], ["-bash"], ["/usr/bin/env", "claude"], ["npm exec @openai/codex"], ["timeout"]):
        assert is_launcher(argv)
    for argv in (["python3", "orchestrate.py"], ["claude"], ["node", "x.js"], ["make"], []):
        assert not is_launcher(argv)


@pytest.mark.parametrize(
    "words",
    [
        *("bash", "-zsh", "sh -i", "bash --rcfile x", "zsh -o vi", "bash -eo pipefail", "/usr/bin/fish -C cd", "tcsh"),
        *("fish --init-command cd", "bash -s word", "sh -is -- word"),
    ],
)
def test_a_shell_without_a_command_is_interactive(words: str) -> None:
    """Also one with an init file or with arguments."""
    assert is_prompt(words.split())


@pytest.mark.parametrize(
    "words", ["sh -c x", "bash -lic x", "bash script", "bash -euo pipefail script -s", "env sh", ""]
)
def test_a_shell_that_runs_a_script_is_not_interactive(words: str) -> None:
    """Its pane was made for the script."""
    assert not is_prompt(words.split())


def test_a_name_has_program_directory_and_pid() -> None:
    """It is a name that the daemon accepts, whatever the directory is called."""
    assert agent_name("claude", "/srv/api/", 4711) == "claude-api-4711"
    assert agent_name("codex", "/home/ada/my proj (ü)", 7) == "codex-my-proj-----7"
    for directory in ("", "/", "relative", "/" + "x" * 300, "/a\nb"):
        for vendor in VENDORS:
            assert name_problem(agent_name(vendor, directory, 4194304)) is None


@pytest.mark.parametrize(
    ("vendor", "line", "unprompted"),
    [
        ("codex", "codex", True),
        ("codex", "codex --no-daemon -C /srv --model gpt", True),
        ("codex", "node /usr/bin/codex --no-daemon", True),
        ("codex", "codex resume --last", True),
        ("codex", "codex fix", False),
        ("codex", "codex exec fix", False),
        ("codex", "node /usr/bin/codex exec", False),
        ("codex", "codex --model=gpt fix", False),
        ("opencode", "opencode", True),
        ("opencode", "opencode /srv/api", True),
        ("opencode", "opencode run fix", False),
        ("opencode", "opencode --prompt fix", False),
        ("gemini", "/usr/bin/node --max-old-space-size=8192 /n/@google/gemini-cli/dist/index.js", True),
        ("gemini", "node /usr/bin/gemini -i fix", False),
        ("gemini", "node /usr/bin/gemini --prompt=fix", False),
        ("claude", "claude --permission-mode manual", True),
        ("claude", "claude --resume", True),
        ("claude", "claude -p", False),
        ("claude", "claude fix", False),
    ],
)
def test_a_command_line_holds_a_first_prompt_or_leaves_it_to_a_person(vendor: str, line: str, unprompted: bool) -> None:
    """A word after an option may be its value: in doubt there is no prompt."""
    assert is_unprompted(vendor, line.split()) is unprompted


def test_any_program_may_have_a_vendors_name() -> None:
    """So may a script; whether it beats for an agent is decided by its marker."""
    assert is_called("claude", ["bash", "/srv/claude"])
    assert is_called("claude", ["claude"])
    assert not is_called("claude", ["bash", "/srv/other", "claude"])
    assert not is_called("claude", [])


def test_each_vendor_has_a_module_that_is_in_the_table() -> None:
    """A file with its name."""
    there = {path.stem for path in Path(vendors.__file__).parent.glob("*.py")} - {"__init__", "vendor"}
    for name in there - KNOWN.keys():
        pytest.fail(f"core/vendors/{name}.py is known to nobody: add it to _ALL in watchdog/core/vendors/__init__.py")
    assert set(KNOWN) == there


@pytest.mark.parametrize("name", KNOWN)
def test_the_fields_of_a_vendor_are_consistent(name: str) -> None:
    """A vendor with hooks has a file for them, and its events have known kinds."""
    vendor, where = KNOWN[name], f"watchdog/core/vendors/{name}.py"
    assert vendor.name == name, f"{where}: is not its name"
    assert bool(vendor.events) == (name in FILES), f"{where}: has hooks, or watchdog/cli/vendor_settings.py has a file"
    kinds = {"start", "prompt", "work", "tool", "tool_over", "ask", "notification", "rest", "interrupt", "failure"}
    kinds |= {"status", "end", "thread", "thread_over"}
    assert set(vendor.events.values()) <= kinds, f"{where}: an event of a kind that core/vendor_hooks.py does not know"
    reads = name in session_states._OF
    assert vendor.tells_file == reads, f"{where}: `tells_file`, or _OF in core/session_states.py reads it"
    assert bool(vendor.conversation) == bool(vendor.resume), f"{where}: a conversation, and how it is resumed"
    assert not vendor.conversation or re.compile(vendor.conversation).groups == 2, f"{where}: directory and id"
    assert vendor.paths or not vendor.events, f"{where}: `paths` tell its program from others of its name"
