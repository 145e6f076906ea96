"""The queue between callers and the log's target: no caller waits for a disk, pipe or journal, or fails with it.

Lines are rendered by the caller, queued up to a bound, and written by one thread. Lines that do not fit or cannot be
written are counted. When the target fails, that is reported once on the fallback, which also gets the lines if it takes
them at once; when the target is back, the log itself says how many lines are missing. Meanwhile `health` tells it.

Tests: tests/telemetry/test_targets.py, tests/telemetry/test_logger.py.
"""

import contextlib
import errno
import functools
import logging
import select
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from watchdog.clock import Clock
from watchdog.concurrency import threads
from watchdog.telemetry.catalogue import CATALOGUE
from watchdog.telemetry.targets import Line, Target, Wait

ROOM = 10_000  # lines that may wait
ROOM_CHARACTERS = 8_000_000  # and their total length
SLICE = 0.2  # seconds between two checks whether to continue waiting
_FULL = (errno.ENOSPC, errno.EDQUOT)
STUCK = 5.0  # seconds for one line after which the target counts as stuck


class _GaveUp(Exception):
    """The target takes nothing now, and the wait was given up."""


@dataclass(frozen=True, slots=True)
class LogHealth:
    """Where lines go, how many were never written, and what is wrong now (None: nothing)."""

    target: str
    lost: int
    error: str | None


class QueueHandler(logging.Handler):
    """The handler of the root logger. One instance per process; set a formatter before the first line."""

    def __init__(
        self,
        target: Target,
        fallback: Target | None = None,
        *,
        clock: Clock | None = None,
        room: int = ROOM,
        room_characters: int = ROOM_CHARACTERS,
    ) -> None:
        super().__init__()
        self.lost = 0
        self.heard: Callable[[str, Mapping[str, object]], None] | None = None  # gets our own events, from our thread
        self._reserve: Callable[[str], bool] | None = None
        self._aim = (target, fallback)
        self._clock = clock or Clock()
        self._room, self._room_characters = room, room_characters
        self._lines: deque[Line] = deque()
        self._waiting = 0  # characters in the queue
        self._changed = threading.Condition()  # an RLock: a finalizer may log while this thread holds it
        self._reopen = self._ending = self._abandoned = False
        self._since: float | None = None  # when the write of the current line began
        self._stuck_reported = False  # the present hang was reported
        self._error: str | None = None
        self._elsewhere = 0  # lines that the fallback took since the target failed
        self._reported = 0  # the part of `lost` that the log has reported
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    # -- called by loggers -------------------------------------------------------------------------------------------

    def emit(self, record: logging.LogRecord) -> None:
        """Render in the caller's thread (values may change later) and queue; never wait."""
        try:
            line = Line(record.levelno, self.format(record))
        except Exception:  # noqa: BLE001 - a line that cannot be rendered must not end its caller
            line = None
        with self._changed:
            full = len(self._lines) >= self._room or self._waiting >= self._room_characters
            if line is None or full or self._ending:
                self.lost += 1
                return
            self._lines.append(line)
            self._waiting += len(line.text)
            self._changed.notify()

    def health(self) -> LogHealth:
        """The state of the target; called from any thread."""
        target, since, error = self._aim[0], self._since, self._error
        if error is None and since is not None and (stuck := self._clock.mono() - since) > STUCK:
            error = f"blocked for {stuck:.0f} s with {len(self._lines)} lines queued; its reader has stopped"
        return LogHealth(target.name, self.lost, error)

    def report_if_stuck(self) -> None:
        """Report once on the fallback that the target hangs; called periodically, by another thread than ours.

        Missing lines are reported when the target takes lines again.
        """
        stuck = self._since is not None and self._clock.mono() - self._since > STUCK
        if not stuck or self._stuck_reported:
            self._stuck_reported = stuck
            return
        self._stuck_reported, (target, fallback) = True, self._aim
        words = f"blocked for {STUCK:g} s: a disk or a server hangs, or its reader has stopped"
        self._notify("log.failed", target=target.name, error=words)
        line = self._own("log.failed", target=target.name, error=words)
        threads.begin(
            "the log's fallback", functools.partial(self._on, fallback, line)
        )  # it may be a file on the same disk

    # -- called by the daemon ----------------------------------------------------------------------------------------

    def use_reserve(self, give: Callable[[str], bool]) -> None:
        """From now on our thread calls this with the name of a target on a full disk; True: it has freed some space."""
        self._reserve = give

    def set_target(self, target: Target, fallback: Target | None) -> None:
        """Write to another target from now on; queued lines go there too."""
        with self._changed:
            self._aim = (target, fallback)
            self._changed.notify()

    def reopen(self) -> None:
        """Open the target again, as after a rotation (SIGHUP)."""
        with self._changed:
            self._reopen = True
            self._changed.notify()

    def finish(self, timeout: float = 2.0) -> None:
        """Write what is queued, for at most that many seconds; what is left then is lost."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join(timeout)
        self._abandoned = True
        self._thread.join(2 * SLICE)  # a hung disk may block the thread; it keeps no process alive

    # -- the thread --------------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        target = self._aim[0]
        while (line := self._next(target)) is not None:
            target = self._deliver(line)
            lost = self.lost - self._reported
            if lost and not self._lines and self._error is None and not self._abandoned:
                self._reported += lost
                self._notify("log.lost", lost=lost)
                target = self._deliver(self._own("log.lost", lost=lost))
        target.reopen()

    def _next(self, former: Target) -> Line | None:
        """The next line; None at the end. Also closes a target that was replaced or is to be opened again."""
        while True:
            with self._changed:
                while not self._reopen and self._aim[0] is former:
                    if self._abandoned:
                        self.lost += len(self._lines)
                        self._lines.clear()
                    if self._lines:
                        line = self._lines.popleft()
                        self._waiting -= len(line.text)
                        return line
                    if self._ending:
                        return None
                    self._changed.wait()
                self._reopen, left, former = False, former, self._aim[0]
            self._since = self._clock.mono()
            left.reopen()  # never under the lock: close(2) of a file on a dead server may hang, and with it all logging
            self._since = None

    def _deliver(self, line: Line) -> Target:
        """Write one line to the present target; returns the target that was tried last."""
        self._since = self._clock.mono()
        try:
            while True:
                target, fallback = self._aim
                wait = functools.partial(self._wait, target)
                try:
                    if self._error is not None:
                        self._report_gap(target, wait)
                    target.write(line, wait)
                except _GaveUp:
                    if self._abandoned:
                        self._lose()
                        return target
                    target.reopen()  # the target was changed meanwhile
                except Exception as error:  # noqa: BLE001 - whatever a target does, the thread continues
                    if getattr(error, "errno", None) in _FULL and self._free_space(target):
                        continue
                    self._fall_back(line, target, fallback, error)
                    return target
                else:
                    return target
        finally:
            self._since = None

    def _free_space(self, target: Target) -> bool:
        return self._reserve is not None and self._reserve(target.name)

    def _lose(self) -> None:
        with self._changed:
            self.lost += 1

    def _fall_back(self, line: Line, target: Target, fallback: Target | None, error: Exception) -> None:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if self._error is None:
            self._notify("log.failed", target=target.name, error=words)
            if self._on(fallback, self._own("log.failed", target=target.name, error=words)):
                self._elsewhere = 0
        self._error = words
        if self._on(fallback, line):
            self._elsewhere += 1
        else:
            self._lose()

    def _on(self, fallback: Target | None, line: Line) -> bool:
        """Whether the fallback took it without waiting."""
        if fallback is None:
            return False
        try:
            fallback.write(line, self._now_or_never)
        except (OSError, ValueError, _GaveUp):
            return False
        return True

    def _report_gap(self, target: Target, wait: Wait) -> None:
        """Before the first line after a fault: report the missing lines. Raises what the target raises."""
        lost = self.lost - self._reported
        target.write(self._own("log.recovered", lost=lost, elsewhere=self._elsewhere), wait)
        self._notify("log.recovered", lost=lost, elsewhere=self._elsewhere)
        self._error, self._elsewhere = None, 0
        self._reported += lost

    def _notify(self, event: str, **fields: object) -> None:
        if self.heard is not None:
            with contextlib.suppress(Exception):  # an error of the listener must not end the thread
                self.heard(event, fields)

    def _own(self, event: str, **fields: object) -> Line:
        """A line of our own, past the queue: it must be where the gap is."""
        level = CATALOGUE[event].level
        record = logging.makeLogRecord(
            {
                "msg": {"event": event, "level": logging.getLevelName(level).lower(), **fields},
                "levelno": level,
                "_logger": None,  # structlog.stdlib.ProcessorFormatter: not a library's record
                "_name": "event",
            }
        )
        return Line(level, self.format(record))

    def _wait(self, target: Target, fd: int) -> None:
        """Wait until the descriptor takes data, for as long as it is our target."""
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        while not poll.poll(SLICE * 1000):
            if self._abandoned or self._aim[0] is not target:
                raise _GaveUp

    @staticmethod
    def _now_or_never(fd: int) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        if not poll.poll(0):
            raise _GaveUp
