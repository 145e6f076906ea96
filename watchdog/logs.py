"""Logging: the catalogue of events, and structlog over stdlib logging.

Rules:
1. Every line has a dotted, stable event of `CATALOGUE`; what libraries log comes as `log.message`.
2. Logging never raises into its caller and never waits for a disk or a pipe: lines go through a bounded queue to a
   thread of their own; what does not fit or cannot be written is counted (`Sink.lost`).
3. Never an environment, never a whole command line; such fields are dropped.

JSON where nobody looks (with sd-daemon(3)'s `<N>` where the journal reads stderr), columns on a terminal.
"""

import contextlib
import json
import logging
import logging.handlers
import os
import queue
import sys
import threading
from collections.abc import Mapping, MutableMapping
from datetime import datetime, timedelta
from typing import Any, TextIO

# structlog.dev imports rich, where that is installed, for tracebacks in colour, which we do not print: 5 MB of memory,
# 70 ms of every start. Undone at once: the verbs do print with it.
_rich_is_used = "rich" in sys.modules
if not _rich_is_used:
    sys.modules["rich"] = None  # type: ignore[assignment] # "do not import" (Python reference, the import system)
import structlog  # noqa: E402
from structlog.stdlib import BoundLogger, ProcessorFormatter  # noqa: E402

from watchdog.catalogue import CATALOGUE, ERROR, WARNING, Entry  # noqa: E402

if not _rich_is_used:
    del sys.modules["rich"]

_SECRET = frozenset({"env", "environ", "environment", "cmdline", "command_line", "argv", "password"})
_QUIET = ("apscheduler", "sqlalchemy", "alembic", "aiohttp", "asyncio")  # INFO and DEBUG of these are not our events
_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_FIRST = ("event", "ts", "level")
EventDict = MutableMapping[str, Any]


class Log:
    """A logger with bound fields that takes events of the catalogue only."""

    strict = True  # `set_up` turns it off: in a running daemon an unlisted event is logged as it is

    def __init__(self, logger: BoundLogger) -> None:
        self._logger = logger

    def bind(self, **fields: object) -> "Log":
        """A logger that adds these fields to every line."""
        return Log(self._logger.bind(**fields))

    def event(self, event: str, /, *, exc_info: BaseException | bool | None = None, **fields: object) -> None:
        """Log one event at the catalogue's level. Raises ValueError for an unlisted one while `strict`."""
        entry = CATALOGUE.get(event)
        if entry is None:
            if Log.strict:
                raise ValueError(f"{event!r} is not in logs.CATALOGUE")
            entry = Entry(WARNING, "")
        if exc_info:
            fields["exc_info"] = exc_info
        # A field that cannot be bound or printed must not end a kill half-way.
        with contextlib.suppress(Exception):
            self._logger.log(entry.level, event, **{_FIELD.get(key, key): value for key, value in fields.items()})


_FIELD = {"event": "event_", "level": "level_", "ts": "ts_"}  # names that a line already has


def get_logger(**fields: object) -> Log:
    """The daemon's logger. Works before `set_up` too: then stdlib prints warnings and errors only."""
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
    return Log(logger.bind(**fields))


class Sink(logging.Handler):
    """Takes rendered lines from anywhere and writes them from one thread. `lost` counts what was never written."""

    def __init__(self, target: logging.Handler, fallback: logging.Handler | None, room: int = 10_000) -> None:
        super().__init__()
        self.lost = 0
        self._target, self._fallback = target, fallback
        self._queue: queue.Queue[str | None] = queue.Queue(room)
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Render in the caller's thread (values may change later), queue, never wait."""
        try:
            self._queue.put_nowait(self.format(record))
        except Exception:  # noqa: BLE001 a line that cannot be rendered or queued must not end its caller
            self.lost += 1

    def flush(self) -> None:
        """Nothing to do: the thread writes each line at once. `finish` waits for it."""

    def finish(self, timeout: float = 2.0) -> None:
        """Write what is queued, for at most that many seconds, and give stdlib logging back."""
        root = logging.getLogger()
        if self in root.handlers:
            root.removeHandler(self)
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:  # the reader stopped reading: one line makes room for the end
            with contextlib.suppress(queue.Empty, queue.Full):
                self._queue.get_nowait()
                self.lost += 1
                self._queue.put_nowait(None)
        self._thread.join(timeout)
        logging.captureWarnings(False)
        Log.strict = True

    def _write_all(self) -> None:
        while (line := self._queue.get()) is not None:
            if not self._write(self._target, line) and not self._write(self._fallback, line):
                self.lost += 1
        self._target.close()

    @staticmethod
    def _write(target: logging.Handler | None, line: str) -> bool:
        if target is None:
            return False
        try:
            target.emit(logging.makeLogRecord({"msg": line}))
        except Exception:  # noqa: BLE001 a broken disk or pipe is counted and tried again with the next line
            return False
        return True


def set_up(
    level: str = "info",
    form: str = "auto",
    file: str = "",
    *,
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Sink:
    """Send every log line of the process to stderr, or to `file` (reopened after a rename, as logrotate does).

    `form` is "json", "text", or "auto": text where stderr is a terminal. Call it after daemonizing (a thread and open
    files do not survive the fork), and `finish()` the sink at the end.
    """
    stream = stream or sys.stderr
    if form == "auto":
        form = "text" if not file and stream.isatty() else "json"
    journal = not file and _is_journal(stream, environ)
    colours = not file and stream.isatty() and not environ.get("NO_COLOR")
    logging.raiseExceptions = False
    to_stream = _Stream(stream)
    sink = Sink(_File(file), to_stream) if file else Sink(to_stream, None)
    sink.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, _from_library],
            processors=[
                ProcessorFormatter.remove_processors_meta,
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
                _without_secrets,
                *_rendering(form, colours=colours, journal=journal),
            ],
        )
    )
    root = logging.getLogger()
    root.addHandler(sink)
    set_level(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(WARNING)
    # "maximum number of running instances": a sweep that a reason made come sooner met the scheduled one.
    logging.getLogger("apscheduler.scheduler").setLevel(ERROR)
    logging.captureWarnings(True)
    Log.strict = False
    return sink


def set_level(level: str) -> None:
    """Change the level while running; stdlib decides it, so loggers that exist follow."""
    logging.getLogger().setLevel(level.upper())


class _Raising(logging.Handler):
    """stdlib's handlers swallow a failed write; the sink wants to know of it."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise  # logging calls this inside its except block


class _Stream(_Raising, logging.StreamHandler[TextIO]):
    """stderr."""


class _File(_Raising, logging.handlers.WatchedFileHandler):
    """A file that is opened when the first line comes: a directory that is missing then must not stop the daemon."""

    def __init__(self, path: str) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace", delay=True)

    def _open(self) -> Any:
        def opener(path: str, flags: int) -> int:
            return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)

        return open(self.baseFilename, "a", encoding="utf-8", errors="backslashreplace", opener=opener)


def _from_library(logger: object, method: str, event: EventDict) -> EventDict:
    """A record that was not logged through `Log`: its text becomes a field."""
    record = event.get("_record")
    event["message"], event["event"] = event.get("event"), "log.message"
    if isinstance(record, logging.LogRecord):
        event["logger"] = record.name
    return event


def _without_secrets(logger: object, method: str, event: EventDict) -> EventDict:
    """Drop what may hold a password, whoever put it there."""
    for key in _SECRET & event.keys():
        del event[key]
    return event


def _printable(logger: object, method: str, event: EventDict) -> EventDict:
    """Notes are other people's words: no escape sequence and no line end of theirs gets through."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable() and key != "exception":
            event[key] = ascii(value)
    return event


def _rendering(form: str, *, colours: bool, journal: bool) -> list[Any]:
    if form == "text":
        return [
            _printable,
            structlog.dev.ConsoleRenderer(
                colors=colours, timestamp_key="ts", exception_formatter=structlog.dev.plain_traceback
            ),
        ]

    def render(logger: object, method: str, event: EventDict) -> str:
        level = str(event.get("level"))
        ordered = {key: event.pop(key) for key in _FIRST if key in event} | dict(event)
        line = json.dumps(ordered, default=_plain)
        return f"<{_PRIORITY.get(level, 6)}>{line}" if journal else line

    return [structlog.processors.format_exc_info, render]


def _plain(value: object) -> object:
    """What JSON does not know."""
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
