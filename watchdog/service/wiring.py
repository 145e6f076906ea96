"""Makes the parts of the daemon, each once, in the order of the layers, and hands each the parts that it works with.

A part that must call one that is made later gets it below by `subscribe`, `use_reserve` or `set_listener`.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial

from watchdog.agents.admission import Admission, DatagramBudget
from watchdog.agents.background_queries import BackgroundQueries
from watchdog.agents.fleet import Fleet
from watchdog.agents.history import EventRecorder
from watchdog.agents.holds import Holds
from watchdog.agents.own_cgroup import CgroupPlacement
from watchdog.agents.persistence import AgentPersistence
from watchdog.agents.registration import Registrar
from watchdog.agents.registration_backup import RegistrationBackup
from watchdog.agents.tracker import AgentTracker
from watchdog.agents.watched_time import WatchedTime
from watchdog.cleanup.runner import CleanupRunner
from watchdog.clock import Clock
from watchdog.concurrency import threads
from watchdog.config.paths import notify_directory
from watchdog.config.settings import Settings
from watchdog.control.callers import Callers
from watchdog.control.context import ControlContext
from watchdog.control.listener import ControlSocket
from watchdog.control.metrics_listener import MetricsListener
from watchdog.discovery.custody import Custodians
from watchdog.discovery.discovery import Discovery
from watchdog.discovery.forwarder import Forwarder
from watchdog.discovery.importer import SourceImporter
from watchdog.discovery.run_reports import RunReportImporter
from watchdog.discovery.stale_entries import StaleEntries
from watchdog.helpers import transient_units
from watchdog.helpers.pool import HelperPool, settings_for
from watchdog.helpers.users import Users
from watchdog.host.clock_steps import Steps
from watchdog.host.disk_reserve import Reserve
from watchdog.host.instance_lock import InstanceLocks
from watchdog.host.service_manager import ServiceManager
from watchdog.intake.notify_sockets import NotifySockets
from watchdog.kill.ask import StopRequest
from watchdog.kill.claim import Claim
from watchdog.kill.close import Close
from watchdog.kill.evidence import EvidenceCollector
from watchdog.kill.safeguards import Safeguards
from watchdog.kill.worker import KillStages, KillWorker
from watchdog.probes.panes import Panes
from watchdog.probes.process_scan import ProcessScanner
from watchdog.processes import bounded, identity
from watchdog.processes.bounded import LookFailed
from watchdog.processes.reader import Reader
from watchdog.reaper.events import ReapEvents
from watchdog.reaper.failed_hooks import FailedHooks
from watchdog.reaper.leftovers import OwnerLeftovers
from watchdog.reaper.orphans import Orphans
from watchdog.reaper.outlived import OutlivedProcesses
from watchdog.reaper.own_leftovers import OwnLeftovers
from watchdog.reaper.reaper import LeftoverFinders, Reaper
from watchdog.reaper.retention import Retention
from watchdog.reaper.shares import Shares
from watchdog.registry import damage
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.service.alerts import AlertCommand
from watchdog.service.recovery import Recovery
from watchdog.service.registry_poll import RegistryPoll
from watchdog.service.reload import ConfigReload, Configured, ConfiguredEntries, LogOutput
from watchdog.service.scheduler import Scheduler
from watchdog.service.status import DaemonStatus, StorageState, WatchState
from watchdog.service.stored_orders import StoredOrders
from watchdog.sweep.announcer import Announcer
from watchdog.sweep.enforcement import Enforcement
from watchdog.sweep.escalation import Escalation
from watchdog.sweep.probes import Probes
from watchdog.sweep.process_watch import ProcessWatch
from watchdog.sweep.stats import SweepStats
from watchdog.sweep.sweeper import Sweeper
from watchdog.telemetry import logger
from watchdog.telemetry.line_limits import LineLimits
from watchdog.telemetry.logger import EventLogger
from watchdog.telemetry.metrics import Metrics
from watchdog.telemetry.queue_handler import QueueHandler
from watchdog.telemetry.troubles import Troubles

REGISTRY_LEAVES = 3.0  # seconds for the last write, and again for closing the connections


@dataclass(frozen=True, slots=True)
class Startup:
    """This process as set up by the command line. `read` gives the settings of a reload (SIGHUP)."""

    settings: Settings
    read: Callable[[], Settings]
    supervisor: ServiceManager
    log: EventLogger
    sink: QueueHandler
    clock: Clock
    locks: InstanceLocks | None


@dataclass(frozen=True, slots=True)
class Host:
    """The base that exists before any agent: this host, its users and its registry.

    `registry_lost`: the former was lost.
    """

    name: str
    boot_id: str
    registry: AsyncRegistry
    registry_lost: bool
    reserve: Reserve
    users: Users
    steps: Steps
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Owners:
    """The parts that work for, or report to, the owners of agents."""

    helpers: HelperPool
    alerts: AlertCommand
    troubles: Troubles
    line_limits: LineLimits

    def hear(self, event: str, fields: Mapping[str, object]) -> None:
        """An event was logged, in any thread."""
        self.troubles.hear(event, fields)
        self.alerts.hear(event, fields)


@dataclass(frozen=True, slots=True)
class Agents:
    """The agents in memory, and the parts that maintain them."""

    fleet: Fleet
    holds: Holds
    recorder: EventRecorder
    admission: Admission
    panes: Panes
    forwarder: Forwarder
    tracker: AgentTracker
    placement: CgroupPlacement
    registrar: Registrar
    persistence: AgentPersistence
    watched: WatchedTime


@dataclass(frozen=True, slots=True)
class Kills:
    """The parts that kill an agent and clean up after it."""

    scanner: ProcessScanner
    cleanup: CleanupRunner
    stages: KillStages
    kills: KillWorker
    safeguards: Safeguards


@dataclass(frozen=True, slots=True)
class Watch:
    """The parts of the sweep."""

    processes: ProcessWatch
    enforcement: Enforcement
    stats: SweepStats
    sweeper: Sweeper


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The parts that find what dead agents left, and keep the registry small."""

    orphans: Orphans
    hooks: FailedHooks
    reaper: Reaper
    retention: Retention
    shares: Shares


@dataclass(frozen=True, slots=True)
class Layers:
    """The parts by layer, up to those that the control socket uses."""

    process: Startup
    host: Host
    owners: Owners
    agents: Agents
    ending: Kills
    discovery: Discovery
    watch: Watch
    leftovers: Leftovers


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that the main loop calls. `configured`: those that depend on the settings, in the order of a reload."""

    clock: Clock
    host: str
    boot_id: str
    registry: AsyncRegistry
    reserve: Reserve
    users: Users
    line_limits: LineLimits
    fleet: Fleet
    admission: Admission
    tracker: AgentTracker
    registrar: Registrar
    persistence: AgentPersistence
    watched: WatchedTime
    kills: KillWorker
    discovery: Discovery
    processes: ProcessWatch
    stats: SweepStats
    sweeper: Sweeper
    reaper: Reaper
    retention: Retention
    shares: Shares
    recovery: Recovery
    registry_poll: RegistryPoll
    scheduler: Scheduler
    reload: ConfigReload
    status: DaemonStatus
    control: ControlSocket
    scrape: MetricsListener
    configured: tuple[Configured, ...]


async def build(process: Startup, held: AsyncExitStack) -> Parts:
    """Make every part, lowest first. `held` closes them in reverse order."""
    host = await _host(process, held)
    owners = _owners(process, host, held)
    agents = await _agents(process, host, owners, held)
    ending = _ending(process, host, owners, agents, held)
    discovery = _discovery(process, owners, agents, ending)
    watch = _watch(process, host, owners, agents, ending)
    leftovers = _leftovers(process, host, owners, agents, ending)
    return _service(Layers(process, host, owners, agents, ending, discovery, watch, leftovers))


async def _host(process: Startup, held: AsyncExitStack) -> Host:
    settings, clock, log = process.settings, process.clock, process.log
    name, boot_id = identity.this_host(settings.host), identity.boot_id()
    reader = Reader()
    bounded.use(reader)
    held.callback(bounded.use, None)
    held.callback(reader.close)
    with suppress(LookFailed):  # the first use starts it again
        await reader.call("hung", ())
    reserve = Reserve(settings.state_dir, settings.log.file, log)
    database = Registry(settings.registry_url)
    registry = AsyncRegistry(database, reserve=None if database.shared else reserve.give)  # a server has its own disk
    held.callback(registry.close, REGISTRY_LEAVES)
    lost = await _open(registry, process, name)
    await reserve.round()
    process.sink.use_reserve(reserve.give_log)
    process.supervisor.extend_timeout()
    users = Users(clock, log, share=reader.share)
    await users.begin()
    steps = Steps(settings.state_dir, clock, boot_id)
    metrics = Metrics([hook.name for hook in settings.hooks])
    return Host(name, boot_id, registry, lost is not None, reserve, users, steps, metrics)


async def _open(registry: AsyncRegistry, process: Startup, name: str) -> damage.Lost | None:
    """Open the registry for this host. A damaged one is moved aside; returns what is known of a lost one.

    Then all agents are put on hold at once: a start that is given up later must not leave a new registry without the
    hold.
    """
    settings, now, what = process.settings, process.clock.now().wall, f"registry {registry.sync.engines.place}"
    aside = partial(damage.put_aside, settings.registry_url, settings.state_dir, now)
    had_lock = process.locks is not None and process.locks.had_registry
    lost = await threads.finished(what, partial(aside, had_lock=had_lock))
    await threads.finished(what, registry.sync.open)
    await threads.finished(what, partial(registry.sync.claim_host, name))
    if lost is not None:
        process.log.event("registry.begun_anew", why=lost.why, kept_as=lost.kept_as)
        why = f"the former registry was lost ({lost.why}), and the holds of operators with it"
        await registry.write(registry.history.add_hold, None, why, os.geteuid(), now, host=name)
    return lost


def _owners(process: Startup, host: Host, held: AsyncExitStack) -> Owners:
    settings, clock, log = process.settings, process.clock, process.log
    helpers = HelperPool(
        settings=settings_for(settings),
        transient=transient_units.usable(process.supervisor.present),
        log=log,
        user_of=host.users.user_of,
    )
    held.push_async_callback(helpers.close)
    alerts = AlertCommand(settings.notify, helpers, clock, log)
    held.push_async_callback(alerts.close)
    owners = Owners(helpers, alerts, Troubles(clock), LineLimits(clock, log, user_of=host.users.user_of))
    logger.set_listener(process.sink, owners.hear)
    logger.limit(owners.line_limits.allows)
    return owners


async def _agents(process: Startup, host: Host, owners: Owners, held: AsyncExitStack) -> Agents:
    settings, clock, log, registry = process.settings, process.clock, process.log, host.registry
    fleet = Fleet()
    holds = Holds(await registry.read(registry.history.active_holds, host.name))
    host.steps.subscribe(holds.shift)
    host.steps.subscribe(fleet.shift)
    host.steps.look()
    recorder = EventRecorder(registry, clock, log)
    admission = Admission(host.users, clock, host.metrics, log)
    placement = CgroupPlacement(fleet, registry, log)
    held.push_async_callback(placement.close)
    panes = Panes(registry, owners.helpers)
    forwarder = Forwarder()
    held.callback(forwarder.close)
    sockets = NotifySockets(
        notify_directory(settings.runtime_dir), supervisor=process.supervisor, budget=DatagramBudget(admission)
    )
    copies = RegistrationBackup(settings.state_dir, clock, log)
    tracker = AgentTracker(fleet, sockets, clock, log, copies, panes, forwarder)
    return Agents(
        fleet=fleet,
        holds=holds,
        recorder=recorder,
        admission=admission,
        panes=panes,
        forwarder=forwarder,
        tracker=tracker,
        placement=placement,
        registrar=Registrar(fleet, registry, clock, settings, tracker, admission, recorder),
        persistence=AgentPersistence(fleet, registry, clock, log),
        watched=WatchedTime(settings, fleet, clock),
    )


def _ending(process: Startup, host: Host, owners: Owners, agents: Agents, held: AsyncExitStack) -> Kills:
    settings, clock, registry = process.settings, process.clock, host.registry
    fleet, holds, helpers, recorder = agents.fleet, agents.holds, owners.helpers, agents.recorder
    scanner = ProcessScanner(fleet, None, host.name)
    cleanup = CleanupRunner(settings, helpers, registry, clock, recorder, fleet)
    stages = KillStages(
        EvidenceCollector(clock, holds, helpers, agents.panes, agents.watched),
        StopRequest(registry, clock, holds, helpers, recorder),
        Claim(registry, clock, agents.tracker, holds, fleet),
        fleet,
        scanner,
        Close(registry, clock, agents.tracker, cleanup, recorder, host.metrics, helpers),
    )
    kills = KillWorker(settings, registry, clock, stages, recorder, host.users)
    held.push_async_callback(kills.close)  # also when the start is given up
    safeguards = Safeguards(settings, registry, clock, holds, process.log, host.users, host.steps)
    return Kills(scanner, cleanup, stages, kills, safeguards)


def _discovery(process: Startup, owners: Owners, agents: Agents, ending: Kills) -> Discovery:
    settings, clock, recorder, helpers = process.settings, process.clock, agents.recorder, owners.helpers
    custodians = Custodians(agents.fleet, clock, recorder, helpers, ending.kills, settings, agents.forwarder)
    stale = StaleEntries(agents.registrar.registry, clock, settings, helpers, recorder)
    return Discovery(
        forwarder=agents.forwarder,
        custodians=custodians,
        stale=stale,
        sources=SourceImporter(settings, clock, agents.registrar, stale, custodians, helpers, recorder),
        run_reports=RunReportImporter(
            agents.registrar, agents.holds, ending.kills, clock, helpers, recorder, settings.runtime_dir
        ),
    )


def _watch(process: Startup, host: Host, owners: Owners, agents: Agents, ending: Kills) -> Watch:
    settings, clock, registry, tracker = process.settings, process.clock, host.registry, agents.tracker
    stats = SweepStats(agents.fleet, clock, host.metrics, process.log)
    announcer = Announcer(agents.recorder)
    escalation = Escalation(registry, owners.helpers, agents.recorder)
    processes = ProcessWatch(settings, agents.fleet, clock, tracker, ending.scanner, stats)
    queries = BackgroundQueries(owners.helpers, clock)
    probes = Probes(tracker, agents.watched, processes, queries, registry, clock, announcer)
    enforcement = Enforcement(settings, tracker, ending.kills, ending.safeguards, escalation, announcer, stats)
    sweeper = Sweeper(agents.fleet, clock, probes, ending.safeguards, enforcement, agents.persistence, stats)
    tracker.exits.subscribe(sweeper.look_at_ended)
    return Watch(processes, enforcement, stats, sweeper)


def _leftovers(process: Startup, host: Host, owners: Owners, agents: Agents, ending: Kills) -> Leftovers:
    settings, clock, log, registry = process.settings, process.clock, process.log, host.registry
    events = ReapEvents(registry, clock, log)
    orphans = Orphans(settings, agents.fleet, registry, ending.scanner, host=host.name, boot_id=host.boot_id)
    hooks = FailedHooks(settings, agents.fleet, registry, clock, ending.cleanup)
    finders = LeftoverFinders(
        processes=OutlivedProcesses(orphans, ending.kills, ending.safeguards, events),
        hooks=hooks,
        own=OwnLeftovers(agents.fleet, registry, agents.placement, events, notify_directory(settings.runtime_dir)),
        places=OwnerLeftovers(agents.fleet, registry, owners.helpers, clock, host.name, host.steps.credit),
    )
    return Leftovers(
        orphans=orphans,
        hooks=hooks,
        reaper=Reaper(settings, clock, finders, agents.holds, host.users, events),
        retention=Retention(registry, clock, log, keep=settings.retention, host=host.name, credit=host.steps.credit),
        shares=Shares(registry, clock, log, most=settings.bytes_per_user, user_of=host.users.user_of),
    )


def _recovery(layers: Layers) -> tuple[Recovery, RegistryPoll, StoredOrders]:
    process, agents, kills = layers.process, layers.agents, layers.ending.kills
    orders = StoredOrders(process.settings, agents.registrar, agents.holds, kills, process.log)
    recovery = Recovery(
        process.settings,
        agents.registrar,
        agents.placement,
        layers.discovery.custodians,
        orders,
        registry_lost=layers.host.registry_lost,
    )
    return recovery, RegistryPoll(agents.registrar, agents.holds, orders, process.log), orders


def _status(layers: Layers, reload: ConfigReload) -> DaemonStatus:
    process, host, agents, ending, watch = layers.process, layers.host, layers.agents, layers.ending, layers.watch
    looks = WatchState(
        agents.fleet, agents.holds, ending.safeguards, ending.kills, watch.processes, watch.stats, agents.placement
    )
    shares, troubles = layers.leftovers.shares, layers.owners.troubles
    storage = StorageState(
        agents.persistence, agents.recorder, host.reserve, shares, process.sink, troubles, host.metrics
    )
    status = DaemonStatus(process.settings, process.clock, looks, storage, reload)
    host.metrics.count(status)
    return status


def _control(layers: Layers, status: DaemonStatus, reload: ConfigReload) -> ControlSocket:
    process, host, agents, ending = layers.process, layers.host, layers.agents, layers.ending
    context = ControlContext(
        fleet=agents.fleet,
        registry=host.registry,
        registrar=agents.registrar,
        recorder=agents.recorder,
        kill_worker=ending.kills,
        holds=agents.holds,
        safeguards=ending.safeguards,
        reaper=layers.leftovers.reaper,
        helpers=layers.owners.helpers,
        discovery=layers.discovery,
        sweeper=layers.watch.sweeper,
        placement=agents.placement,
        callers=Callers(agents.admission, host.metrics, agents.recorder, process.clock),
        status=status,
        reload=reload,
    )
    return ControlSocket(context, process.locks)


def _service(layers: Layers) -> Parts:
    process, host, agents, ending = layers.process, layers.host, layers.agents, layers.ending
    watch, leftovers, discovery = layers.watch, layers.leftovers, layers.discovery
    sweeper = watch.sweeper
    reload = ConfigReload(process.settings, process.read, sweeper.lock, agents.tracker, process.supervisor, process.log)
    recovery, registry_poll, orders = _recovery(layers)
    status = _status(layers, reload)
    scheduler = Scheduler(process.clock, process.log)
    configured: tuple[Configured, ...] = (
        *(agents.watched, watch.processes, ending.safeguards, watch.enforcement),
        *(recovery, orders, leftovers.orphans, leftovers.hooks, leftovers.reaper),
        *(agents.registrar, discovery.sources, discovery.stale),
        *(ending.kills, ending.cleanup, ending.stages.close),
        *(layers.owners.helpers, layers.owners.alerts, leftovers.retention, leftovers.shares),
        *(agents.fleet, status, scheduler, host.reserve, LogOutput(process.sink)),
        ConfiguredEntries(layers.owners.troubles),
    )
    return Parts(
        clock=process.clock,
        host=host.name,
        boot_id=host.boot_id,
        registry=host.registry,
        reserve=host.reserve,
        users=host.users,
        line_limits=layers.owners.line_limits,
        fleet=agents.fleet,
        admission=agents.admission,
        tracker=agents.tracker,
        registrar=agents.registrar,
        persistence=agents.persistence,
        watched=agents.watched,
        kills=ending.kills,
        discovery=discovery,
        processes=watch.processes,
        stats=watch.stats,
        sweeper=sweeper,
        reaper=leftovers.reaper,
        retention=leftovers.retention,
        shares=leftovers.shares,
        recovery=recovery,
        registry_poll=registry_poll,
        scheduler=scheduler,
        reload=reload,
        status=status,
        control=_control(layers, status, reload),
        scrape=MetricsListener(host.metrics, process.log),
        configured=configured,
    )
