"""Logging: the catalogue of events, and structlog over stdlib logging.

Rules: 1. Every line has a dotted, stable event of `CATALOGUE`; records of libraries appear as `log.message`. 2. Logging
never raises into its caller and never waits for a disk, a pipe or the journal (`queue_handler`). 3. Never an
environment, never a whole command line; such fields are dropped, passwords in URLs hidden, values cut.

The form: fields if the journal reads stderr, columns on a terminal, else JSON, one object per line.
"""

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, ClassVar, TextIO

# structlog.dev imports rich, if installed, for coloured tracebacks, which we do not print: 5 MB of memory, 70 ms of
# every start. Undone at once, because the verbs print with it.
_rich_is_used = "rich" in sys.modules
if not _rich_is_used:
    sys.modules["rich"] = None  # type: ignore[assignment] # "do not import" (Python reference, the import system)
import structlog  # noqa: E402
from structlog.stdlib import BoundLogger, ProcessorFormatter  # noqa: E402

from watchdog.core.redaction import hide_password  # noqa: E402
from watchdog.telemetry import targets  # noqa: E402
from watchdog.telemetry.catalogue import CATALOGUE, ERROR, WARNING, EventSpec  # noqa: E402
from watchdog.telemetry.queue_handler import QueueHandler  # noqa: E402
from watchdog.telemetry.targets import Target  # noqa: E402

if not _rich_is_used:
    del sys.modules["rich"]

_SECRET = frozenset({"env", "environ", "environment", "cmdline", "command_line", "argv", "password"})
# their INFO and DEBUG records are not our events
_QUIET = ("apscheduler", "sqlalchemy", "alembic", "aiohttp", "asyncio")
_TRACES = ("exception", "stack")  # our fields with several lines
LONGEST = 2_000  # characters of one value
LONGEST_LIST = 10_000
LONGEST_TRACE = 20_000
_FIRST = ("event", "ts", "level")
EventDict = MutableMapping[str, Any]
Hear = Callable[[str, Mapping[str, object]], None]
Allows = Callable[[int, int], bool]


_cause: ContextVar[int | None] = ContextVar("cause", default=None)


@contextlib.contextmanager
def caused_by(uid: int | None) -> Iterator[None]:
    """Log lines meanwhile, also of tasks that begin meanwhile, count for that uid; None: for none."""
    token = _cause.set(uid)
    try:
        yield
    finally:
        _cause.reset(token)


def cause() -> int | None:
    """The uid that present log lines count for."""
    return _cause.get()


class EventLogger:
    """A logger with bound fields that takes events of the catalogue only."""

    # called before each line that a uid caused, with the uid and the number of characters
    allows: ClassVar[Allows | None] = None
    heard: ClassVar[Hear | None] = None  # see `set_listener`
    strict = True  # `set_up` turns it off: a running daemon logs an unlisted event as it is

    def __init__(self, logger: BoundLogger) -> None:
        self._logger = logger

    def bind(self, **fields: object) -> "EventLogger":
        """A logger that adds these fields to every line."""
        return EventLogger(self._logger.bind(**fields))

    def event(self, event: str, /, *, exc_info: BaseException | bool | None = None, **fields: object) -> None:
        """Log one event at the catalogue's level. Raises ValueError for an unlisted one while `strict`."""
        entry = CATALOGUE.get(event)
        if entry is None:
            if EventLogger.strict:
                raise ValueError(f"{event!r} is not in logs.CATALOGUE")
            entry = EventSpec(WARNING, "")
        if exc_info:
            fields["exc_info"] = exc_info
        uid = _cause.get()
        if uid is not None and EventLogger.allows is not None:
            size = sum(len(value) for value in fields.values() if isinstance(value, str))
            with caused_by(None):  # the daemon's own line
                if not EventLogger.allows(uid, size):
                    return
        # A field that cannot be bound or printed must not abort a kill.
        with contextlib.suppress(Exception):
            self._logger.log(entry.level, event, **{_FIELD.get(key, key): value for key, value in fields.items()})
        if EventLogger.heard is not None:
            with contextlib.suppress(Exception):
                EventLogger.heard(event, {**structlog.get_context(self._logger), **fields})


_hooks: list[tuple[Any, Any]] = []  # what `set_up` found, until `finish`
_STAMP = structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts")
# local time, as the verbs print it
_AT_TERMINAL = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False, key="ts")
_FIELD = {"event": "event_", "level": "level_", "ts": "ts_"}  # names that a line already uses


def get_logger(**fields: object) -> EventLogger:
    """The daemon's logger. Works before `set_up`, too: then stdlib prints only warnings and errors."""
    logger: BoundLogger = structlog.wrap_logger(
        logging.getLogger("watchdog"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.add_log_level,
            ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=BoundLogger,
        cache_logger_on_first_use=False,
    )
    return EventLogger(logger.bind(**fields))


def set_up(
    level: str = "info",
    form: str = "auto",
    file: str = "",
    *,
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
    journal: str = targets.JOURNAL,
) -> QueueHandler:
    """Send every log line of the process to stderr, the journal behind it, or `file`.

    `form` is "json", "text", or "auto": columns if stderr is a terminal, fields if it is the journal, else JSON. Call
    it after daemonizing (a thread does not survive the fork), and `finish` at the end.
    """
    logging.raiseExceptions = False
    target, fallback, formatter = _plan(form, file, stream or sys.stderr, environ, journal)
    sink = QueueHandler(target, fallback)
    sink.setFormatter(formatter)
    logging.getLogger().addHandler(sink)
    set_level(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(WARNING)
    # "maximum number of running instances": a sweep that was brought forward met the scheduled one.
    logging.getLogger("apscheduler.scheduler").setLevel(ERROR)
    logging.captureWarnings(True)
    _hooks.append((threading.excepthook, sys.unraisablehook))
    threading.excepthook, sys.unraisablehook = _thread_ended, _unraisable
    EventLogger.strict = False
    return sink


def _thread_ended(args: threading.ExceptHookArgs) -> None:
    """Log an exception that ended a thread; Python would print it on stderr, not in the log's form."""
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = args.thread.name if args.thread is not None else "?"
        logging.getLogger("threads").error("a thread ended: %s", name, exc_info=args.exc_value)


def _unraisable(args: "sys.UnraisableHookArgs") -> None:
    """The same for one that no code could catch (`__del__`, a callback from C)."""
    what = args.err_msg or "an error that no code could catch"
    logging.getLogger("unraisable").error("%s: %s", what, type(args.object).__name__, exc_info=args.exc_value)


def change(
    sink: QueueHandler,
    level: str,
    form: str,
    file: str,
    *,
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
    journal: str = targets.JOURNAL,
) -> None:
    """The same for a sink in use (reload); queued lines go to the new target."""
    target, fallback, formatter = _plan(form, file, stream or sys.stderr, environ, journal)
    sink.setFormatter(formatter)
    sink.set_target(target, fallback)
    set_level(level)


def set_listener(sink: QueueHandler, hear: Hear | None) -> None:
    """`hear` is called with each event, whatever the log level, in the thread that logs it: it must not wait."""
    EventLogger.heard = sink.heard = hear


def limit(allows: Allows | None) -> None:
    """Set the check before each line that a uid caused."""
    EventLogger.allows = allows


def as_json(event: str, fields: Mapping[str, object]) -> str:
    """One event, now, as a line for a file: without secrets, and cut to size."""
    level = CATALOGUE[event].level if event in CATALOGUE else WARNING
    line: EventDict = {"event": event, "level": logging.getLevelName(level).lower()}
    line.update({_FIELD.get(key, key): value for key, value in fields.items()})
    line = structlog.processors.format_exc_info(None, "", _STAMP(None, "", line))
    return _render(None, "", _without_secrets(None, "", line))


def finish(sink: QueueHandler, timeout: float = 2.0) -> None:
    """Write what is queued, for at most that many seconds, and restore stdlib logging."""
    set_listener(sink, None)
    limit(None)
    logging.getLogger().removeHandler(sink)
    sink.finish(timeout)
    logging.captureWarnings(False)
    if _hooks:
        threading.excepthook, sys.unraisablehook = _hooks.pop()
    EventLogger.strict = True


def _plan(
    form: str, file: str, stream: TextIO, environ: Mapping[str, str], journal: str
) -> tuple[Target, Target | None, logging.Formatter]:
    """The target of lines, the fallback for when it fails, and their format."""
    at_journal, at_terminal = _is_journal(stream, environ), stream.isatty()
    stderr = targets.StreamTarget(stream, prefixed=at_journal)
    if file:
        target: Target = targets.FileTarget(file)
    elif at_journal and form == "auto":
        target = targets.JournaldTarget(journal)
    else:
        target = stderr
    if form == "auto":
        form = "text" if at_terminal and not file else "json"
    colours = at_terminal and not file and not environ.get("NO_COLOR")
    formatter = ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_log_level, _from_library],
        processors=[
            ProcessorFormatter.remove_processors_meta,
            _AT_TERMINAL if at_terminal and not file and form == "text" else _STAMP,
            structlog.processors.format_exc_info,
            _without_secrets,
            *_rendering(form, colours=colours),
        ],
    )
    return target, None if target is stderr else stderr, formatter


def set_level(level: str) -> None:
    """Change the level while running; stdlib decides by it, so existing loggers follow."""
    logging.getLogger().setLevel(level.upper())


def _from_library(logger: object, method: str, event: EventDict) -> EventDict:
    """A record that was not logged through `EventLogger`: its text becomes a field."""
    record = event.get("_record")
    event["message"], event["event"] = event.get("event"), "log.message"
    if isinstance(record, logging.LogRecord):
        event["logger"] = record.name
    return event


def _without_secrets(logger: object, method: str, event: EventDict) -> EventDict:
    """Drop fields that may contain a password; hide passwords in URLs; cut values too long for a line."""
    for key in _SECRET & event.keys():
        del event[key]
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _cut(hide_password(value), LONGEST_TRACE if key in _TRACES else LONGEST)
        elif not isinstance(value, int | float) and len(text := repr(value)) > LONGEST_LIST:
            event[key] = _cut(text, LONGEST_LIST)
    return event


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more)"


def _printable(logger: object, method: str, event: EventDict) -> EventDict:
    """Notes are other people's text: no escape sequence or newline of theirs gets through."""
    for key, value in event.items():
        if key in _TRACES:
            event[key] = targets.trace(str(value))
        elif isinstance(value, str):
            event[key] = targets.printable(value)
        elif not repr(value).isprintable():
            event[key] = ascii(repr(value))
    return event


def _rendering(form: str, *, colours: bool) -> list[Any]:
    if form == "text":
        return [
            _printable,
            structlog.dev.ConsoleRenderer(
                colors=colours, timestamp_key="ts", exception_formatter=structlog.dev.plain_traceback
            ),
        ]

    return [_render]


def _render(logger: object, method: str, event: EventDict) -> str:
    ordered = {key: event.pop(key) for key in _FIRST if key in event} | dict(event)
    return json.dumps(ordered, default=_plain)


def _plain(value: object) -> object:
    """Convert values that JSON does not know."""
    match value:
        case timedelta():
            return value.total_seconds()
        case datetime():
            return value.isoformat()
        case set() | frozenset():
            return sorted(map(str, value))
        case _:
            return str(value)


def _is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """True when the journal reads this stream: $JOURNAL_STREAM is its device and inode (systemd.exec(5))."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
