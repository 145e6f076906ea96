"""`[notify]`: the events that an operator named start his command, one at a time, with the event as JSON on stdin.

Whoever logs only puts the event into a queue, so no sweep and no kill waits. The command runs in a helper of its own
below a deadline, so it may hang, fail or flood. What it does wrong is told once, and never by itself.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping

from watchdog.clock import Clock
from watchdog.config.schema import NotifySection
from watchdog.config.settings import Settings
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.helpers.pool import HelperPool
from watchdog.telemetry import logger
from watchdog.telemetry.logger import EventLogger

DEADLINE = 10.0  # seconds for one run: a message is handed on in one, or by somebody who queues
EACH_MINUTE = 30  # runs; a start is a process or a unit of systemd, about 0.1 s of a core
ROOM = 300  # events that may wait: ten minutes at that pace
REASONS = 5  # of failure that are told in one bad time; what changes with each event would be told without end
LAST_WORDS = 3.0  # seconds that the daemon's end waits for what is queued
FAILED = frozenset({HookOutcome.FAILED, HookOutcome.TIMEOUT})


class AlertCommand:
    """Hears every event of the log, passes on those that are wanted. Made on the loop that it lives on."""

    def __init__(
        self,
        wanted: NotifySection,
        helpers: HelperPool,
        clock: Clock,
        log: EventLogger,
        *,
        seconds: float = DEADLINE,
        each_minute: int = EACH_MINUTE,
        room: int = ROOM,
    ) -> None:
        """`seconds` for a run, `each_minute` runs, `room` for events that wait."""
        self._helpers = helpers
        self._clock = clock
        self._log = log
        self._seconds, self._each_minute, self._room = seconds, each_minute, room
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[str, str]] = deque()  # name, JSON
        self._began: deque[float] = deque()  # runs of the last minute
        self._came, self._idle, self._closing = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._failed = self._dropped = 0  # since it last went well
        self._told: set[str] = set()  # the reasons
        self._want(wanted)
        self._task = asyncio.create_task(self._work(), name="notify")

    def apply(self, settings: Settings) -> None:
        """New settings, also for events that wait; how another command fails is reported again."""
        self._want(settings.notify)

    def _want(self, wanted: NotifySection) -> None:
        if wanted.command != getattr(self, "_command", wanted.command):
            self._told.clear()
        self._on, self._command = frozenset(wanted.on), wanted.command
        if not self._command:
            self._waiting.clear()

    def hear(self, event: str, fields: Mapping[str, object]) -> None:
        """One event was logged, in any thread. Never waits."""
        if event in self._on:
            text = logger.as_json(event, fields)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._take, event, text)

    async def close(self) -> None:
        """Pass on what waits, for a moment and at any pace; then end the command that runs."""
        self._closing.set()
        await asyncio.wait([asyncio.ensure_future(self._idle.wait())], timeout=LAST_WORDS)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._waiting:
            self._log.event("notify.dropped", count=len(self._waiting), why="the daemon stops")

    def _take(self, event: str, text: str) -> None:
        if len(self._waiting) < self._room:
            self._waiting.append((event, text))
            self._idle.clear()
            self._came.set()
            return
        self._dropped += 1
        if self._dropped == 1:
            self._log.event("notify.dropped", waiting=len(self._waiting), why=f"at most {self._each_minute} a minute")

    async def _work(self) -> None:
        while True:
            await self._came.wait()
            await self._pace()
            if self._waiting:
                event, text = self._waiting.popleft()
                command = self._command
                result = await self._run(event, text)
                self._judge(event, result, former=command != self._command)
            if not self._waiting:
                self._came.clear()
                self._idle.set()

    async def _pace(self) -> None:
        """Wait until one more run is within `each_minute`, or the daemon stops."""
        while self._began and (left := self._began[0] + 60 - self._clock.mono()) <= 0:
            self._began.popleft()
        if len(self._began) >= self._each_minute:
            closing = asyncio.ensure_future(self._closing.wait())
            await asyncio.wait([closing], timeout=left)
            closing.cancel()
        self._began.append(self._clock.mono())

    async def _run(self, event: str, text: str) -> HookResult:
        try:
            return await self._helpers.run_notice(self._command, event, text, self._seconds)
        except Exception as error:  # noqa: BLE001 no event may end the passing on of the next
            return HookResult(HookOutcome.FAILED, f"{type(error).__name__}: {error}")

    def _judge(self, event: str, result: HookResult, *, former: bool) -> None:
        """Say each reason of failure once, and the end of a bad time once nothing waits any more.

        `former`: a reload has put another command in its place meanwhile, so its reason is of no use any more.
        """
        if result.outcome in FAILED:
            self._failed += 1
            why = result.message[:500]
            if not former and why not in self._told and len(self._told) < REASONS:
                self._told.add(why)
                self._log.event("notify.failed", about=event, outcome=result.outcome.value, why=why)
        elif not self._waiting and (self._failed or self._dropped):
            self._log.event("notify.recovered", failed=self._failed, dropped=self._dropped)
            self._failed = self._dropped = 0
            self._told.clear()
