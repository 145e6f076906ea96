"""`[notify]`: events chosen by the operator start a command, one at a time, with the event as JSON on stdin.

Logging only puts the event into a queue, so no sweep and no kill waits. The command runs in a helper of its own with a
deadline, so it may hang, fail or flood. Its failures are reported once, and never through itself.
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

DEADLINE = 10.0  # seconds for one run: a message is passed to a program that sends it, or queues it
EACH_MINUTE = 30  # runs; a start is a process or a unit of systemd, about 0.1 s of a core
ROOM = 300  # events that may wait: ten minutes at that pace
# of failure that are reported in one bad time; reasons that differ for each event would be reported endlessly
REASONS = 5
LAST_WORDS = 3.0  # seconds that shutdown waits for the queue
FAILED = frozenset({HookOutcome.FAILED, HookOutcome.TIMEOUT})


class AlertCommand:
    """Receives every event of the log, and passes on those that are wanted. Make it on the event loop that runs it."""

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
        self._failed = self._dropped = 0  # since the last success
        self._told: set[str] = set()  # the reasons reported
        self._want(wanted)
        self._task = asyncio.create_task(self._work(), name="notify")

    def apply(self, settings: Settings) -> None:
        """Apply new settings, also to events that wait; failures of a new command are reported again."""
        self._want(settings.notify)

    def _want(self, wanted: NotifySection) -> None:
        if wanted.command != getattr(self, "_command", wanted.command):
            self._told.clear()
        self._on, self._command = frozenset(wanted.on), wanted.command
        if not self._command:
            self._waiting.clear()

    def hear(self, event: str, fields: Mapping[str, object]) -> None:
        """An event was logged, in any thread. Never waits."""
        if event in self._on:
            text = logger.as_json(event, fields)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._take, event, text)

    async def close(self) -> None:
        """Pass on the queued events, for a moment and at any pace; then kill the running command."""
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
        """Wait until `each_minute` permits one more run, or the daemon stops."""
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
        except Exception as error:  # noqa: BLE001 - an error with one event must not stop the next ones
            return HookResult(HookOutcome.FAILED, f"{type(error).__name__}: {error}")

    def _judge(self, event: str, result: HookResult, *, former: bool) -> None:
        """Report each reason of failure once, and recovery once the queue is empty.

        `former`: a reload has replaced the command meanwhile, so the reason is outdated.
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
