"""Which screens ask a person for a permission, and which only write about it."""

import pytest

from watchdog.core.permission_prompts import asked, works

CLAUDE = """
╭──────────────────────────────────────────────╮
│ Bash command                                 │
│   rm -rf build                               │
│ Do you want to proceed?                      │
│ ❯ 1. Yes                                     │
│   2. Yes, and don't ask again for rm commands│
│   3. No, and tell Claude what to do          │
╰──────────────────────────────────────────────╯
 Esc to cancel · Tab to amend
"""
EDIT = " Do you want to make this edit to a.py?\n ❯ 1. Yes\n   2. Yes, allow all edits\n   3. No (esc)\n"
CODEX = """
  Would you like to run the following command?
  $ make test
› 1. Yes, proceed (y)
  2. No, and tell Codex what to do differently (esc)

  Press enter to confirm or esc to cancel
"""
GEMINI = "│ Apply this change? │\n│ ● 1. Yes, allow once │\n│   2. Yes, allow always │\n│   3. No (esc) │\n"
GEMINI_EXEC = "Allow execution of: 'ls'?\n\n● Yes, allow once\n  No, suggest changes (esc)\n"
OPENCODE = "┃ △ Permission required\n┃ # touch x\n┃ Allow once   Allow always   Reject    enter confirm\n"


TRUST_CLAUDE = """
 Accessing workspace:
 /srv/api
 Quick safety check: Is this a project you created or one you trust? (Like your own code.) If not, take a moment.
 Claude Code'll be able to read, edit, and execute files here.
 Security guide
 ❯ No, exit
   Yes, I trust this folder
 Enter to confirm · Esc to cancel
"""
KEY = """
  Detected a custom API key in your environment
  ANTHROPIC_API_KEY: sk-ant-...xyz
  Do you want to use this API key?
    Yes
  ❯ No (recommended)
  Enter to confirm · Esc to cancel
"""
MCP = """
  New MCP server found in this project: slow
  MCP servers may execute code or access system resources.
    Use this MCP server
    Use this and all future MCP servers in this project
  ❯ Continue without using this MCP server
  Enter to confirm · Esc to reject
"""
PLAN = "   Exit plan mode?\n   Claude wants to exit plan mode\n   ❯ 1. Yes, and switch to default\n     2. No\n"
FETCH = " Do you want to allow Claude to fetch this content?\n ❯ 1. Yes\n   2. Yes, and don't ask again\n   3. No\n"
ASK = """
 ☐ Colour
Which colour?
❯ 1. Red
     a colour
  2. Blue
     another
  3. Type something.
────────────────────
  4. Chat about this
Enter to select · ↑/↓ to navigate · Esc to cancel
"""
TRUST_CODEX = """
  Folder access
  /srv/api
  Trust this folder? Codex can read, edit, and run files here.
› 1. Trust and continue
  2. Back to Agent Command Center
  enter continue · esc back
"""
HOOKS = """
  Hooks need review
  10 hooks are new or changed.
› 1. Review hooks
  2. Trust all and continue
  3. Continue without trusting (hooks won't run)
  enter confirm · esc skip
"""
TRUST_GEMINI = """
│ Do you trust the files in this folder?      │
│ Trusting a folder allows Gemini CLI to load its local configurations. │
│ ● 1. Trust folder (api)                     │
│   2. Trust parent folder (srv)              │
│   3. Don't trust                            │
"""
AUTH = """
│ ? Get started                               │
│   How would you like to authenticate for this project? │
│     1. Sign in with Google                  │
│   ● 2. Use Gemini API Key                   │
│     3. Vertex AI                            │
│   (Use Enter to select)                     │
│   Terms of Services and Privacy Notice for Gemini CLI  │
│   https://geminicli.com/docs/               │
"""
LOGIN = "Select login method:\n❯ Account with subscription\n  Console account\nEnter to confirm · Esc to cancel\n"


@pytest.mark.parametrize(
    ("screen", "like"),
    [
        (TRUST_CLAUDE, "Claude Code's"),
        (KEY, "Claude Code's"),
        (MCP, "Claude Code's"),
        (PLAN, "Claude Code's"),
        (FETCH, "Claude Code's"),
        (TRUST_CODEX, "Codex's"),
        (HOOKS, "Codex's"),
        (TRUST_GEMINI, "Gemini CLI's"),
        (AUTH, "Gemini CLI's"),
        (CLAUDE, "Claude Code's"),
        (EDIT, "Claude Code's"),
        (CODEX, "Codex's"),
        (GEMINI, "Gemini CLI's"),
        (GEMINI_EXEC, "Gemini CLI's"),
        (OPENCODE, "opencode's"),
        ("some words\n" * 200 + CLAUDE + "\n\n\n", "Claude Code's"),
    ],
)
def test_a_vendors_dialog_is_known_by_its_question_and_its_choice(screen: str, like: str) -> None:
    """Anywhere on the screen, if only a few lines are below it."""
    assert asked(screen) == f"a prompt like {like}"


@pytest.mark.parametrize("screen", [ASK, LOGIN, "● Red\n  Blue\n(Use Enter to select)\na note\nanother\n"])
def test_a_menu_is_known_by_its_marked_choice_and_the_keys_below_it(screen: str) -> None:
    """Whatever it asks, with or without numbered choices."""
    assert asked(screen) == "a menu of choices"
    assert asked(screen + "a line of work\n" * 4) is None


@pytest.mark.parametrize(
    "line",
    [
        "Do you want to continue? [Y/n]",
        "Proceed (Y/n)?",
        "Are you sure you want to continue connecting (yes/no/[fingerprint])? ",
        "? Overwrite? (y/N) ",
        "Ok to proceed? (y) ",
        "Stage this hunk [y,n,q,a,d,e,?]? ",
        "Go on? [yes/no]:",
    ],
)
def test_a_plain_question_counts_in_the_last_line_alone(line: str) -> None:
    """An answered question has output below it."""
    assert asked(f"Reading lists...\n{line}\n\n") == "a question for yes or no"
    assert asked(f"{line}\ny\nSetting up\n") is None
    assert asked(f"{line} y\n") is None


@pytest.mark.parametrize(
    "screen",
    [
        "",
        "\n\n",
        "Do you want to proceed?\n> ",  # a question without its choice
        "The dialog says: Do you want to proceed? and offers 1. Yes\n",  # within a sentence
        "1. Yes\n2. No\nDo you want to proceed?\n",  # no choice below it
        CLAUDE + "a line of work\n" * 12,  # it has been answered
        "❯ 1. Yes\n" + "x\n" * 30,
        "it printed (y/n) in the middle of a line\n",
        "✻ Thinking… (59s · ↓ 999 tokens · esc to interrupt)\n",
        "PRESS ENTER TO CONFIRM\n",
        "❯ \n  ⏸ manual mode on · ? for shortcuts\n",
        "› 1. fix this\n  2. and that\n• Working (3s • esc to interrupt)\n› \n",
        "❯ half a draft\n  esc to interrupt\n",
    ],
)
def test_other_screens_ask_for_nothing(screen: str) -> None:
    """Text alone is not a dialog."""
    assert asked(screen) is None


def test_nothing_of_the_screen_is_reported() -> None:
    """It may hold a secret."""
    assert "hunter2" not in str(asked("Do you want to use the password hunter2?\n❯ 1. Yes\n"))


CODEX_WORKS = """
✔ You approved codex to run touch made.txt; sleep 600 this time
• Running touch made.txt; sleep 600
◦ Working (8s • esc to interrupt)
› Ask Codex to do anything
  played default · /x/w · please play:gate
"""
GEMINI_WORKS = """
│ ⊷  Shell touch made.txt; sleep 600                         (Tab to focus) │
╰───────────────────────────────────────────────────────────────────────────╯
 ⠦ Thinking... (esc to cancel, 2m 7s)                         ? for shortcuts
─────────────────────────────────────────────────────────────────────────────
 Shift+Tab to accept edits
 >   Type your message or @path/to/file
 workspace (/directory)          sandbox                       /model
 /x/w                            no sandbox                    Auto
"""


@pytest.mark.parametrize(
    "screen",
    [
        CODEX_WORKS,
        CODEX_WORKS.replace("8s", "1h 02m 05s"),
        GEMINI_WORKS,
        GEMINI_WORKS.replace("⠦ Thinking... (esc to cancel, 2m 7s)", "! Shell awaiting input (Tab to focus)"),
    ],
)
def test_a_turn_that_goes_on_is_known_by_its_clock(screen: str) -> None:
    """The clock replaces an answered dialog; or by the line of a command that writes nothing."""
    assert works(screen)
    assert not works(screen + "a line of work\n" * 14)


@pytest.mark.parametrize(
    "screen",
    [
        "",
        CODEX,
        GEMINI_EXEC,
        ASK,  # Esc to cancel
        CODEX_WORKS + CODEX,
        GEMINI_WORKS + GEMINI,
        CODEX_WORKS.replace("◦ Working (8s • esc to interrupt)", "■ Conversation interrupted"),
        GEMINI_WORKS.replace("Thinking... (esc to cancel, 2m 7s)", ""),
        "it says (esc to interrupt) or (esc to cancel)\n",
    ],
)
def test_a_screen_that_asks_or_rests_shows_no_work(screen: str) -> None:
    """Nor does one whose text only looks like it."""
    assert not works(screen)
