"""The words with which agent programs ask a person for a permission, as the last lines of a terminal show them. Pure.

A table of each vendor's dialogs: a question, and below it the choice that it offers. A question alone is not enough,
since agents ask and quote many; that of a plain program (`[y/N]`) counts in the very last line alone. What is found
decides about nobody's end: it is told to people.
"""

import re
from dataclasses import dataclass

LINES = 24  # of the screen, the last ones that are not empty: a question and its choices take fewer
CHOICES = 10  # and of those the last, one of which is the choice: others and a line of keys may stand below it
_FRAME = " \t│┃|║╭╮╰╯─━"  # what dialogs are drawn in
_MARK = r"^(?:[❯›>●○•*]\s*)?"  # before the choice that Enter would take


@dataclass(frozen=True, slots=True)
class Dialog:
    """What a dialog is called when it is told of, its question, and its choice, each somewhere in a line of its own."""

    name: str
    question: re.Pattern[str]
    choice: re.Pattern[str]


# As Claude Code 2, Codex 0.113, Gemini CLI and opencode 1 show them, by screens in their users' reports and tests. The
# plainest last: what fits several is called after the first.
DIALOGS = (
    Dialog("opencode's", re.compile(r"^(?:△ *)?Permission required"), re.compile(r"^Allow once +Allow always +Reject")),
    Dialog(
        "Gemini CLI's",
        re.compile(r"^(?:Apply this change\?|Allow execution of\b|Do you want to proceed\?|Allow .*tool)"),
        re.compile(_MARK + r"(?:\d\. )?(?:Yes, allow|Allow) once\b"),
    ),
    Dialog(
        "Codex's",
        re.compile(r"^Would you like to (?:run|make|grant)\b"),
        re.compile(_MARK + r"(?:1\. Yes, proceed\b|Press enter to confirm\b)"),
    ),
    Dialog("Claude Code's", re.compile(r"^(?:Do you want|Would you like) to\b"), re.compile(_MARK + r"1\. Yes\b")),
)
# apt, pip, ssh, gh, npm, git add -p and many more; the cursor stands behind it.
_YES_NO = re.compile(
    r"(?:\((?:y/n|yes/no(?:/\[fingerprint\])?|y)\)|\[(?:y/n|yes/no)(?:/\w+)*\]|\[y,n,[^]]*\])\s*[?:>]?$", re.IGNORECASE
)


def asked(screen: str) -> str | None:
    """What a screen's last lines ask a person for, in words of ours (none of the screen's); None: nothing."""
    lines = [line for line in (row.strip(_FRAME) for row in screen.splitlines()) if line][-LINES:]
    for dialog in DIALOGS:
        questions = [number for number, line in enumerate(lines) if dialog.question.search(line)]
        if questions and any(map(dialog.choice.search, lines[questions[-1] + 1 :][-CHOICES:])):
            return f"a prompt like {dialog.name}"
    return "a question for yes or no" if lines and _YES_NO.search(lines[-1]) else None
