"""The daemon: composition root, main loop and shutdown order. Start reading at `Daemon.run`."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

from watchdog import logs, retention, units
from watchdog.beat_files import BeatFiles
from watchdog.bulletin import Bulletin
from watchdog.chronicle import Chronicle
from watchdog.clock import Clock
from watchdog.closing import Closing
from watchdog.config import Settings
from watchdog.control.desk import Desk
from watchdog.control.scrape import Scrape
from watchdog.door import Door
from watchdog.fleet import Fleet
from watchdog.hearing import Hearing
from watchdog.holds import Holds
from watchdog.journal import Cleanup
from watchdog.kill_worker import KillWorker
from watchdog.lock import invitation, take_lock
from watchdog.logs import Log
from watchdog.metrics import Metrics
from watchdog.notices import Notices
from watchdog.owner.hooks.base import CleanupSettings
from watchdog.owners import Owners
from watchdog.places import notify_directory
from watchdog.processes import identity
from watchdog.processes.signals import Guard
from watchdog.recording import Recorder
from watchdog.registry.store import AsyncStore, Store
from watchdog.reloading import Reload
from watchdog.retention import Retention
from watchdog.scan import Scanner
from watchdog.schedule import Schedule
from watchdog.sink import Sink
from watchdog.sweep import Sweeper
from watchdog.systemd import Supervisor
from watchdog.takeup import TakeUp

EX_SOFTWARE = 70  # sysexits.h


class Daemon:
    """One daemon of one host (root) or one user."""

    def __init__(
        self, settings: Settings, read: Callable[[], Settings], supervisor: Supervisor, log: Log, sink: Sink
    ) -> None:
        """`read` gives the settings of a reload (SIGHUP)."""
        self.settings = settings
        self.read = read
        self.supervisor = supervisor
        self.log = log
        self.sink = sink
        self.clock = Clock()
        self.host = identity.this_host(settings.host)
        self.boot_id = identity.boot_id()
        self.stopping = asyncio.Event()
        self.sooner = asyncio.Event()
        self.told_to_reload = False
        self.at_terminal = sys.stdin.isatty()

    async def run(self) -> int:
        """Live: take the lock, make the parts, take up what was left, watch until told to stop, end in order."""
        async with AsyncExitStack() as held:
            take_lock(self.settings, held)
            self._listen_to_signals()
            await self._make(held)
            await self.take_up.everything()
            self.hearing.sockets.drop_kept()
            await self.door.open()
            held.push_async_callback(self.door.close)
            held.push_async_callback(self.scrape.close)
            await self._begin()
            await self._watch()
            await self._end()
        code = EX_SOFTWARE if self.schedule.dead.is_set() else 0
        self.log.event("daemon.stopped", exit_code=code)
        return code

    # -- the main loop -----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Until told to stop or the scheduler is dead: sweep sooner than the schedule does where there is a reason.

        A reason is the end of a process (pidfd), the next deadline of somebody's silence, or an operator's word (a
        reload among them). It only makes the next look come sooner; what is done follows from that look. Many reasons
        at once share one: early looks take a fifth of the time at most, and are a second apart at most.
        """
        ends = [asyncio.create_task(self.stopping.wait()), asyncio.create_task(self.schedule.dead.wait())]
        while not any(end.done() for end in ends):
            sooner = asyncio.create_task(self.sooner.wait())
            await asyncio.wait([*ends, sooner], return_when=asyncio.FIRST_COMPLETED)
            sooner.cancel()
            if self.sooner.is_set():
                self.sooner.clear()
                if self.told_to_reload:
                    self.told_to_reload = False
                    await self.reload.run(self.settings)
                    self.supervisor.ready(self.bulletin.line())
                await self._sweep()
                await asyncio.wait(ends, timeout=min(1, 4 * self.sweeper.took), return_when=asyncio.FIRST_COMPLETED)
        if self.schedule.dead.is_set():
            self.log.event("scheduler.dead")
        for end in ends:
            end.cancel()

    async def _scheduled_sweep(self) -> None:
        """The sweep of each interval; only its success feeds systemd's watchdog."""
        await self.door.keep()
        await self.scrape.keep(self.settings.metrics.listen)
        if await self._sweep():
            self.supervisor.swept(self.bulletin.line())

    async def _sweep(self) -> bool:
        """One sweep; whatever goes wrong in it is said, and the next one comes."""
        try:
            await self.sweeper.sweep()
        except Exception as error:  # noqa: BLE001 - the daemon is the last to fall
            self.sweeper.account.failed(error)
            return False
        wait = self.sweeper.next_deadline()
        if wait < self.settings.interval.total_seconds():
            asyncio.get_running_loop().call_later(wait + 0.02, self.look_soon)
        return True

    def look_soon(self) -> None:
        """Make the next look come now."""
        self.sooner.set()

    # -- start -------------------------------------------------------------------------------------------------------

    async def _make(self, held: AsyncExitStack) -> None:
        """Make every part, lowest first. Parts get values and callbacks; nobody gets the daemon itself."""
        settings, clock, log = self.settings, self.clock, self.log
        store = Store(settings.registry_url)
        self.store = AsyncStore(store)
        held.callback(self.store.close)
        await asyncio.to_thread(store.open)
        await asyncio.to_thread(store.claim_host, self.host)
        self.supervisor.stepped()
        executor = ThreadPoolExecutor(2, "scan")
        held.callback(executor.shutdown, cancel_futures=True)
        self.fleet = Fleet()
        self.holds = Holds(await self.store.read(store.active_holds, self.host))
        self.chronicle = Chronicle(self.store, clock, log)
        directory = notify_directory(settings.runtime_dir)
        self.hearing = Hearing(self.fleet, directory, clock, self.look_soon, log, self.supervisor)
        self.owners = Owners(settings=_cleanup_settings(settings), transient=units.usable(self.supervisor.present))
        held.push_async_callback(self.owners.close)
        self.notices = Notices(settings.notify, self.owners, clock, log)
        held.push_async_callback(self.notices.close)
        logs.listen(self.sink, self.notices.hear)
        metrics = Metrics(
            lambda: self.bulletin.verdicts(),
            lambda: self.bulletin.kinds_of_hold(),
            log=self.sink.health,
            history_lost=lambda: self.chronicle.lost,
            hooks=[hook.name for hook in settings.hooks],
        )
        scanner = Scanner(self.fleet, executor, self.host)
        self.cleanup = Cleanup(
            settings.hooks, self.owners, self.store, clock, self.chronicle, fleet=self.fleet, observe=settings.observe
        )
        self.worker = KillWorker(
            store=self.store,
            clock=clock,
            scanner=scanner,
            hearing=self.hearing,
            closing=Closing(self.store, clock, self.hearing, self.cleanup, self.chronicle, metrics, log),
            guard=self._guard,
            chronicle=self.chronicle,
            log=log,
            observe=settings.observe,
            parallel=settings.kill.parallel,
        )
        self.recorder = Recorder(self.fleet, self.store, clock, log)
        self.beat_files = BeatFiles(self.fleet, self.owners, clock, log)
        self.sweeper = Sweeper(
            fleet=self.fleet,
            store=self.store,
            clock=clock,
            settings=settings,
            hearing=self.hearing,
            beat_files=self.beat_files,
            scanner=scanner,
            holds=self.holds,
            worker=self.worker,
            chronicle=self.chronicle,
            recorder=self.recorder,
            metrics=metrics,
            log=log,
        )
        self.take_up = TakeUp(
            fleet=self.fleet,
            store=self.store,
            clock=clock,
            settings=settings,
            hearing=self.hearing,
            holds=self.holds,
            worker=self.worker,
            log=log,
            host=self.host,
            boot_id=self.boot_id,
        )
        self.retention = Retention(self.store, clock, log, keep=settings.retention, host=self.host)
        self.schedule = Schedule(clock, log)
        self.reload = Reload(self.read, self._adopt, self.sweeper.lock, self.supervisor, log)
        self.bulletin = Bulletin(
            lambda: self.settings, clock, self.fleet, self.holds, self.worker, self.sweeper, self.reload, self.sink
        )
        self.desk = Desk(
            fleet=self.fleet,
            store=self.store,
            settings=settings,
            clock=clock,
            holds=self.holds,
            metrics=metrics,
            log=log,
            host=self.host,
            boot_id=self.boot_id,
            runtime_dir=settings.runtime_dir,
            admit=self.hearing.admit,
            identified=self.hearing.identified,
            open_notify=self.hearing.sockets.open,
            close_notify=self.hearing.sockets.close,
            request_kill=self.worker.request,
            finished=self.worker.finished,
            look_soon=self.look_soon,
            facts=self.bulletin.facts,
        )
        self.door = Door(self.desk, self.chronicle)
        self.scrape = Scrape(metrics.text, log)

    def _adopt(self, settings: Settings) -> None:
        """Every part that keeps settings gets the new ones; no sweep is running, and nothing here waits."""
        old, self.settings = self.settings, settings
        for part in (self.sweeper, self.desk, self.take_up):
            part.settings = settings
        self.worker.observe = settings.observe
        if settings.kill.parallel != old.kill.parallel:
            self.worker.slots = asyncio.Semaphore(settings.kill.parallel)
        self.cleanup.adopt(settings.hooks, observe=settings.observe)
        self.owners.settings = _cleanup_settings(settings)
        self.notices.adopt(settings.notify)
        self.retention.keep = settings.retention
        for agent in self.fleet:
            agent.policy = settings.policy_for(agent.reg)
        if settings.interval != old.interval:
            for job in ("sweep", "orders"):
                self.schedule.change(job, settings.interval)
        logs.change(self.sink, settings.log.level, settings.log.format, settings.log.file)
        self.sink.reopen()  # as after a rotation

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)

    async def _begin(self) -> None:
        await self.scrape.keep(self.settings.metrics.listen)
        self.schedule.every(self.settings.interval, "sweep", self._scheduled_sweep, watched=True)
        self.schedule.every(self.settings.interval, "orders", self.take_up.orders)
        self.schedule.every(retention.EVERY, "retention", self.retention.round)
        self.schedule.start()
        self.supervisor.ready(self.bulletin.line())
        self.log.event(
            "daemon.ready",
            pid=os.getpid(),
            mode=self.settings.mode,
            agents=len(self.fleet),
            socket=self.door.desk.socket_path,
            config=self.settings.file or "defaults",
        )
        if not self.supervisor.present:
            print(invitation(self.settings), flush=True)

    def _hung_up(self) -> None:
        """SIGHUP: read the configuration anew; from a terminal that was closed under us: stop."""
        if self.at_terminal and not sys.stdin.isatty():  # isatty(3): EIO after a hang-up
            self._told_to_stop(signal.SIGHUP)
        else:
            self.told_to_reload = True
            self.look_soon()

    # -- end ---------------------------------------------------------------------------------------------------------

    def _told_to_stop(self, number: int) -> None:
        self.log.event("daemon.stopping", signal=signal.Signals(number).name)
        self.supervisor.stopping("stopping; agents go on living")
        self.stopping.set()

    async def _end(self) -> None:
        """In order: no new sweep, the running one ends, kills stop between two steps, words are written down."""
        self.schedule.pause()
        self.supervisor.stepped()
        async with self.sweeper.lock:
            self.schedule.shutdown()
        self.supervisor.stepped()
        await self.worker.close()
        self.supervisor.stepped()
        await self.beat_files.close()
        self.hearing.sockets.drain_all()
        self.sweeper.reckon()
        await self.recorder.record(self.sweeper.settings.interval.total_seconds())
        self.supervisor.stepped()
        self.hearing.close()

    # -- what parts ask for ------------------------------------------------------------------------------------------

    def _guard(self, agent_id: str) -> Guard:
        """What must not be signalled while this agent is ended: every other agent and its tree, and what is spared."""
        others = self.fleet.processes_but(agent_id)
        return Guard(host=self.host, protected=others, spare=frozenset(self.settings.kill.spare))


def _cleanup_settings(settings: Settings) -> CleanupSettings:
    return CleanupSettings(
        roots=tuple(settings.cleanup.roots),
        trash_retention_hours=settings.cleanup.trash_retention_hours,
        dirty_worktree=settings.cleanup.dirty_worktree,
        protected=(settings.state_dir, settings.runtime_dir),
    )
