"""The daemon: composition root, main loop and shutdown order. Start reading at `Daemon.run`."""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial

from watchdog.agents.admission import Admission, DatagramBudget
from watchdog.agents.fleet import Fleet
from watchdog.agents.history import EventRecorder
from watchdog.agents.holds import Holds
from watchdog.agents.own_cgroup import CgroupPlacement
from watchdog.agents.persistence import AgentPersistence
from watchdog.agents.registration import Registrar
from watchdog.agents.registration_backup import RegistrationBackup
from watchdog.agents.tracker import AgentTracker
from watchdog.cleanup.cleanup import settings_for
from watchdog.cleanup.runner import CleanupRunner
from watchdog.clock import Clock
from watchdog.concurrency import threads
from watchdog.config.paths import notify_directory
from watchdog.config.settings import Settings
from watchdog.control.context import ControlContext
from watchdog.control.listener import ControlSocket
from watchdog.control.metrics_listener import Scrape
from watchdog.discovery.custody import Custodians
from watchdog.discovery.importer import SourceImporter
from watchdog.discovery.run_reports import RunReportImporter
from watchdog.discovery.stale_entries import StaleEntries
from watchdog.helpers import transient_units
from watchdog.helpers.pool import HelperPool
from watchdog.helpers.users import Users
from watchdog.host import disk_reserve
from watchdog.host.children import Adopted
from watchdog.host.clock_steps import Steps
from watchdog.host.disk_reserve import Reserve
from watchdog.host.instance_lock import InstanceLocks, PidFile, console_hint
from watchdog.host.service_manager import ServiceManager
from watchdog.kill.ask import StopRequest
from watchdog.kill.claim import Claim
from watchdog.kill.close import Close
from watchdog.kill.evidence import EvidenceCollector
from watchdog.kill.terminate import Terminator
from watchdog.kill.worker import KillStages, KillWorker
from watchdog.probes.panes import Panes
from watchdog.probes.process_scan import ProcessScanner
from watchdog.processes import bounded, identity
from watchdog.processes.bounded import LookFailed
from watchdog.processes.reader import Reader
from watchdog.reaper import reaper, retention, shares
from watchdog.reaper.leftovers import OwnerLeftovers
from watchdog.reaper.orphans import Orphans
from watchdog.reaper.reaper import Reaper
from watchdog.reaper.retention import Retention
from watchdog.reaper.shares import Shares
from watchdog.registry import damage
from watchdog.registry.store import AsyncStore, Store
from watchdog.service import exit_timer
from watchdog.service.alerts import AlertCommand
from watchdog.service.exit_timer import EX_SOFTWARE, ExitTimer
from watchdog.service.recovery import Recovery
from watchdog.service.reload import ConfigReload
from watchdog.service.scheduler import Scheduler
from watchdog.service.signal_flags import SignalFlags
from watchdog.service.status import DaemonStatus
from watchdog.sweep.sweeper import Sweeper
from watchdog.telemetry import line_limits, logger
from watchdog.telemetry.line_limits import LineLimits
from watchdog.telemetry.logger import EventLogger
from watchdog.telemetry.metrics import Metrics
from watchdog.telemetry.queue_handler import QueueHandler
from watchdog.telemetry.troubles import Troubles

# Seconds that a part may take when the daemon ends. Together they are below `shutdown.LIMIT`, and none is reached
# unless something hangs.
START_LEAVES = 3.0  # a start that is under way, until it is given up
SWEEP_LEAVES = 4.0  # a running sweep
REGISTRY_LEAVES = 3.0  # the last write, and again the close of the connections


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
        self.clock = Clock()
        self.host = identity.this_host(settings.host)
        self.boot_id = identity.boot_id()
        self.stopping, self.sooner = asyncio.Event(), asyncio.Event()
        self.looked = asyncio.Event()  # the first sweep has ended, however
        self.early: asyncio.Task[None] | None = None  # a look that a reason called for
        self.adopted = Adopted()
        self.reloads: list[asyncio.Future[None]] = []  # who waits for the outcome of the next one
        self.stuck: dict[str, float] = {}  # what does not answer, and for how many seconds: reported
        self.summons = SignalFlags(self._summoned)
        self.exit_timer = ExitTimer(log, self.summons.unheeded, partial(logger.finish, sink))

    async def run(self) -> int:
        """Live: take the lock, make the parts, take up what was left, watch until told to stop, end in order."""
        self._live()
        code = 0
        async with AsyncExitStack() as held:
            held.callback(self.summons.close)
            self.locks = InstanceLocks(self.settings, self.log, self.pid_file)
            held.callback(self.locks.close)
            self.exit_timer.on_exit(self.locks.release)
            if await self._started(held):
                await self._watch()
                if self.schedule.dead.is_set():
                    code = EX_SOFTWARE
                    self.exit_timer.arm(code)
                await self._end()
        self.log.event("daemon.stopped", exit_code=code)
        return code

    def _live(self) -> None:
        """Give the exit timer the loop's signs of life."""
        self.exit_timer.alive()
        asyncio.get_running_loop().call_later(exit_timer.TICK / 2, self._live)

    async def _started(self, held: AsyncExitStack) -> bool:
        """Start; False when told to stop meanwhile: a start that hangs (at the registry's disk) is given up."""
        start = asyncio.create_task(self._start(held), name="start")
        stop = asyncio.create_task(self.stopping.wait())
        await asyncio.wait([start, stop], return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            await asyncio.wait([start], timeout=START_LEAVES)
        stop.cancel()
        if start.done():
            try:
                start.result()
            except Exception as error:
                self.exit_timer.arm(getattr(error, "exit_code", 1))
                raise
            return True
        start.cancel()
        await asyncio.wait([start], timeout=START_LEAVES)
        return False

    async def _start(self, held: AsyncExitStack) -> None:
        await self._make(held)
        await self.custodians.look()  # before anything is judged, or said to be ours
        await self.take_up.everything(begun_anew=self.begun_anew)
        self.hearing.sockets.drop_kept()
        await self.door.open()
        held.push_async_callback(self.door.close)
        held.push_async_callback(self.scrape.close)
        await self._begin()

    async def _watch(self) -> None:
        """Until told to stop or the scheduler is dead: sweep sooner than the schedule does where there is a reason.

        A reason is a new process, the next deadline of somebody's silence, an operator's word. Many share one look:
        early ones take a fifth of the time at most and are a second apart at most, reloads a second at least.
        """
        ends = [asyncio.create_task(self.stopping.wait()), asyncio.create_task(self.schedule.dead.wait())]
        while not any(end.done() for end in ends):
            sooner = asyncio.create_task(self.sooner.wait())
            await asyncio.wait([*ends, sooner], return_when=asyncio.FIRST_COMPLETED)
            sooner.cancel()
            if self.sooner.is_set():
                self.sooner.clear()
                reload, self.summons.reload = self.summons.reload, False
                # Not awaited alone: one that hangs would keep us from seeing that the scheduler is dead.
                self.early = asyncio.create_task(self._early_look(reload), name="early look")
                await asyncio.wait([*ends, self.early], return_when=asyncio.FIRST_COMPLETED)
                if self.early.done():
                    self.early.result()
                pause = 1 if reload else min(1, 4 * self.sweeper.took)
                await asyncio.wait(ends, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        if self.schedule.dead.is_set():
            self.log.event("scheduler.dead")
        for end in ends:
            end.cancel()

    async def _early_look(self, reload: bool) -> None:
        try:
            if reload:
                await self._reload()
            await self._sweep()
        finally:
            if reload:  # what is shown from now on was judged by the new settings
                self.supervisor.ready(self.bulletin.line())

    async def _reload(self) -> None:
        asked, self.reloads = self.reloads, []
        try:
            await self.reload.run(self.settings)
        finally:
            for one in asked:
                if not one.done():
                    one.set_result(None)

    async def _scheduled_sweep(self) -> None:
        """The sweep of each interval; only its success feeds systemd's watchdog."""
        try:
            self._report_stuck()
            self.adopted.look()
            self.users.look()
            self.admission.look()
            await self.door.keep()
            await self.scrape.keep(self.settings.metrics.listen)
            if await self._sweep():
                self.supervisor.swept(self.bulletin.line())
        finally:
            self.looked.set()

    def _report_stuck(self) -> None:
        """What does not answer is said once, and once that it has."""
        now = threads.overdue()
        for what in now.keys() - self.stuck.keys():
            self.log.event("call.stuck", what=what, seconds=round(now[what]))
        for what in self.stuck.keys() - now.keys():
            self.log.event("call.returned", what=what)
        self.stuck = now
        self.sink.tell_if_stuck()

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

    async def _reload_now(self) -> dict[str, object]:
        """Reload for somebody who waits for what comes of it."""
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reloads.append(asked)
        self.summons.reload = True
        self.look_soon()
        await asked
        problems = list(self.reload.problems)
        return {
            "success": not problems,
            "config": self.settings.file or "defaults",
            "problems": problems,
            "waiting": list(self.reload.waiting),
        }

    def look_soon(self) -> None:
        """Make the next look come now."""
        self.sooner.set()

    async def _make(self, held: AsyncExitStack) -> None:
        """Make every part, lowest first. Parts get values and callbacks; nobody gets the daemon itself."""
        settings, clock, log = self.settings, self.clock, self.log
        reader = Reader()
        bounded.use(reader)
        held.callback(bounded.use, None)
        held.callback(reader.close)
        with suppress(LookFailed):  # it is started again for the first look
            await reader.call("hung", ())
        store = Store(settings.registry_url)
        self.store = AsyncStore(store)
        held.callback(self.store.close, REGISTRY_LEAVES)
        aside = partial(damage.put_aside, settings.registry_url, settings.state_dir, clock.now().wall)
        aside = partial(aside, had_lock=self.locks.had_registry)
        lost = await threads.finished(f"registry {store.engines.place}", aside)
        await threads.finished(f"registry {store.engines.place}", store.open)
        await threads.finished(f"registry {store.engines.place}", partial(store.claim_host, self.host))
        self.begun_anew = lost is not None
        if lost is not None:  # at once: a start that is given up later would leave a new registry without the hold
            log.event("registry.begun_anew", why=lost.why, kept_as=lost.kept_as)
            why = f"the former registry was lost ({lost.why}), and what operators held with it"
            await self.store.write(store.add_hold, None, why, os.geteuid(), clock.now().wall, host=self.host)
        self.reserve = Reserve(settings.state_dir, settings.log.file, log)
        await self.reserve.round()
        self.sink.make_room = self.reserve.give_log
        if not store.shared:  # a server's disk is another one
            self.store.make_room = self.reserve.give
        self.supervisor.stepped()
        self.users = Users(clock, log)
        self.users.changed = reader.share
        await self.users.begin()
        self.fleet = Fleet()
        self.holds = Holds(await self.store.read(store.active_holds, self.host))
        self.steps = Steps(settings.state_dir, clock, self.boot_id)
        self.steps.on_step = self.holds.shift
        self.steps.look()
        self.chronicle = EventRecorder(self.store, clock, log)
        directory = notify_directory(settings.runtime_dir)
        self.placement = CgroupPlacement(self.fleet, self.store, log)
        held.push_async_callback(self.placement.close)
        copies = RegistrationBackup(settings.state_dir, clock, log)
        self.hearing = AgentTracker(self.fleet, directory, clock, self.look_soon, log, self.supervisor, copies)
        self.owners = HelperPool(
            settings=settings_for(settings),
            transient=transient_units.usable(self.supervisor.present),
            unconfined=lambda kind, why: log.event("helper.unconfined", kind=kind, why=why),
            user_of=self.users.user_of,
        )
        held.push_async_callback(self.owners.close)
        self.notices = AlertCommand(settings.notify, self.owners, clock, log)
        held.push_async_callback(self.notices.close)
        self.troubles = Troubles(clock)
        logger.set_listener(self.sink, self._hear)
        self.line_limits = LineLimits(clock, log, user_of=self.users.user_of)
        logger.limit(self.line_limits.allows)
        self.metrics = Metrics(
            lambda: self.bulletin.verdicts(),
            lambda: self.bulletin.kinds_of_hold(),
            log=self.sink.health,
            history_lost=lambda: self.chronicle.lost,
            mass_stalled=lambda: self.sweeper.restraint.mass_stalled(),
            needs_person=lambda: self.bulletin.need_a_person(),
            hooks=[hook.name for hook in settings.hooks],
        )
        scanner = ProcessScanner(self.fleet, None, self.host)
        self.admission = Admission(self.users, clock, self.metrics, log)
        self.hearing.sockets.budget = DatagramBudget(self.admission)
        self.cleanup = CleanupRunner(
            settings.hooks, self.owners, self.store, clock, self.chronicle, fleet=self.fleet, observe=settings.observe
        )
        panes = Panes(self.store, self.owners)
        self.hearing.known = panes.find
        stages = KillStages(
            EvidenceCollector(clock, self.holds, self.owners, panes, lambda agent: self.sweeper.catch_up(agent)),
            StopRequest(self.store, clock, self.holds, self.owners, self.chronicle),
            Claim(self.store, clock, self.hearing, self.holds, self.fleet),
            Terminator(scanner, clock, self.fleet),
            Close(self.store, clock, self.hearing, self.cleanup, self.chronicle, self.metrics, self.owners),
        )
        self.worker = KillWorker(
            store=self.store,
            clock=clock,
            stages=stages,
            chronicle=self.chronicle,
            observe=settings.observe,
            parallel=settings.kill.parallel,
            user_of=self.users.user_of,
        )
        held.push_async_callback(self.worker.close)  # also where the start is given up
        self.recorder = AgentPersistence(self.fleet, self.store, clock, log)
        self.sweeper = Sweeper(
            fleet=self.fleet,
            store=self.store,
            clock=clock,
            settings=settings,
            hearing=self.hearing,
            owners=self.owners,
            scanner=scanner,
            holds=self.holds,
            worker=self.worker,
            chronicle=self.chronicle,
            recorder=self.recorder,
            metrics=self.metrics,
            log=log,
            user_of=self.users.user_of,
            look_at_clock=self.steps.look,
        )
        self.hearing.ends.look = self.sweeper.look_at_ended
        here = {"host": self.host, "boot_id": self.boot_id}
        socket_path = f"{settings.runtime_dir}/control.sock"
        self.custodians = Custodians(
            self.fleet, clock, self.chronicle, self.owners, self.worker, self.host, socket_path
        )
        held.callback(self.custodians.close)
        self.hearing.passed = self.custodians.heard
        self.registrar = Registrar(
            self.fleet, self.store, clock, settings, self.hearing, self.admission, self.chronicle
        )
        self.take_up = Recovery(
            fleet=self.fleet,
            store=self.store,
            clock=clock,
            settings=settings,
            hearing=self.hearing,
            placement=self.placement,
            holds=self.holds,
            worker=self.worker,
            registrar=self.registrar,
            custodians=self.custodians,
            log=log,
            **here,
        )
        orphans = Orphans(self.fleet, self.store, scanner, lambda reg: self.settings.policy_for(reg), **here)
        finders = (
            orphans,
            OwnerLeftovers(self.fleet, self.store, self.owners, clock, self.host, self.steps.credit),
            self.placement,
        )
        doers = self.cleanup, self.worker, self.holds, self.sweeper.restraint, log
        self.reaper = Reaper(self.fleet, self.store, clock, settings, finders, *doers, host=self.host, notify=directory)
        self.retention = Retention(
            self.store, clock, log, keep=settings.retention, host=self.host, credit=self.steps.credit
        )
        self.shares = Shares(self.store, clock, log, most=settings.bytes_per_user, user_of=self.users.user_of)
        self.schedule = Scheduler(clock, log)
        self.reload = ConfigReload(self.read, self._adopt, self.sweeper.lock, self.supervisor, log)
        parts = (clock, self.fleet, self.holds, self.worker, self.sweeper, self.reload, self.placement, self.sink)
        self.bulletin = DaemonStatus(lambda: self.settings, *parts, self.reserve, self.shares, self.troubles)
        self.stale = StaleEntries(self.store, clock, settings, self.owners, self.chronicle)
        self.sources = SourceImporter(
            settings, clock, self.registrar, self.stale, self.custodians, self.owners, self.chronicle
        )
        self.desk = ControlContext(
            fleet=self.fleet,
            store=self.store,
            settings=settings,
            clock=clock,
            holds=self.holds,
            metrics=self.metrics,
            log=log,
            recorder=self.chronicle,
            tracker=self.hearing,
            registrar=self.registrar,
            custodians=self.custodians,
            owners=self.owners,
            host=self.host,
            boot_id=self.boot_id,
            runtime_dir=settings.runtime_dir,
            placement=self.placement,
            kills=self.worker,
            safeguards=self.sweeper.restraint,
            reaper=self.reaper,
            sources=self.sources,
            reload=self._reload_now,
            look_soon=self.look_soon,
            admission=self.admission,
            present=self.sweeper.present,
            facts=self.bulletin.facts,
            no_space=self._no_space,
        )
        self.reports = RunReportImporter(
            self.registrar, self.holds, self.worker, clock, self.owners, self.chronicle, settings.runtime_dir
        )
        self.door = ControlSocket(self.desk, self.locks, self.hearing)
        self.scrape = Scrape(self.metrics.text, log)

    def _hear(self, event: str, fields: Mapping[str, object]) -> None:
        """An event was logged, in any thread."""
        self.troubles.hear(event, fields)
        self.notices.hear(event, fields)

    def _adopt(self, settings: Settings) -> None:
        """Every part that keeps settings gets the new ones; no sweep is running, and nothing here waits."""
        old, self.settings = self.settings, settings
        for part in (self.sweeper, self.desk, self.take_up, self.reaper):
            part.settings = settings
        for one in (self.registrar, self.sources, self.stale):
            one.apply(settings)
        self.worker.adopt(observe=settings.observe)
        if settings.kill.parallel != old.kill.parallel:
            self.worker.allow(settings.kill.parallel)
        self.cleanup.adopt(settings.hooks, observe=settings.observe)
        self.metrics.expect(hook.name for hook in settings.hooks)
        self.owners.settings = settings_for(settings)
        self.notices.adopt(settings.notify)
        self.retention.keep, self.shares.most = settings.retention, settings.bytes_per_user
        for agent in self.fleet:
            agent.adopt(settings.policy_for(agent.reg))
        if settings.interval != old.interval:
            for job in ("sweep", "orders", "custody", "sources", "ghosts"):
                self.schedule.change(job, settings.interval)
        self.reserve.adopt(settings.log.file)
        logger.change(self.sink, settings.log.level, settings.log.format, settings.log.file)
        self.sink.reopen()  # as after a rotation

    async def _begin(self) -> None:
        await self.scrape.keep(self.settings.metrics.listen)
        self.schedule.every(self.settings.interval, "sweep", self._scheduled_sweep, watched=True)
        jobs = {
            "orders": self.take_up.orders,
            "custody": self.custodians.round,
            "sources": self.sources.look,  # neither of these two waits for the other
            "ghosts": self.stale.round,
        }
        for job, do in jobs.items():
            self.schedule.every(self.settings.interval, job, do)
        self.schedule.every(line_limits.EVERY, "line limits", self.line_limits.round)
        self.schedule.every(shares.EVERY, "shares", self.shares.round)
        self.schedule.every(disk_reserve.EVERY, "reserve", self.reserve.round)
        self.schedule.every(retention.EVERY, "retention", self.retention.round)
        self.schedule.every(reaper.EVERY, "reap", self.reaper.round)
        self.schedule.every(reaper.EVERY, "reports", self.reports.round)
        self.schedule.start()
        await self._first_look()
        if self.stopping.is_set() or self.schedule.dead.is_set():
            return  # told to stop before we were ready: who waits for it is not told that we are
        self.supervisor.ready(self.bulletin.line())
        log = self.log.bind(socket=self.door.desk.socket_path, config=self.settings.file or "defaults")
        log.event("daemon.ready", pid=os.getpid(), mode=self.settings.mode, agents=len(self.fleet))
        if not self.supervisor.present:
            words = console_hint(self.settings) + "\n"
            threads.begin("standard output", lambda: print(words, end="", flush=True))  # its reader may have stopped

    async def _first_look(self) -> None:
        """Who is told that we are ready may ask what we see: until the first sweep has ended we have seen nobody."""
        self.supervisor.stepped()
        ends = [asyncio.create_task(one.wait()) for one in (self.looked, self.stopping, self.schedule.dead)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    def _no_space(self, uid: int) -> str | None:
        """Why nothing that this user can do without is written, or None."""
        if self.reserve.in_use:
            return "the disk of the registry is full"
        if self.shares.over(uid):
            return f"uid {uid} has used up its share of the registry ({self.shares.most >> 20} MiB)"
        return None

    def _summoned(self) -> None:
        """A signal came: heeded at once where it stops us, by the next look where it is a reload."""
        if self.summons.stop is not None and not self.stopping.is_set():
            self.log.event("daemon.stopping", signal=self.summons.stop.name)
            self.supervisor.stopping("stopping; agents go on living")
            self.exit_timer.arm(0)
            self.stopping.set()
        if self.summons.reload:
            self.look_soon()

    async def _end(self) -> None:
        """In order: no new look, the running one ends, kills stop between two steps, words are written down."""
        self.schedule.pause()
        self.hearing.ends.stop()
        self.supervisor.stepped()
        self.store.patience = min(self.store.patience, REGISTRY_LEAVES)
        with suppress(TimeoutError):  # a sweep that hangs is cancelled
            async with asyncio.timeout(SWEEP_LEAVES):
                await self.sweeper.lock.acquire()
            self.sweeper.lock.release()
        self.schedule.shutdown()
        if self.early is not None:
            self.early.cancel()
        self.supervisor.stepped()
        await self.worker.close()
        self.supervisor.stepped()
        await self.sweeper.close()
        self.hearing.sockets.drain_all()
        self.sweeper.reckon()
        await self.recorder.record(self.settings.interval.total_seconds(), everybody=True)
        self.supervisor.stepped()
        self.hearing.close()
