"""The daemon: composition root, main loop and shutdown order. Start reading at `Daemon.run`."""

import asyncio
import dataclasses
import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import timedelta

from watchdog.beat_files import BeatFiles
from watchdog.chronicle import Chronicle
from watchdog.clock import Clock
from watchdog.closing import Closing
from watchdog.config import Settings
from watchdog.control.desk import Desk
from watchdog.control.scrape import Scrape
from watchdog.core.model import KillOptions, Reason
from watchdog.door import Door
from watchdog.fleet import Agent, Fleet
from watchdog.hearing import Hearing
from watchdog.holds import Holds
from watchdog.journal import Cleanup
from watchdog.kill_worker import KillWorker
from watchdog.lock import client_path, socket_option, take_lock
from watchdog.logs import Log
from watchdog.metrics import Metrics
from watchdog.owner.hooks.base import CleanupSettings
from watchdog.owners import Owners
from watchdog.places import notify_directory
from watchdog.processes import identity
from watchdog.processes.signals import Guard
from watchdog.registry.store import AsyncStore, Store
from watchdog.scan import Scanner
from watchdog.schedule import Schedule
from watchdog.sink import Sink
from watchdog.sweep import Sweeper
from watchdog.systemd import Supervisor

EX_SOFTWARE = 70  # sysexits.h


class Daemon:
    """One daemon of one host (root) or one user."""

    def __init__(self, settings: Settings, supervisor: Supervisor, log: Log, sink: Sink) -> None:
        self.settings = settings
        self.supervisor = supervisor
        self.log = log
        self.sink = sink
        self.clock = Clock()
        self.host = identity.this_host(settings.host)
        self.boot_id = identity.boot_id()
        self.stopping = asyncio.Event()
        self.sooner = asyncio.Event()

    async def run(self) -> int:
        """Live: take the lock, make the parts, take up what was left, watch until told to stop, end in order."""
        async with AsyncExitStack() as held:
            take_lock(self.settings, held)
            await self._make(held)
            await self._take_up()
            await self.door.open()
            held.push_async_callback(self.door.close)
            held.push_async_callback(self.scrape.close)
            self._listen_to_signals()
            await self._begin()
            await self._watch()
            await self._end()
        code = EX_SOFTWARE if self.schedule.dead.is_set() else 0
        self.log.event("daemon.stopped", exit_code=code)
        return code

    # -- the main loop -----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Until told to stop or the scheduler is dead: sweep sooner than the schedule does where there is a reason.

        A reason is the end of a process (pidfd), the next deadline of somebody's silence, or an operator's word. It
        only makes the next look come sooner; what is done follows from that look.
        """
        stopping = asyncio.create_task(self.stopping.wait())
        dead = asyncio.create_task(self.schedule.dead.wait())
        while not (self.stopping.is_set() or self.schedule.dead.is_set()):
            sooner = asyncio.create_task(self.sooner.wait())
            await asyncio.wait({stopping, dead, sooner}, return_when=asyncio.FIRST_COMPLETED)
            sooner.cancel()
            if self.sooner.is_set():
                self.sooner.clear()
                await self._sweep()
        if self.schedule.dead.is_set():
            self.log.event("scheduler.dead")
        stopping.cancel()
        dead.cancel()

    async def _scheduled_sweep(self) -> None:
        """The sweep of each interval; only its success feeds systemd's watchdog."""
        await self.door.keep()
        await self.scrape.keep(self.settings.metrics.listen)
        if await self._sweep():
            self.supervisor.say("WATCHDOG=1", f"STATUS={self._status()}")

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
        await asyncio.to_thread(store.open)
        self.store = AsyncStore(store)
        held.callback(self.store.close)
        executor = ThreadPoolExecutor(2, "scan")
        held.callback(executor.shutdown, cancel_futures=True)
        self.fleet = Fleet()
        self.holds = Holds(await self.store.read(store.active_holds))
        self.chronicle = Chronicle(self.store, clock, log)
        self.hearing = Hearing(self.fleet, notify_directory(settings.runtime_dir), clock, self.look_soon, log)
        self.owners = Owners(
            settings=CleanupSettings(
                roots=tuple(settings.cleanup.roots),
                trash_retention_hours=settings.cleanup.trash_retention_hours,
                dirty_worktree=settings.cleanup.dirty_worktree,
                protected=(settings.state_dir, settings.runtime_dir),
            )
        )
        held.push_async_callback(self.owners.close)
        metrics = Metrics(
            self._verdicts,
            self._kinds_of_hold,
            log=self.sink.health,
            history_lost=lambda: self.chronicle.lost,
        )
        for hook in settings.hooks:  # a figure that is not there yet cannot be seen to rise
            metrics.cleanup_failures.labels(hook.name)
        scanner = Scanner(self.fleet, executor, self.host)
        cleanup = Cleanup(
            settings.hooks, self.owners, self.store, clock, self.chronicle, fleet=self.fleet, observe=settings.observe
        )
        self.worker = KillWorker(
            store=self.store,
            clock=clock,
            scanner=scanner,
            hearing=self.hearing,
            closing=Closing(self.store, clock, self.hearing, cleanup, self.chronicle, metrics, log),
            guard=self._guard,
            chronicle=self.chronicle,
            log=log,
            observe=settings.observe,
            parallel=settings.kill.parallel,
        )
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
            metrics=metrics,
            log=log,
        )
        self.schedule = Schedule(clock, log)
        desk = Desk(
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
            facts=self._facts,
        )
        self.door = Door(desk, self.chronicle)
        self.scrape = Scrape(metrics.text, log)

    async def _take_up(self) -> None:
        """Take up what an earlier daemon left: agents and open requests.

        An agent of another boot is lost: none of its processes can live, so only its hooks are run. A row that cannot
        be read is said and left alone.
        """
        store = self.store.store
        rows, bad_rows = await self.store.read(store.live_agents, self.host)
        requests, bad_requests = await self.store.read(store.requests, {"open", "claimed", "unkillable"}, self.host)
        for problem in (*bad_rows, *bad_requests):
            self.log.event("row.quarantined", agent_id=problem.agent_id, why=problem.message)
        for row in rows:
            agent = Agent(row.registration, self.settings.policy_for(row.registration), row.status, row.notify_socket)
            agent.restore(row)
            self.hearing.readmit(agent, row)
        for request in requests:
            found = self.fleet.get(request.agent_id)
            if found is not None:
                self.worker.resume(request, found)
            else:  # its row was closed; only this request's own end was not written any more
                why, who, now = "its agent's row is closed", "daemon", self.clock.now().wall
                await self.store.write(
                    store.finish_request, request.request_id, "done", request.outcome, now=now, who=who, why=why
                )
        for agent in self.fleet:
            if agent.reg.boot_id != self.boot_id and agent.request_id is None:
                await self.worker.request(agent, Reason.LOST, KillOptions(), "daemon", "its boot is gone")

    def _listen_to_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._told_to_stop, number)

    async def _begin(self) -> None:
        await self.scrape.keep(self.settings.metrics.listen)
        self.schedule.every(self.settings.interval, "sweep", self._scheduled_sweep, watched=True)
        self.schedule.start()
        self.supervisor.say("READY=1", f"STATUS={self._status()}")
        self.log.event(
            "daemon.ready",
            pid=os.getpid(),
            mode=self.settings.mode,
            agents=len(self.fleet),
            socket=self.door.desk.socket_path,
            config=self.settings.file or "defaults",
        )
        if not self.supervisor.present:
            print(_invitation(self.settings), flush=True)

    # -- end ---------------------------------------------------------------------------------------------------------

    def _told_to_stop(self, number: int) -> None:
        self.log.event("daemon.stopping", signal=signal.Signals(number).name)
        self.supervisor.say("STOPPING=1", "STATUS=stopping; agents go on living")
        self.stopping.set()

    async def _end(self) -> None:
        """In order: no new sweep, the running one ends, kills stop between two steps, words are written down."""
        self.schedule.pause()
        async with self.sweeper.lock:
            self.schedule.shutdown()
        self.supervisor.say("WATCHDOG=1")
        await self.worker.close()
        await self.beat_files.close()
        self.hearing.sockets.drain_all()
        self.sweeper.reckon()
        await self.sweeper.record()
        await self.chronicle.settle()
        self.hearing.close()

    # -- what parts ask for ------------------------------------------------------------------------------------------

    def _guard(self, agent_id: str) -> Guard:
        """What must not be signalled while this agent is ended: every other agent and its tree, and what is spared."""
        others = [other for other in self.fleet if other.agent_id != agent_id]
        theirs = [member.identity for other in others for member in other.members]
        theirs += [other.identity for other in others if other.identity is not None]
        return Guard(
            host=self.host,
            protected=frozenset((one.pid, one.start_ticks) for one in theirs),
            spare=frozenset(self.settings.kill.spare),
        )

    def _verdicts(self) -> dict[str, int]:
        return Counter(str(agent.verdict or "none") for agent in self.fleet)

    def _kinds_of_hold(self) -> dict[str, int]:
        return {
            "operator": len(self.holds.current(self.clock.now().wall)),
            "mass_stall": int(self.sweeper.mass_since is not None),
        }

    def _facts(self) -> dict[str, object]:
        last = self.sweeper.account.last_sweep
        return {
            "mode": self.settings.mode,
            "interval_seconds": self.settings.interval.total_seconds(),
            "last_sweep": last.wall.isoformat(timespec="seconds") if last else None,
            "being_ended": self.worker.busy,
            "config": self.settings.file or "defaults",
            "log": dataclasses.asdict(self.sink.health()),
        }

    def _status(self) -> str:
        count = len(self.fleet)
        line = f"watching {count} agent{'' if count == 1 else 's'}, {self.worker.busy} being ended"
        health = self.sink.health()
        return line + (f"; the log ({health.target}) cannot be written: {health.error}" if health.error else "")


def _invitation(settings: Settings) -> str:
    """The line to paste into a second terminal, with full path."""
    option, mode = socket_option(settings), " (it only observes)" if settings.observe else ""
    every = settings.interval / timedelta(seconds=1)
    return (
        f"agent-watchdogd watches{mode}, every {every:g} s. In another terminal:\n"
        f"  {client_path()} run{option} --name alpha --stall-after 120s -- ./agent.sh\n"
        f"  {client_path()} list{option}"
    )
