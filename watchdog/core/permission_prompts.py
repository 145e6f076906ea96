"""Recognises prompts by which agent programs ask a person, in the last lines of a terminal. Pure.

A table of each vendor's dialogs, including those at startup: a question, and below it a choice. A question alone is not
enough, since agents ask and quote many; the question of a plain program (`[y/N]`) counts only in the very last line. A
menu with an unknown question is recognised by its marked choice and the keys named below it.

An agent whose screen asks a question waits for a person: this is reported, nothing is typed, and it is not killed for
silence. An agent that reported that it waits, and whose screen shows it working, has been answered (`works`).
"""

import re
from dataclasses import dataclass

LINES = 24  # the last non-empty lines of the screen that are searched: a question and its choices take fewer
CHOICES = 10  # lines after the question that are searched for the choice
_FRAME = " \t│┃|║╭╮╰╯─━"  # what dialogs are drawn in
_MARK = r"^(?:[❯›>●○•*]\s*)?"  # before the choice that Enter would take


@dataclass(frozen=True, slots=True)
class Dialog:
    """A dialog: the name in reports, its question, and its choice, each in a line of its own."""

    name: str
    question: re.Pattern[str]
    choice: re.Pattern[str]


def _dialog(name: str, question: str, choice: str) -> Dialog:
    """`choice`: its text after the mark of the selected choice and its number, if it has them."""
    return Dialog(name, re.compile(f"^(?:{question})"), re.compile(rf"{_MARK}(?:\d\. )?(?:{choice})"))


# As Claude Code 2.1.332, Codex 0.171.0, Gemini CLI 0.61.0 and opencode 1.18.33 show them (tried); earlier versions
# according to screens in their users' reports and tests. The most generic last: the first match names the dialog.
DIALOGS = (
    _dialog("opencode's", r"(?:△ *)?Permission required", "Allow once +Allow always +Reject"),
    _dialog(
        "Gemini CLI's",
        r"Apply this change\?|Allow execution of\b|Do you want to proceed\?|Allow .*tool",
        r"(?:Yes, allow|Allow) once\b",
    ),
    _dialog("Gemini CLI's", r"Do you trust (?:the files in )?this folder\?", r"Trust (?:parent )?folder\b"),
    _dialog("Gemini CLI's", r"How would you like to authenticate\b", r"(?:Sign in|Login) with Google\b"),
    _dialog("Gemini CLI's", r"Enter Gemini API Key\b", r"\(Press Enter to submit\b"),
    _dialog("Codex's", r"Would you like to (?:run|make|grant)\b", r"Yes, proceed\b|Press enter to confirm\b"),
    _dialog(
        "Codex's",
        r"Trust this folder\?|Do you trust the contents of this directory\?",
        r"Trust and continue\b|Yes, continue\b",
    ),
    _dialog("Codex's", r"Hooks need review\b", r"Review hooks\b"),
    _dialog(
        "Claude Code's",
        r"Quick safety check: Is this a project you|Do you trust the files in this folder\?",
        r"Yes, (?:I trust this folder|proceed)\b|No, exit\b",
    ),
    _dialog("Claude Code's", r"Do you want to use this API key\?", r"Yes$|No \(recommended\)"),
    _dialog(
        "Claude Code's", r"(?:\d+ )?[Nn]ew MCP servers? found in this project", r"Use this MCP server\b|Continue w"
    ),
    _dialog("Claude Code's", r"Exit plan mode\?|Claude wants to exit plan mode", r"Yes\b"),
    _dialog("Claude Code's", r"(?:Do you want|Would you like) to\b", r"Yes(?:,|$)"),
)
MENU = 14  # lines above a menu's line of keys that are searched for the marked choice
_KEYS = re.compile(
    r"^\(?(?:press |use )?(?:enter|esc|↑/↓)\b.*\b(?:select|confirm|continue|submit|cancel|skip|back|reject)\b",
    re.IGNORECASE,
)
_MARKED = re.compile(r"^[❯›●] (?:\d+\. )?[^\s/@]")
RUNNING = 14  # last lines that are searched for the line of a running turn: the prompt and its footer are below it
# What Codex 0.171.0 and Gemini CLI 0.61.0 show above their prompt while a turn runs, with its clock; a dialog replaces
# both (tried). Gemini CLI shows other words there for a command that writes nothing.
_RUNS = re.compile(
    r"\((?:(?:\d+[hms] ?)+ • esc to interrupt|esc to cancel, (?:\d+[hms] ?)+)\)|^! Shell awaiting input \(Tab"
)
# apt, pip, ssh, gh, npm, git add -p and many more; the cursor is right after it.
_YES_NO = re.compile(
    r"(?:\((?:y/n|yes/no(?:/\[fingerprint\])?|y)\)|\[(?:y/n|yes/no)(?:/\w+)*\]|\[y,n,[^]]*\])\s*[?:>]?$", re.IGNORECASE
)


def asked(screen: str) -> str | None:
    """What a screen's last lines ask a person for, in our own words (no text of the screen); None: nothing."""
    lines = [line for line in (row.strip(_FRAME) for row in screen.splitlines()) if line][-LINES:]
    for dialog in DIALOGS:
        questions = [number for number, line in enumerate(lines) if dialog.question.search(line)]
        if questions and any(map(dialog.choice.search, lines[questions[-1] + 1 :][-CHOICES:])):
            return f"a prompt like {dialog.name}"
    for number, line in enumerate(lines[-4:], len(lines) - len(lines[-4:])):
        if _KEYS.search(line) and any(map(_MARKED.search, lines[max(0, number - MENU) : number])):
            return "a menu of choices"
    return "a question for yes or no" if lines and _YES_NO.search(lines[-1]) else None


def works(screen: str) -> bool:
    """Whether a screen's last lines show a running turn and no question, for programs whose turns are recognised."""
    lines = [line for line in (row.strip(_FRAME) for row in screen.splitlines()) if line][-RUNNING:]
    return any(map(_RUNS.search, lines)) and asked(screen) is None
