"""The daemon: composition root, main loop and shutdown order. Start reading at `Daemon.run`."""

import argparse
import asyncio
import fcntl
import os
import shlex
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import packages_distributions

from watchdog import config, logs
from watchdog.beat_files import BeatFiles
from watchdog.chronicle import Chronicle
from watchdog.cleanup import Cleanup
from watchdog.clock import Clock
from watchdog.control.api import Desk, serve
from watchdog.core.beat import beat_of
from watchdog.core.model import KillOptions, Presence, Reason, Status
from watchdog.core.notify import parse_datagram
from watchdog.errors import AlreadyRunning, ConfigError, RegistryUnavailable, WatchdogError
from watchdog.fleet import Agent, Fleet
from watchdog.holds import Holds
from watchdog.intake.notify import Message, NotifySockets
from watchdog.kill_worker import KillWorker
from watchdog.owners import Owners
from watchdog.processes import identity
from watchdog.processes.signals import Guard
from watchdog.registry.rows import AgentRow
from watchdog.registry.store import AsyncStore, Store
from watchdog.scan import Scanner
from watchdog.schedule import Schedule
from watchdog.sweep import Sweeper
from watchdog.systemd import Supervisor


class Daemon:
    """One daemon of one host (root) or one user."""

    def __init__(self, settings: config.Settings, supervisor: Supervisor, log: logs.Log) -> None:
        self.settings = settings
        self.supervisor = supervisor
        self.log = log
        self.clock = Clock()
        self.host = identity.this_host(settings.daemon.host)
        self.boot_id = identity.boot_id()
        self.fleet = Fleet()
        self.holds = Holds()
        self.stopping = asyncio.Event()
        self.sooner = asyncio.Event()
        self.exit_code = 0

    async def run(self) -> int:
        """Live: start, watch until told to stop or until the scheduler is dead, end in order; returns the exit status."""
        try:
            with ExitStack() as held:
                self._lock(held)
                await self._start(held)
                await self._recover()
                self._ready()
                await self._watch_until_told()
                await self._stop()
        finally:
            self.log.event("daemon.stopped", exit_code=self.exit_code)
        return self.exit_code

    # -- start -----------------------------------------------------------------------------------------------------

    def _lock(self, held: ExitStack) -> None:
        """One daemon per runtime directory and per state directory, by flock: it vanishes with the process."""
        for directory in (self.settings.runtime_dir, self.settings.state_dir):
            file = held.enter_context(open(os.path.join(directory, "agent-watchdogd.lock"), "a+", encoding="ascii"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                who = file.read().strip() or "of unknown pid"
                raise AlreadyRunning(
                    f"agent-watchdogd {who} already runs here; it holds {file.name}. It answers on {self.settings.control_socket}"
                ) from None
            file.truncate(0)
            file.write(f"pid {os.getpid()}\n")
            file.flush()

    async def _start(self, held: ExitStack) -> None:
        """Make every part, lowest first. Only values and callbacks are passed; nobody gets the daemon itself."""
        settings, log = self.settings, self.log
        store = Store(settings.registry_url)
        await asyncio.to_thread(store.open)
        self.store = AsyncStore(store)
        held.callback(self.store.close)
        executor = ThreadPoolExecutor(2, "scan")
        held.callback(executor.shutdown, cancel_futures=True)
        notify_dir = os.path.join(settings.runtime_dir, "notify")
        os.makedirs(notify_dir, mode=0o700, exist_ok=True)
        os.chmod(notify_dir, 0o711 if os.geteuid() == 0 else 0o700)
        self.intake = NotifySockets(notify_dir, self._heard)
        self.owners = Owners(log)
        self.scanner = Scanner(self.fleet, executor, settings.kill.spare, self.host, self.boot_id)
        self.chronicle = Chronicle(self.store, self.clock, log)
        cleanup = Cleanup(settings.hooks, settings.cleanup, self.owners, self.store, log)
        self.worker = KillWorker(
            fleet=self.fleet,
            store=self.store,
            clock=self.clock,
            scanner=self.scanner,
            intake=self.intake,
            cleanup=cleanup,
            guard=self._guard,
            chronicle=self.chronicle,
            log=log,
            me=f"daemon {os.getpid()}",
            observe=settings.observe,
            parallel=settings.kill.parallel,
        )
        self.beat_files = BeatFiles(self.fleet, self.owners, self.clock, log)
        self.sweeper = Sweeper(
            fleet=self.fleet,
            store=self.store,
            clock=self.clock,
            settings=settings,
            intake=self.intake,
            beat_files=self.beat_files,
            scanner=self.scanner,
            holds=self.holds,
            worker=self.worker,
            chronicle=self.chronicle,
            log=log,
        )
        self.schedule = Schedule(self.clock, log)

    async def _recover(self) -> None:
        """Take up what an earlier daemon left: agents, holds, open requests.

        An agent of another boot is lost: none of its processes can live, so only its hooks are run.
        """
        store = self.store
        rows, problems = await store.read(store.store.live_agents, self.host)
        for problem in problems:
            self.log.event("row.quarantined", agent_id=problem.agent_id, why=problem.message)
        for row in rows:
            self._admit_row(row)
        self.holds.load(await store.read(store.store.active_holds))
        requests, problems = await store.read(store.store.requests, {"open", "claimed", "unkillable"}, self.host)
        for problem in problems:
            self.log.event("row.quarantined", agent_id=problem.agent_id, why=problem.message)
        for request in requests:
            agent = self.fleet.get(request.agent_id)
            if agent is not None:
                await self.worker.resume(request, agent)
        for agent in self.fleet:
            if agent.reg.boot_id != self.boot_id and agent.request_id is None:
                await self.worker.request(agent, Reason.LOST, KillOptions(), "daemon", "its boot is gone")

    def _admit_row(self, row: AgentRow) -> None:
        policy = self.settings.policy_for(row.registration.agent_type, row.registration.name, row.registration.tags)
        agent = Agent(row.registration, policy, row.status, notify_socket=row.notify_socket)
        agent.restore(row)
        own_socket = os.path.join(self.settings.runtime_dir, "notify", agent.agent_id)
        if agent.notify_socket == own_socket:
            self.intake.open(agent.agent_id, agent.reg.owner_uid)
            agent.channel_lost = self._speaks_through_old_socket(row)
        self._admit(agent)

    def _speaks_through_old_socket(self, row: AgentRow) -> bool:
        """Whether who sent its last word through our former socket still lives: he connected once, and now talks to nobody.

        A sender that has gone was short-lived (`systemd-notify`), and the next one will find the new socket.
        """
        if row.speaker_pid is None:
            return False
        return identity.exists(row.speaker_pid)

    def _ready(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._told_to_stop, number)
        self.schedule.every(self.settings.interval, "sweep", self._scheduled_sweep, watched=True)
        self.schedule.start()
        self.supervisor.say("READY=1", f"STATUS={self._status()}")
        self.log.event(
            "daemon.ready",
            pid=os.getpid(),
            mode=self.settings.daemon.mode,
            agents=len(self.fleet),
            socket=self.settings.control_socket,
            registry=self.settings.registry_shown,
        )
        if not self.supervisor.present:
            print(_invitation(self.settings), flush=True)

    # -- the main loop -----------------------------------------------------------------------------------------------

    async def _watch_until_told(self) -> None:
        """Serve; sweep at each interval (the schedule) and sooner when there is a reason; until told to stop.

        A reason is an exit (pidfd), the next deadline of somebody's silence, or an operator's word. All of them only
        make the next look come sooner; what is done follows from that look.
        """
        loop = asyncio.get_running_loop()
        told = asyncio.create_task(self.stopping.wait())
        dead = asyncio.create_task(self.schedule.dead.wait())
        async with serve(self._desk()):
            while not self.stopping.is_set() and not self.schedule.dead.is_set():
                sooner = asyncio.create_task(self.sooner.wait())
                await asyncio.wait({told, dead, sooner}, return_when=asyncio.FIRST_COMPLETED)
                sooner.cancel()
                if self.sooner.is_set():
                    self.sooner.clear()
                    await self._sweep()
                    wait = self.sweeper.next_deadline()
                    if wait < self.settings.interval.total_seconds():
                        loop.call_later(wait + 0.05, self.sooner.set)
            if self.schedule.dead.is_set():
                self.log.event("scheduler.dead")
                self.exit_code = 70

    async def _scheduled_sweep(self) -> None:
        if await self._sweep():
            self.supervisor.say("WATCHDOG=1", f"STATUS={self._status()}")
        wait = self.sweeper.next_deadline()
        if wait < self.settings.interval.total_seconds():
            asyncio.get_running_loop().call_later(wait + 0.05, self.sooner.set)

    async def _sweep(self) -> bool:
        """One sweep; whatever goes wrong in it is said, and the next one comes."""
        try:
            await self.sweeper.sweep()
        except Exception as error:  # noqa: BLE001 - the daemon is the last to fall
            self.log.failure("sweep.failed", error)
            return False
        return True

    # -- words and exits ---------------------------------------------------------------------------------------------

    def _heard(self, agent_id: str, message: Message) -> None:
        """A datagram on an agent's socket: its word, if the kernel says that its owner sent it."""
        agent = self.fleet.get(agent_id)
        if agent is None:
            return
        if message.uid not in (agent.reg.owner_uid, 0) and not self._owner_changed(agent, message.uid):
            self._rejected(agent, f"uid {message.uid} is not its owner ({agent.reg.owner_uid})")
            return
        fields = {} if message.truncated else parse_datagram(message.data)
        if not fields:
            self._rejected(agent, "not an sd_notify message of at most 4096 bytes")
            return
        main = agent.identity is not None and message.pid == agent.identity.pid
        beat = beat_of(fields, from_main=main)
        if beat is not None:
            now = self.clock.now()
            self._first(agent)
            agent.beat(beat, now.mono, now.wall)
            agent.speaker_pid = message.pid

    def _owner_changed(self, agent: Agent, uid: int) -> bool:
        """Whether the main process runs as `uid` by now (it registered as root and dropped privileges)."""
        if agent.identity is None:
            return False
        self._read_owner(agent)
        return agent.reg.owner_uid == uid

    def _read_owner(self, agent: Agent) -> None:
        if agent.identity is None:
            return
        try:
            uid = identity.owner_uid(agent.identity.pid)
        except OSError:
            return
        if uid != agent.reg.owner_uid and identity.presence(agent.identity, agent.pidfd) is Presence.ALIVE:
            agent.identify(agent.identity, uid)
            self.intake.give(agent.agent_id, uid)
            self.log.event("agent.owner_changed", agent_id=agent.agent_id, name=agent.reg.name, uid=uid)

    def _rejected(self, agent: Agent, why: str) -> None:
        if f"rejected {why}" not in agent.said:
            agent.said.add(f"rejected {why}")
            self.log.event("beat.rejected", agent_id=agent.agent_id, name=agent.reg.name, why=why)

    def _first(self, agent: Agent) -> None:
        if agent.beats == 0:
            self.log.event("agent.first_beat", agent_id=agent.agent_id, name=agent.reg.name)

    def _admit(self, agent: Agent) -> None:
        """Take an agent into the fleet and watch for its exit."""
        self.fleet.add(agent)
        self._identified(agent)

    def _identified(self, agent: Agent) -> None:
        """Its process is known: hold it by a pidfd, whose end wakes us at once (0.4 ms; polling /proc takes 100)."""
        if agent.identity is None or agent.pidfd is not None:
            self.look_soon()
            return
        try:
            agent.pidfd = identity.pin(agent.identity)
        except OSError as error:
            self.log.event("agent.unpinned", agent_id=agent.agent_id, name=agent.reg.name, error=str(error))
        if agent.pidfd is not None:
            asyncio.get_running_loop().add_reader(agent.pidfd, self._exited, agent)
        self.look_soon()

    def _exited(self, agent: Agent) -> None:
        if agent.pidfd is not None:
            asyncio.get_running_loop().remove_reader(agent.pidfd)
        self.look_soon()

    def look_soon(self) -> None:
        """Make the next look come now."""
        self.sooner.set()

    def _guard(self, agent_id: str) -> Guard:
        """What must not be signalled while this agent is ended: every other agent and its tree, and what is spared."""
        others = frozenset(
            identity_
            for other in self.fleet
            if other.agent_id != agent_id
            for identity_ in (*(m.identity for m in other.members), *filter(None, (other.identity,)))
        )
        return Guard(host=self.host, boot_id=self.boot_id, protected=others, spare=self.settings.kill.spare)

    # -- stop --------------------------------------------------------------------------------------------------------

    def _told_to_stop(self, number: int) -> None:
        self.log.event("daemon.stopping", signal=signal.Signals(number).name)
        self.supervisor.say("STOPPING=1", "STATUS=stopping")
        self.stopping.set()

    async def _stop(self) -> None:
        """End in order: no new sweep, the running one ends, kills stop between two steps, words are written down."""
        self.schedule.pause()
        async with self.sweeper.lock:
            self.schedule.shutdown()
        await self.worker.close()
        self.supervisor.say("WATCHDOG=1")
        await self.beat_files.close()
        self.intake.drain_all()
        await self.sweeper.record()
        await self.chronicle.settle()
        self.intake.close_all()
        await self.owners.close()

    def _desk(self) -> Desk:
        return Desk(
            fleet=self.fleet,
            store=self.store,
            settings=self.settings,
            clock=self.clock,
            host=self.host,
            boot_id=self.boot_id,
            log=self.log,
            runtime_dir=self.settings.runtime_dir,
            holds=self.holds,
            admit=self._admit,
            identified=self._identified,
            open_notify=self.intake.open,
            close_notify=self.intake.close,
            request_kill=self.worker.request,
            finished=self.worker.finished,
            look_soon=self.look_soon,
        )

    def _status(self) -> str:
        count = len(self.fleet)
        return f"watching {count} agent{'' if count == 1 else 's'}, {self.worker.busy} being ended"


def _invitation(settings: config.Settings) -> str:
    """The line to paste into a second terminal, with full path."""
    client = shlex.quote(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "agent-watchdog"))
    socket = "" if settings.is_default_socket else f" --socket {shlex.quote(settings.control_socket)}"
    return (
        "agent-watchdogd watches. In another terminal:\n"
        f"  {client} run{socket} --name alpha --stall-after 120s -- ./agent.sh\n"
        f"  {client} list{socket}"
    )


def _refuse_name_clash() -> None:
    """PyPI's `watchdog` overwrites our package silently when both are installed in one environment."""
    owners = sorted(set(packages_distributions().get("watchdog", [])))
    if any(name.lower() != "agent-watchdogd" for name in owners):
        raise ConfigError(
            [f"this environment holds {' and '.join(owners)}, which both own the package `watchdog`; use one of our own"]
        )


def main(argv: list[str] | None = None) -> int:
    """The command `agent-watchdogd`; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="agent-watchdogd", description="Looks after AI coding agents and ends the stalled ones whole."
    )
    parser.error = _usage  # type: ignore[method-assign,assignment] # 64 instead of 2, which hook runners read as "block"
    parser.add_argument("--config", metavar="FILE", help="the TOML file (default: /etc/agent-watchdog or XDG config)")
    parser.add_argument("--check", action="store_true", help="say what is wrong with the configuration, and end")
    parser.add_argument("--observe", action="store_true", help="decide and log the same, but signal and clean nothing")
    arguments = parser.parse_args(argv)
    try:
        settings = config.load(arguments.config)
        if arguments.observe:
            settings = replace_mode(settings)
        if arguments.check:
            print(f"{settings.file or 'defaults (no file)'}: fine")
            return 0
        _refuse_name_clash()
        supervisor = Supervisor(os.environ)  # type: ignore[arg-type] # os.environ is a mapping of text, as needed
        limit = supervisor.watchdog_seconds
        if limit is not None and limit < 3 * settings.interval.total_seconds():
            raise ConfigError(
                [f"WatchdogSec of {limit:.0f}s is below three sweep intervals ({3 * settings.interval.total_seconds():.0f}s)"]
            )
        settings.ensure_directories()
        log = logs.start(settings.log)
        os.umask(0o077)
        return asyncio.run(Daemon(settings, supervisor, log).run())
    except WatchdogError as error:
        print(f"agent-watchdogd: {error}", file=sys.stderr)
        return error.exit_code


def _usage(message: str) -> None:
    print(f"agent-watchdogd: {message} (see agent-watchdogd --help)", file=sys.stderr)
    sys.exit(64)


if __name__ == "__main__":
    sys.exit(main())
