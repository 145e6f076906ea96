"""Ends the process within its limit, whatever hangs: the last resort beside the orderly shutdown in `main_loop`.

A thread of its own, made before there is work to do, watches two things that the event loop cannot watch itself:

- the loop runs. A loop that is stuck in a call (a read in the kernel that never returns) does not sweep, and cannot
notice that its scheduler is dead: exit 70, as when the scheduler alone is. A signal that came meanwhile is heeded;
- shutdown, once begun, completes. After `LIMIT` seconds the thread logs what it waited for, releases the locks,
and calls os._exit.

If not even this thread can run (a library hangs with the interpreter's lock held), the kernel ends the process by
SIGALRM, a few seconds later. Nothing is lost by any of these: important data was committed before it was acted on.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

from watchdog.clock import Clock
from watchdog.concurrency import threads
from watchdog.telemetry.logger import EventLogger

_clock = Clock()
LIMIT = 20.0  # seconds from the request to stop until the process has ended; TimeoutStopSec in the unit is 30
LOOP_LIMIT = 30.0  # seconds without a turn of the event loop after which it counts as dead
TICK = 1.0  # seconds between two checks, and between two signs of life of the loop
LAST_WORDS = 1.0  # seconds each for the log's last lines and for releasing the locks
KERNEL = 4.0  # seconds beyond the limit until SIGALRM; still below TimeoutStopSec
EX_SOFTWARE = 70  # sysexits.h
FRAMES = 3  # innermost calls of a thread that are named


class ExitTimer:
    """One per process, made on the main thread.

    `asked`: whether a stop was requested that the loop has not seen yet.
    """

    def __init__(self, log: EventLogger, asked: Callable[[], bool], finish_log: Callable[[float], None]) -> None:
        """`finish_log` writes what is queued, within so many seconds."""
        self._log = log
        self._asked = asked
        self._finish_log = finish_log
        self._release: list[Callable[[], None]] = []
        self._main = threading.main_thread().ident
        self._lived = False  # the loop has had a turn since the last check
        self._watched = False  # a loop runs
        self._armed = threading.Event()
        self._left = 0.0  # seconds until the limit
        self._code = 0
        threading.Thread(target=self._watch, name="exit timer", daemon=True).start()

    def on_exit(self, release: Callable[[], None]) -> None:
        """Call this before a forced exit: it releases locks and files that the next start would meet."""
        self._release.append(release)

    def alive(self) -> None:
        """The loop has a turn: a sign of life, due each TICK seconds."""
        self._lived = self._watched = True

    def arm(self, code: int) -> None:
        """Shutdown begins, with that exit status. Later calls do not prolong it; the status of a fault stays."""
        self._code = self._code or code
        if not self._armed.is_set():
            self._left = LIMIT
            signal.setitimer(signal.ITIMER_REAL, LIMIT + KERNEL)
            self._armed.set()

    def _watch(self) -> None:
        # Blocked here, they stay pending for the process while the main thread cannot take them (sigpending(2)).
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        still = 0.0
        while True:
            before = _clock.mono()
            self._sleep()
            # A late check (we were stopped, starved or suspended) says nothing about the others.
            passed = min(_clock.mono() - before, 2 * TICK)
            still = 0.0 if self._lived or not self._watched else still + passed
            self._lived = False
            if self._armed.is_set():
                self._left -= passed
                if self._left <= 0:
                    self._end("stop.overdue", LIMIT)
            elif still > TICK and self._asked():
                self.arm(0)
            elif still > LOOP_LIMIT:
                self.arm(EX_SOFTWARE)
                self._end("scheduler.dead", still)

    def _sleep(self) -> None:
        if self._armed.is_set():
            time.sleep(min(TICK, max(0.0, self._left)))
        else:
            self._armed.wait(TICK)

    def _end(self, event: str, seconds: float) -> None:
        """Log what was waited for, release the locks, exit.

        Each step has a limit: the log or a lock's file may hang.
        """
        self._log.event(event, seconds=round(seconds), waiting_for=self._waiting_for(), exit_code=self._code)
        releasing = threading.Thread(target=self._run_releases, daemon=True)
        releasing.start()
        self._finish_log(LAST_WORDS)
        releasing.join(LAST_WORDS)
        os._exit(self._code)

    def _run_releases(self) -> None:
        for release in self._release:
            try:
                release()
            except Exception as error:  # noqa: BLE001 - the next one may still work
                self._log.event("stop.unreleased", error=str(error))

    def _waiting_for(self) -> list[str]:
        """Calls that have not returned, by our own names; the position of the main thread; unnamed threads."""
        found = [f"{what} ({seconds:.0f} s)" for what, seconds in threads.overdue().items()]
        frames = sys._current_frames()
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if frame is None or thread.name in ("exit timer", "log"):
                continue
            if thread.ident == self._main or not thread.daemon:
                calls = traceback.extract_stack(frame)[-FRAMES:]
                where = " < ".join(
                    f"{call.name} ({os.path.basename(call.filename)}:{call.lineno})" for call in calls[::-1]
                )
                found.append(f"thread {thread.name}: {where}")
        return found
