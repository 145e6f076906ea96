"""What the verbs print: safe text, aligned tables, times and durations, and the exit status of an answer.

Names, notes and messages are other people's words: control characters and everything that moves a terminal's cursor
or reverses its text is shown, never sent.
"""

import errno
import json
import os
import select
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from watchdog.core.verdict import span

Json = dict[str, object]

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_COLOURS = {
    "healthy": "green",
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
    """Wait until that descriptor can be read, or so many seconds. Raises BrokenPipeError once nobody reads our stdout.

    A write would tell that too, but the next thing to be written may take days. A pipe without a reader says POLLERR,
    a terminal that was closed POLLHUP (poll(2)); a file has no reader and says nothing.
    """
    sys.stdout.flush()
    look = _stdout_watched()
    if other is not None:
        look.register(other, select.POLLIN)
    found = dict(look.poll(None if seconds is None else seconds * 1000))
    if any(descriptor != other for descriptor in found):
        raise BrokenPipeError(errno.EPIPE, "nobody reads what is printed")


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


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table: by rich for people at a terminal, else aligned text (the last column is never cut)."""
    lines = [[clean(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _pretty(head, lines)
        return
    widths = [max(len(line[i]) for line in [list(head), *lines]) for i in range(len(head))]
    for line in [list(head), *lines]:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _pretty(head: Sequence[str], lines: list[list[str]]) -> None:
    from rich.console import Console  # 70 ms, and only for people
    from rich.table import Table
    from rich.text import Text

    view = Table(box=None, pad_edge=False, header_style="bold")
    for title in head:
        view.add_column(title, overflow="fold", no_wrap=title in ("NAME", "ID", "PID"))
    for line in lines:
        # Text, never markup: a name may hold [brackets].
        view.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in line))
    Console(no_color=bool(os.environ.get("NO_COLOR")), highlight=False).print(view)


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


def entries(value: object) -> list[Json]:
    """A list of JSON objects out of an answer, whatever came."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def entry(value: object) -> Json:
    """A JSON object out of an answer, whatever came."""
    return value if isinstance(value, dict) else {}


def refused(status: int, answer: Json) -> int:
    """Tell why a request was refused; the exit status for it."""
    for line in str(answer.get("message") or f"the daemon answered {status}").splitlines():
        warn(clean(line))
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
    tries = f" after {clean(run.get('attempts'))} tries" if run.get("attempts") not in (None, 1) else ""
    words = clean(run.get("message")).removeprefix(f"{outcome} ")
    return f"cleanup {clean(run.get('hook'))}: {outcome}{tries}; {words}".rstrip("; ")
