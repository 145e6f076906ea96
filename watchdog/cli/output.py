"""What the verbs print: safe text, aligned tables, times and durations, and the exit status of an answer.

Names, notes and messages come from others: control characters and everything that moves a terminal's cursor or reverses
text is escaped, never sent.
"""

import errno
import json
import os
import re
import select
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from watchdog.core.verdict import span

Json = dict[str, object]

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
NEEDS_PERSON = "needs a person"  # the label in `list` and `why` of an agent that waits for a person
ELSEWHERE = "elsewhere"  # and of one that another daemon of this host watches
# By a cell's word: a colour adds no information.
_COLOURS = {
    NEEDS_PERSON: "bold magenta",
    "healthy": "green",
    "completed": "green",
    "ending": "yellow",
    "failed": "red",
    "lost": "red",
    "waiting": "cyan",
    "starting": "cyan",
    "late": "yellow",
    "unknown": "yellow",
    "stalled": "red",
    "expired": "red",
    "lingering": "red",
    "gone": "red",
    "unkillable": "red",
}
_CELL_ROOM = 24  # columns for a cell; a longer one is wrapped
_LEAST_ROOM = 10  # for the first column, which shrinks if space is short
_LAST_ROOM = 40  # for the last column, a sentence; with less it is put below the row
_STAMP = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
# HTTP status of a refused request -> sysexits.h; everything else is 1.
_EXITS = {400: 64, 403: 77, 429: 75, 503: 75, 507: 75}


def clean(value: object) -> str:
    """Text with everything that a terminal would interpret escaped (`\\x1b`); None is empty."""
    text = "" if value is None else str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii") if unicodedata.category(character) in _UNSAFE else character
        for character in text
    )


def say(text: str = "") -> None:
    """Print one line to stdout."""
    sys.stdout.write(text + "\n")


def warn(text: str) -> None:
    """Print one line to stderr, with our name."""
    sys.stderr.write(f"agent-watchdog: {text}\n")


def read_on(other: int | None = None, seconds: float | None = None) -> None:
    """Wait until that descriptor is readable, or for `seconds`. Raises BrokenPipeError once stdout has no reader.

    A write would detect that too, but the next write may be days away. A pipe without a reader gives POLLERR, a closed
    terminal POLLHUP (poll(2)); a file gives neither.
    """
    sys.stdout.flush()
    look = _stdout_watched()
    if other is not None:
        look.register(other, select.POLLIN)
    found = dict(look.poll(None if seconds is None else seconds * 1000))
    if any(descriptor != other for descriptor in found):
        raise BrokenPipeError(errno.EPIPE, "the reader of the output is gone")


def nobody_reads() -> bool:
    """Whether stdout's reader is gone; a write to a closed terminal fails with EIO, like a broken disk."""
    return bool(_stdout_watched().poll(0))


def _stdout_watched() -> select.poll:
    look = select.poll()
    with suppress(OSError, ValueError):
        look.register(sys.stdout.fileno(), 0)
    return look


def say_json(value: object) -> None:
    """Print one JSON value for programs; in ASCII, so nothing in it can move a cursor."""
    say(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table: by rich for people at a terminal, else aligned text (the last column is never
    truncated).
    """
    lines = [[clean(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        return _pretty(head, lines)
    widths = [max(len(line[i]) for line in [list(head), *lines]) for i in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [list(head), *lines]
    ]


def _pretty(head: Sequence[str], lines: list[list[str]]) -> list[str]:
    """Drawn by rich, without empty columns; if it gets too narrow the last one is put below each row."""
    from rich.console import Console  # 70 ms, and only for people
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(no_color=bool(os.environ.get("NO_COLOR")), highlight=False)
    kept = [i for i in range(len(head)) if i == len(head) - 1 or any(line[i] not in ("", "-") for line in lines)]
    head, lines = [head[i] for i in kept], [[line[i] for i in kept] for line in lines]
    widths = [min(_CELL_ROOM, max(len(cell) for cell in column)) for column in zip(head, *lines, strict=True)]
    room = console.width - sum(widths[:-1]) - 2 * (len(widths) - 1)
    below = room < min(_LAST_ROOM, widths[-1])
    widths[0] = max(_LEAST_ROOM, widths[0] + min(0, room + 2)) if below else widths[0]

    def drawn(rows: list[list[str]], *, titles: bool) -> Table:
        view = Table(box=None, pad_edge=False, header_style="bold", show_header=titles)
        for title, width in list(zip(head, widths, strict=True))[: -1 if below else None]:
            # A long name must not squeeze the other columns: it is wrapped.
            is_last = title == head[-1]
            view.add_column(title, overflow="fold", width=None if is_last else width, no_wrap=title in ("ID", "PID"))
        for row in rows:
            # Text, never markup: a name may contain [brackets].
            view.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
        return view

    with console.capture() as capture:
        if below:
            console.print(drawn([], titles=True))
            for line in lines:
                console.print(drawn([line[:-1]], titles=False))
                console.print(Padding(Text(line[-1], overflow="fold"), (0, 0, 0, 4)))
        else:
            console.print(drawn(lines, titles=True))
    return [line.rstrip() for line in capture.get().splitlines()]


def ago(seconds: object) -> str:
    """Seconds for people; empty for None."""
    return "" if not isinstance(seconds, int | float) else span(timedelta(seconds=seconds))


def clock(stamp: object) -> str:
    """A UTC stamp as local date and time, to the second."""
    if not isinstance(stamp, str):
        return ""
    try:
        at = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    except ValueError:
        return clean(stamp)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def local(text: object) -> str:
    """The daemon's text with its UTC stamps as local time, so that a terminal shows one time zone."""
    return _STAMP.sub(lambda found: clock(found[0]), clean(text))


def entries(value: object) -> list[Json]:
    """The JSON objects in a value of an answer, whatever its type."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def entry(value: object) -> Json:
    """The value of an answer if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def size(count: object) -> str:
    """Bytes for people: `8 MiB`, `1.5 GiB`, `7 bytes`."""
    if not isinstance(count, int | float):
        return f"{clean(count)} bytes"
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{round(count / (1 << power), 1):g} {unit}"
    return f"{count} bytes"


def refused(status: int, answer: Json) -> int:
    """Print why a request was refused; return its exit status."""
    for line in str(answer.get("message") or f"the daemon answered {status}").splitlines():
        warn(local(line))
    if answer.get("error") == "registry_unavailable":
        warn("what to do: agent-watchdog doctor")
    return _EXITS.get(status, 1)


def exit_of(results: Iterable[Json]) -> int:
    """0: all succeeded; 77: all failures were for lack of permission; else 1, also for a pane that stays."""
    results = list(results)
    errors = {str(result.get("error")) for result in results if not result.get("success")}
    if not errors:
        return 1 if any(result.get("pane_cleanup_failed") for result in results) else 0
    return 77 if errors == {"permission_denied"} else 1


def ran(run: Json) -> str:
    """A cleanup hook's run in a line; the outcome is not repeated if the hook's message begins with it."""
    outcome = clean(run.get("outcome") or run.get("status"))
    if outcome == "running":  # the rest of its row is from the previous try
        tried, said = run.get("attempts") not in (None, 1), clean(run.get("message"))
        now = f"try {clean(run.get('attempts'))} is running" if tried else "it is running"
        return f"cleanup {clean(run.get('hook'))}: {now}{f'; the one before: {said}' if tried and said else ''}"
    tries = f" after {clean(run.get('attempts'))} tries" if run.get("attempts") not in (None, 1) else ""
    words = clean(run.get("message")).removeprefix(f"{outcome} ")
    return f"cleanup {clean(run.get('hook'))}: {outcome}{tries}; {words}".rstrip("; ")
