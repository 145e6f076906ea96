"""What the verbs print: safe text, aligned tables, times and durations, and the exit status of an answer.

Names, notes and messages are other people's words: control characters and everything that moves a terminal's cursor
or reverses its text is shown, never sent.
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
NEEDS_PERSON = "needs a person"  # what `list` and `why` call an agent that waits for one
ELSEWHERE = "elsewhere"  # and one that another daemon of this host watches
# By the word that a cell holds: a colour tells nothing that its word does not.
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
_CELL_ROOM = 24  # columns of a terminal for a cell; a longer one takes more lines
_LEAST_ROOM = 10  # for the first one, which gives what is missing
_LAST_ROOM = 40  # for the last one, which is a sentence; with less it stands below
_STAMP = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
# HTTP status of a refused request -> sysexits.h; everything else is 1.
_EXITS = {400: 64, 403: 77, 429: 75, 503: 75, 507: 75}


def clean(value: object) -> str:
    """Text with everything that a terminal would act upon written out (`\\x1b`); None is empty."""
    text = "" if value is None else str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii") if unicodedata.category(character) in _UNSAFE else character
        for character in text
    )


def say(text: str = "") -> None:
    """One line to stdout."""
    sys.stdout.write(text + "\n")


def warn(text: str) -> None:
    """One line to stderr, with our name."""
    sys.stderr.write(f"agent-watchdog: {text}\n")


def read_on(other: int | None = None, seconds: float | None = None) -> None:
    """Wait until that descriptor can be read, or so many seconds. Raises BrokenPipeError once stdout has no reader.

    A write would tell that too, but the next thing to be written may take days. A pipe without a reader says POLLERR,
    a terminal that was closed POLLHUP (poll(2)); a file has no reader and says nothing.
    """
    sys.stdout.flush()
    look = _stdout_watched()
    if other is not None:
        look.register(other, select.POLLIN)
    found = dict(look.poll(None if seconds is None else seconds * 1000))
    if any(descriptor != other for descriptor in found):
        raise BrokenPipeError(errno.EPIPE, "the reader of the output is gone")


def nobody_reads() -> bool:
    """Whether our stdout's reader has gone; a write to a terminal that was closed says EIO, as a broken disk does."""
    return bool(_stdout_watched().poll(0))


def _stdout_watched() -> select.poll:
    look = select.poll()
    with suppress(OSError, ValueError):
        look.register(sys.stdout.fileno(), 0)
    return look


def say_json(value: object) -> None:
    """One JSON value for programs; ASCII, so nothing in it can move a cursor."""
    say(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table: by rich for people at a terminal, else aligned text (the last column is never cut)."""
    lines = [[clean(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        return _pretty(head, lines)
    widths = [max(len(line[i]) for line in [list(head), *lines]) for i in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [list(head), *lines]
    ]


def _pretty(head: Sequence[str], lines: list[list[str]]) -> list[str]:
    """Drawn by rich, without columns that say nothing; where it gets too narrow the last one stands below each row."""
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
            # One long name must not take the others' columns away: it takes more lines.
            is_last = title == head[-1]
            view.add_column(title, overflow="fold", width=None if is_last else width, no_wrap=title in ("ID", "PID"))
        for row in rows:
            # Text, never markup: a name may hold [brackets].
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
    """Seconds as people say them; empty for None."""
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
    """The daemon's words, each UTC stamp in them as local time: one terminal has one time."""
    return _STAMP.sub(lambda found: clock(found[0]), clean(text))


def entries(value: object) -> list[Json]:
    """A list of JSON objects out of an answer, whatever came."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def entry(value: object) -> Json:
    """A JSON object out of an answer, whatever came."""
    return value if isinstance(value, dict) else {}


def size(count: object) -> str:
    """Bytes as a person reads them: `8 MiB`, `1.5 GiB`, `7 bytes`."""
    if not isinstance(count, int | float):
        return f"{clean(count)} bytes"
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{round(count / (1 << power), 1):g} {unit}"
    return f"{count} bytes"


def refused(status: int, answer: Json) -> int:
    """Tell why a request was refused; the exit status for it."""
    for line in str(answer.get("message") or f"the daemon answered {status}").splitlines():
        warn(local(line))
    if answer.get("error") == "registry_unavailable":
        warn("what to do: agent-watchdog doctor")
    return _EXITS.get(status, 1)


def exit_of(results: Iterable[Json]) -> int:
    """0: all are as wanted; 77: every one that is not was refused for permission; else 1, a pane that stays too."""
    results = list(results)
    errors = {str(result.get("error")) for result in results if not result.get("success")}
    if not errors:
        return 1 if any(result.get("pane_cleanup_failed") for result in results) else 0
    return 77 if errors == {"permission_denied"} else 1


def ran(run: Json) -> str:
    """A cleanup hook's run in a line; the outcome is not said twice where the hook's words begin with it."""
    outcome = clean(run.get("outcome") or run.get("status"))
    if outcome == "running":  # what its row says beside is of the try before
        tried, said = run.get("attempts") not in (None, 1), clean(run.get("message"))
        now = f"try {clean(run.get('attempts'))} is running" if tried else "it is running"
        return f"cleanup {clean(run.get('hook'))}: {now}{f'; the one before: {said}' if tried and said else ''}"
    tries = f" after {clean(run.get('attempts'))} tries" if run.get("attempts") not in (None, 1) else ""
    words = clean(run.get("message")).removeprefix(f"{outcome} ")
    return f"cleanup {clean(run.get('hook'))}: {outcome}{tries}; {words}".rstrip("; ")
