"""Which screens ask a person for a permission, and which only write about it."""

import pytest

from watchdog.core.prompts import asked

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


@pytest.mark.parametrize(
    ("screen", "like"),
    [
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
    """Wherever it stands on the screen, if nothing much stands below it."""
    assert asked(screen) == f"a prompt like {like}"


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
    """What was answered has something below it."""
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
        "1. Yes\n2. No\nDo you want to proceed?\n",  # nothing to choose below it
        CLAUDE + "a line of work\n" * 12,  # it has been answered
        "❯ 1. Yes\n" + "x\n" * 30,
        "it printed (y/n) in the middle of a line\n",
        "✻ Thinking… (59s · ↓ 999 tokens · esc to interrupt)\n",
        "PRESS ENTER TO CONFIRM\n",
    ],
)
def test_other_screens_ask_for_nothing(screen: str) -> None:
    """Words alone are no dialog."""
    assert asked(screen) is None


def test_nothing_of_the_screen_is_told() -> None:
    """It may hold a secret."""
    assert "hunter2" not in str(asked("Do you want to use the password hunter2?\n❯ 1. Yes\n"))
