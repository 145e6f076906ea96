"""The daemon: main loop and shutdown order. Start reading at `Daemon.run`; `wiring` makes the parts.

Tests: tests/e2e/test_story.py, tests/e2e/test_restart.py, tests/verdicts/test_table.py.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial

from watchdog.clock import Clock
from watchdog.concurrency import threads
from watchdog.config.settings import Settings
from watchdog.host import disk_reserve
from watchdog.host.children import Adopted
from watchdog.host.instance_lock import InstanceLocks, PidFile, console_hint
from watchdog.host.service_manager import ServiceManager
from watchdog.reaper import reaper, retention, shares
from watchdog.service import exit_timer, wiring
from watchdog.service.exit_timer import EX_SOFTWARE, ExitTimer
from watchdog.service.signal_flags import SignalFlags
from watchdog.service.wiring import REGISTRY_LEAVES, Parts, Startup
from watchdog.telemetry import line_limits, logger
from watchdog.telemetry.logger import EventLogger
from watchdog.telemetry.queue_handler import QueueHandler

# Seconds that a part may take at shutdown. Together they are below `exit_timer.LIMIT`; none is reached unless something
# hangs.
START_LEAVES = 3.0  # a start in progress, until it is given up
SWEEP_LEAVES = 4.0  # a running sweep


class Daemon:
    """One daemon of one host (root) or one user."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings],
        supervisor: ServiceManager,
        log: EventLogger,
        sink: QueueHandler,
        pid_file: PidFile | None,
    ) -> None:
        """`read` gives the settings of a reload (SIGHUP)."""
        self.settings, self.read = settings, read
        self.supervisor = supervisor
        self.log = log
        self.sink = sink
        self.pid_file = pid_file
        self.stopping = asyncio.Event()
        self.looked = asyncio.Event()  # the first sweep has ended, successful or not
        self.sooner: asyncio.Event | None = None  # set when a sweep is due now, once the watch has begun
        self.early: asyncio.Task[None] | None = None  # a sweep that was brought forward
        self.adopted = Adopted()
        self.stuck: dict[str, float] = {}  # calls that do not return, with their seconds: reported
        self.signals = SignalFlags(self._on_signal)
        self.exit_timer = ExitTimer(log, self.signals.unheeded, partial(logger.finish, sink))

    def apply(self, settings: Settings) -> None:
        """Apply these settings from now on."""
        self.settings = settings

    async def run(self) -> int:
        """Take the locks, make the parts, restore the former state, watch until asked to stop, shut down in order."""
        self._live()
        code = 0
        async with AsyncExitStack() as held:
            held.callback(self.signals.close)
            locks = InstanceLocks(self.settings, self.log, self.pid_file)
            held.callback(locks.close)
            self.exit_timer.on_exit(locks.release)
            parts = await self._started(locks, held)
            if parts is not None:
                await self._watch(parts)
                if parts.scheduler.dead.is_set():
                    code = EX_SOFTWARE
                    self.exit_timer.arm(code)
                await self._end(parts)
        self.log.event("daemon.stopped", exit_code=code)
        return code

    def _live(self) -> None:
        """Give the exit timer the loop's signs of life."""
        self.exit_timer.alive()
        asyncio.get_running_loop().call_later(exit_timer.TICK / 2, self._live)

    async def _started(self, locks: InstanceLocks, held: AsyncExitStack) -> Parts | None:
        """Start; None when asked to stop meanwhile: a start that hangs (at the registry's disk) is given up."""
        start = asyncio.create_task(self._start(locks, held), name="start")
        stop = asyncio.create_task(self.stopping.wait())
        await asyncio.wait([start, stop], return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            await asyncio.wait([start], timeout=START_LEAVES)
        stop.cancel()
        if start.done():
            try:
                return start.result()
            except Exception as error:
                self.exit_timer.arm(getattr(error, "exit_code", 1))
                raise
        start.cancel()
        await asyncio.wait([start], timeout=START_LEAVES)
        return None

    async def _start(self, locks: InstanceLocks, held: AsyncExitStack) -> Parts:
        process = Startup(self.settings, self.read, self.supervisor, self.log, self.sink, Clock(), locks)
        parts = await wiring.build(process, held)
        await parts.discovery.custodians.look()  # before anything is judged, or reported as ours
        await parts.recovery.restore_all()
        parts.tracker.sockets.drop_kept()
        await parts.control.open()
        held.push_async_callback(parts.control.close)
        held.push_async_callback(parts.scrape.close)
        await self._begin(parts)
        return parts

    async def _watch(self, parts: Parts) -> None:
        """Until asked to stop or the scheduler is dead: bring sweeps forward when there is a reason.

        Reasons are a new process, the next deadline of an agent's silence, an operator's request. Many share one sweep:
        early ones take at most a fifth of the time and are at most a second apart; reloads are at least a second apart.
        """
        self.sooner = parts.tracker.sooner
        if self.signals.reload:
            self.sooner.set()
        ends = [asyncio.create_task(self.stopping.wait()), asyncio.create_task(parts.scheduler.dead.wait())]
        while not any(end.done() for end in ends):
            sooner = asyncio.create_task(parts.tracker.sooner.wait())
            await asyncio.wait([*ends, sooner], return_when=asyncio.FIRST_COMPLETED)
            sooner.cancel()
            if parts.tracker.sooner.is_set():
                parts.tracker.sooner.clear()
                reload, self.signals.reload = self.signals.reload or parts.reload.wanted, False
                # Not awaited alone: one that hangs would keep us from noticing that the scheduler is dead.
                self.early = asyncio.create_task(self._early_look(parts, reload), name="early look")
                await asyncio.wait([*ends, self.early], return_when=asyncio.FIRST_COMPLETED)
                if self.early.done():
                    self.early.result()
                pause = 1 if reload else min(1, 4 * parts.sweeper.took)
                await asyncio.wait(ends, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        if parts.scheduler.dead.is_set():
            self.log.event("scheduler.dead")
        for end in ends:
            end.cancel()

    async def _early_look(self, parts: Parts, reload: bool) -> None:
        try:
            if reload:
                await parts.reload.run((self, *parts.configured))
            await self._sweep(parts)
        finally:
            if reload:  # from now on the status is by the new settings
                self.supervisor.ready(parts.status.line())

    async def _scheduled_sweep(self, parts: Parts) -> None:
        """The sweep of each interval; only its success feeds systemd's watchdog."""
        try:
            self._report_stuck()
            self.adopted.look()
            parts.users.look()
            parts.admission.look()
            await parts.control.keep()
            await parts.scrape.keep(self.settings.metrics.listen)
            if await self._sweep(parts):
                self.supervisor.feed_watchdog(parts.status.line())
        finally:
            self.looked.set()

    def _report_stuck(self) -> None:
        """Report a call that does not return once, and once that it has returned."""
        now = threads.overdue()
        for what in now.keys() - self.stuck.keys():
            self.log.event("call.stuck", what=what, seconds=round(now[what]))
        for what in self.stuck.keys() - now.keys():
            self.log.event("call.returned", what=what)
        self.stuck = now
        self.sink.report_if_stuck()

    async def _sweep(self, parts: Parts) -> bool:
        """One sweep; any error in it is reported, and the next one comes."""
        try:
            await parts.sweeper.sweep()
        except Exception as error:  # noqa: BLE001 - no error in a sweep may end the daemon
            parts.stats.failed(error)
            return False
        wait = parts.watched.next_deadline()
        if wait < self.settings.interval.total_seconds():
            asyncio.get_running_loop().call_later(wait + 0.02, parts.tracker.look_soon)
        return True

    async def _begin(self, parts: Parts) -> None:
        await parts.scrape.keep(self.settings.metrics.listen)
        parts.scheduler.each_sweep(self.settings, "sweep", partial(self._scheduled_sweep, parts), watched=True)
        jobs = {
            "orders": parts.registry_poll.poll,
            "custody": parts.discovery.custodians.round,
            "sources": parts.discovery.sources.look,  # this and the next do not wait for each other
            "ghosts": parts.discovery.stale.round,
        }
        for job, do in jobs.items():
            parts.scheduler.each_sweep(self.settings, job, do)
        parts.scheduler.every(line_limits.EVERY, "line limits", parts.line_limits.round)
        parts.scheduler.every(shares.EVERY, "shares", parts.shares.round)
        parts.scheduler.every(disk_reserve.EVERY, "reserve", parts.reserve.round)
        parts.scheduler.every(retention.EVERY, "retention", parts.retention.round)
        parts.scheduler.every(reaper.EVERY, "reap", parts.reaper.round)
        parts.scheduler.every(reaper.EVERY, "reports", parts.discovery.run_reports.round)
        parts.scheduler.start()
        await self._first_look(parts)
        if self.stopping.is_set() or parts.scheduler.dead.is_set():
            return  # asked to stop before we were ready: do not report ready
        self.supervisor.ready(parts.status.line())
        log = self.log.bind(socket=parts.control.context.socket_path, config=self.settings.file or "defaults")
        log.event("daemon.ready", pid=os.getpid(), mode=self.settings.mode, agents=len(parts.fleet))
        if not self.supervisor.present:
            words = console_hint(self.settings) + "\n"
            threads.begin("standard output", lambda: print(words, end="", flush=True))  # its reader may have stopped

    async def _first_look(self, parts: Parts) -> None:
        """Report ready only after the first sweep: clients may then ask about agents."""
        self.supervisor.extend_timeout()
        ends = [asyncio.create_task(one.wait()) for one in (self.looked, self.stopping, parts.scheduler.dead)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    def _on_signal(self) -> None:
        """A signal came: a stop is heeded at once, a reload by the next sweep."""
        if self.signals.stop is not None and not self.stopping.is_set():
            self.log.event("daemon.stopping", signal=self.signals.stop.name)
            self.supervisor.stopping("stopping; agents keep running")
            self.exit_timer.arm(0)
            self.stopping.set()
        if self.signals.reload and self.sooner is not None:  # otherwise the watch begins with it
            self.sooner.set()

    async def _end(self, parts: Parts) -> None:
        """In order: no new sweep, the running one ends, kills stop between two steps, beats are stored."""
        parts.scheduler.pause()
        parts.tracker.exits.stop()
        self.supervisor.extend_timeout()
        parts.registry.patience = min(parts.registry.patience, REGISTRY_LEAVES)
        with suppress(TimeoutError):  # a sweep that hangs is cancelled
            async with asyncio.timeout(SWEEP_LEAVES):
                await parts.sweeper.lock.acquire()
            parts.sweeper.lock.release()
        parts.scheduler.shutdown()
        if self.early is not None:
            self.early.cancel()
        self.supervisor.extend_timeout()
        await parts.kills.close()
        self.supervisor.extend_timeout()
        await parts.sweeper.close()
        parts.tracker.sockets.drain_all()
        parts.sweeper.reckon()
        await parts.persistence.record(self.settings.interval.total_seconds(), all_rows=True)
        self.supervisor.extend_timeout()
        parts.tracker.close()
