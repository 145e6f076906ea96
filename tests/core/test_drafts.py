"""Which screens contain a draft: prompts of the four programs as tmux shows them, with colours and cursor."""

import pytest

from watchdog.core.drafts import draft

E = "\x1b["
RULE = f"{E}38;5;244m" + "─" * 20
CLAUDE = f"{E}39m❯\xa0", 2
CODEX = f"{E}1m›{E}0m{E}39m{E}49m ", 2
GEMINI = f" {E}38;5;183m> {E}38;5;231m", 3
BAR = f"    {E}38;5;75m┃{E}38;5;15m{E}48;5;234m  "
OPENCODE = BAR, 7
PROMPTS = {"claude": CLAUDE, "codex": CODEX, "gemini": GEMINI, "opencode": OPENCODE}
BOX = {
    "claude": ([RULE], [f"{E}0m{RULE}", f"{E}39m  ⏸ manual mode on"]),
    "codex": ([""], ["", f"  {E}38;5;223mfake default{E}39m · /srv"]),
    "gemini": ([f"{E}48;5;240m"], ["", f"{E}49m {E}38;5;248mworkspace (/directory)"]),
    "opencode": ([BAR], [BAR, f"{BAR}{E}38;5;75mBuild", f"    {E}38;5;75m╹{E}38;5;234m▀▀▀▀"]),
}
EMPTY = {
    "claude": [f"{E}7m", f"{E}7mT{E}0;2mry an edit{E}0m"],
    "codex": [f"{E}2mAsk Codex to do anything"],
    "gemini": [f"{E}7m{E}39m {E}0m{E}38;5;248m{E}48;5;240m Type your message", ""],
    "opencode": [f"{E}38;5;8mAsk anything… {E}38;5;15m       {E}48;5;232m", f"{E}90mAsk{E}39m"],
}


def screen(vendor: str, *lines: str) -> list[str]:
    """Its prompt with these lines, from row 2 on; only the first has the prompt's mark."""
    before, after = BOX[vendor]
    first, start = PROMPTS[vendor]
    more = [f"{BAR}{line}" if vendor == "opencode" else " " * start + line for line in lines[1:]]
    return ["some words", *before, first + lines[0], *more, *after]


@pytest.mark.parametrize(("vendor", "line"), [(vendor, line) for vendor, lines in EMPTY.items() for line in lines])
def test_what_could_be_asked_is_no_draft(vendor: str, line: str) -> None:
    """A suggestion is drawn faint or grey, after the cursor."""
    assert draft(screen(vendor, line), PROMPTS[vendor][1], 2) is False


@pytest.mark.parametrize("vendor", PROMPTS)
def test_what_is_written_is_a_draft_wherever_the_cursor_stands_in_it(vendor: str) -> None:
    """At its end, at its beginning, in a second line, or on an empty line of it."""
    start = PROMPTS[vendor][1]
    assert draft(screen(vendor, "half a draft"), start + 12, 2) is True
    assert draft(screen(vendor, "half a draft"), start, 2) is True
    assert draft(screen(vendor, "x"), start, 2) is True
    assert draft(screen(vendor, "half", "a draft"), start + 7, 3) is True
    assert draft(screen(vendor, "", "a draft"), start, 2) is True
    assert draft(screen(vendor, "half", ""), start, 3) is True
    assert draft(screen(vendor, "漢字"), start + 4, 2) is True


@pytest.mark.parametrize(
    ("rows", "x", "y"),
    [
        ([], 0, 0),
        (["$ "], 2, 0),
        (["some words", "more of them"], 4, 1),
        (["❯ 1. Yes", "  2. No"], 1, 0),  # a menu with the cursor on the mark
        (screen("claude", ""), 0, 4),
        (screen("claude", ""), 2, 99),
    ],
)
def test_elsewhere_nothing_is_known(rows: list[str], x: int, y: int) -> None:
    """A shell, a log, a menu: neither a draft nor an empty prompt."""
    assert draft(rows, x, y) is None


def test_other_ways_to_draw_grey() -> None:
    """By RGB values; background colours do not count; text that is not grey is a draft."""
    for style, written in (("38;2;136;136;136", False), ("38;2;200;10;10", True), ("48;5;240", True), ("2;22", True)):
        assert draft(screen("codex", f"{E}{style}mAsk Codex{E}0m"), 2, 2) is written
    assert draft(screen("codex", "\x1b]8;;http://x\x1b\\"), 2, 2) is False
