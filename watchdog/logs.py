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
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TextIO

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


@dataclass(frozen=True, slots=True)
class Entry:
    """One event: the level it is logged with, and what it means in one line."""

    level: int
    text: str


CATALOGUE: dict[str, Entry] = {
    "daemon.starting": Entry(INFO, "the daemon has read its configuration and begins"),
    "daemon.ready": Entry(INFO, "the sockets are open and the first sweep is planned"),
    "daemon.stopping": Entry(INFO, "the daemon was asked to stop; agents go on living"),
    "daemon.stopped": Entry(INFO, "the daemon ends"),
    "daemon.failed": Entry(ERROR, "the daemon ends because of a fault of its own"),
    "sweep.summary": Entry(INFO, "sweeps of the last ten minutes in figures"),
    "sweep.finished": Entry(DEBUG, "one sweep in figures"),
    "sweep.overrun": Entry(WARNING, "a sweep took longer than the interval; the next one is late"),
    "sweep.scan_failed": Entry(ERROR, "/proc could not be read; no tree and no activity is known from this sweep"),
    "sweep.failed": Entry(ERROR, "a sweep raised; nobody was judged by it"),
    "scheduler.dead": Entry(ERROR, "no sweep ended for three intervals and no nudge helped; the daemon ends with 70"),
    "clock.stepped": Entry(WARNING, "the wall clock was set; nobody's silence changes by it"),
    "clock.gap": Entry(
        WARNING, "the daemon did not watch for a while (suspend, overload); that time counts for nobody"
    ),
    "agent.registered": Entry(INFO, "an agent is watched from now on"),
    "agent.starting": Entry(INFO, "a queued agent is being started"),
    "agent.pid_known": Entry(INFO, "the agent's main process is known"),
    "agent.owner_changed": Entry(INFO, "the main process dropped to another uid, which owns the agent from now on"),
    "agent.first_beat": Entry(INFO, "the first beat; from now on silence counts"),
    "agent.late": Entry(WARNING, "silent for longer than agreed; not confirmed, or other activity is seen"),
    "agent.recovered": Entry(INFO, "an agent that was late or stalled beats again"),
    "agent.stalled": Entry(WARNING, "silent for longer than agreed, confirmed, with no sign of activity"),
    "agent.expired": Entry(WARNING, "the agent's time to live is over"),
    "agent.gone": Entry(INFO, "the main process is proved absent"),
    "agent.unknown": Entry(WARNING, "the look at the agent failed; nothing is concluded from it"),
    "agent.waiting": Entry(INFO, "the agent waits, on a lease or for somebody"),
    "agent.needs_human": Entry(WARNING, "the agent has waited for a human for longer than the prompt limit"),
    "agent.lingering": Entry(WARNING, "the agent said `done` and is still there"),
    "agent.told": Entry(WARNING, "an agent's verdict would end it, but its ladder stops before a kill"),
    "agent.beat_file_unread": Entry(WARNING, "a heartbeat file cannot be read; its agent is unknown until wait_limit"),
    "agent.unpinned": Entry(WARNING, "no pidfd for an agent's process; its end is found by the next sweep"),
    "agent.channel_lost": Entry(WARNING, "beats could not reach us over a restart; told once, not held against it"),
    "agent.ending": Entry(INFO, "the agent is being ended, or put in order after its end"),
    "agent.unkillable": Entry(ERROR, "processes of the agent cannot be ended; says which and why"),
    "agent.ended": Entry(INFO, "the agent is over and cleaned up; its row is closed"),
    "beat.rejected": Entry(WARNING, "a beat was not taken (wrong uid or process, malformed); counted, said once"),
    "kill.requested": Entry(WARNING, "a kill was ordered; says by whom and why"),
    "kill.observed": Entry(WARNING, "observe mode: what would be ended now, and why"),
    "kill.held": Entry(WARNING, "a kill that a verdict asks for is held back; says why"),
    "kill.resumed": Entry(INFO, "an order that an earlier daemon left is gone on with"),
    "kill.waiting": Entry(WARNING, "an order waits, as the registry cannot be written"),
    "kill.failed": Entry(ERROR, "an attempt at an order raised; it is tried again from its last committed step"),
    "kill.withdrawn": Entry(INFO, "a kill was called off before the first signal, as a beat came"),
    "kill.signal_sent": Entry(INFO, "a signal went to a process whose identity was proved"),
    "kill.refused": Entry(WARNING, "the guard let a signal not out; says why"),
    "kill.finished": Entry(INFO, "the whole tree is proved dead; one line per kill"),
    "kill.unkillable": Entry(ERROR, "the kill did not end the whole tree; it is tried again with growing pauses"),
    "cleanup.hook_finished": Entry(INFO, "a cleanup hook is done, had nothing to do, or kept something on purpose"),
    "cleanup.hook_failed": Entry(WARNING, "a cleanup hook failed or ran out of time; says whether it is tried again"),
    "cleanup.hook_retried": Entry(INFO, "a cleanup hook failed and is tried again after a pause"),
    "row.quarantined": Entry(ERROR, "a row of the registry cannot be read and is left alone; the others are served"),
    "hold.started": Entry(WARNING, "kills are held; says why"),
    "hold.ended": Entry(INFO, "kills are no longer held"),
    "registry.unavailable": Entry(ERROR, "the registry cannot be read or written; nobody is ended meanwhile"),
    "registry.recovered": Entry(INFO, "the registry works again"),
    "control.denied": Entry(WARNING, "a request on the control socket was refused for permission"),
    "control.failed": Entry(ERROR, "a request on the control socket failed by a fault of ours"),
    "task.cancelled": Entry(INFO, "an operator cancelled a task; whoever worked on it was stopped"),
    "log.message": Entry(INFO, "something that a library logged, with its own level"),
}

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
