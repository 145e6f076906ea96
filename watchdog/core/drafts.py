"""Whether the prompt of an agent program contains a draft, according to its terminal screen. Pure.

Exit keys typed after a half-written prompt would send it. The four programs leave the terminal's cursor in their
prompt, even if they hide it (tried: Claude Code 2.1.332, Codex 0.171.0, Gemini CLI 0.61.0, opencode 1.18.33). An empty
prompt may show a suggestion, which is drawn faint or grey, after the cursor.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ROWS = 40  # rows of a draft that are searched above the cursor
_FRAME = " \t\xa0│┃|║╭╮╰╯─━▀▄╹"
# What precedes the text of a prompt: `❯ ` `› ` ` > ` `│ > `; in opencode the left bar of a box.
_MARK = re.compile(r"[\s│|]*[❯›>][ \xa0]")
_BAR = re.compile(r"\s*┃  ")
_ESCAPE = re.compile(r"\x1b(?:\[([0-9;:]*)([@-~])|\].*?(?:\x07|\x1b\\|$)|[@-_a-z])")
_GREY = frozenset({8, *range(235, 251)})  # of 256 colours


@dataclass(frozen=True, slots=True)
class _Cell:
    text: str
    faint: bool


def draft(rows: Sequence[str], x: int, y: int) -> bool | None:
    """Whether the prompt that holds the cursor contains a draft; None: the cursor is in no known prompt.

    `rows`: the screen with its colours (`tmux capture-pane -e`), `x` and `y` the cursor's column and row from 0.
    """
    screen = _cells(rows)
    if not 0 <= y < len(screen):
        return None
    for above in range(min(y, ROWS) + 1):
        row = screen[y - above]
        plain = "".join(cell.text for cell in row)
        found = _MARK.match(plain) or _BAR.match(plain)
        if found is None and (above == 0 or row):
            if any(cell.text not in _FRAME for cell in row[:1]):
                return None  # a line that begins at the edge is not the second line of a prompt
            continue
        if found is None or x < found.end():
            return None
        if above or x > found.end():
            return True  # only typed text moves the cursor
        at_cursor, behind = row[x : x + 1], row[x + 1 :]  # some programs draw the cell at the cursor in reverse
        lone = _is_written(at_cursor) and all(cell.text in _FRAME for cell in behind)
        beside = _more(screen, y, x, bar=_MARK.match(plain) is None)
        return lone or _is_written(behind) or any(map(_is_written, beside))
    return None


def _more(screen: list[list[_Cell]], y: int, start: int, *, bar: bool) -> Iterator[list[_Cell]]:
    """The rows next to the cursor's that belong to the same prompt, from its first column on."""
    beside = [y + 1, y - 1] if bar else [y + 1]
    for number in beside:
        row = screen[number] if 0 <= number < len(screen) else []
        if all(cell.text in _FRAME for cell in row[:start]):
            yield row[start:]


def _is_written(cells: list[_Cell]) -> bool:
    return any(cell.text not in _FRAME and not cell.faint for cell in cells)


def _cells(rows: Sequence[str]) -> list[list[_Cell]]:
    """One cell per column; in tmux's output a colour carries over to the next row."""
    faint = grey = False
    screen = []
    for row in rows:
        cells: list[_Cell] = []
        place = 0
        while place < len(row):
            escape = _ESCAPE.match(row, place)
            if escape is not None:
                if escape.group(2) == "m":
                    faint, grey = _style(escape.group(1), faint, grey)
                place = escape.end()
                continue
            one, place = row[place], place + 1
            if unicodedata.combining(one):
                continue
            cells.append(_Cell(one, faint or grey))
            if unicodedata.east_asian_width(one) in "WF":
                cells.append(_Cell(" ", faint or grey))
        screen.append(cells)
    return screen


def _style(codes: str, faint: bool, grey: bool) -> tuple[bool, bool]:
    """Whether the text that follows is faint, and whether it is grey (ECMA-48, SGR)."""
    numbers = [int(code) if code.isdigit() and len(code) < 4 else 0 for code in re.split("[;:]", codes or "0")]
    while numbers:
        code = numbers.pop(0)
        if code == 0:
            faint = grey = False
        elif code == 2:
            faint = True
        elif code == 22:
            faint = False
        elif code in (38, 48):
            kind = numbers.pop(0) if numbers else 0
            taken, numbers = (numbers[:1], numbers[1:]) if kind == 5 else (numbers[:3], numbers[3:])
            if code == 38:
                grey = taken[0] in _GREY if len(taken) == 1 else _is_grey(taken)
        elif 30 <= code <= 39 or 90 <= code <= 97:
            grey = code == 90
    return faint, grey


def _is_grey(rgb: list[int]) -> bool:
    return len(rgb) == 3 and max(rgb) - min(rgb) <= 16 and 60 <= max(rgb) <= 190
