"""Events from agents between two sweeps: their beats, and the exit of their main process.

Both only change memory and bring the next sweep forward; nothing is decided here.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from watchdog.agents import oom, own_cgroup, ownership
from watchdog.agents.agent import Agent
from watchdog.agents.exit_watcher import ExitWatcher
from watchdog.agents.fleet import Fleet
from watchdog.agents.registration_backup import RegistrationBackup
from watchdog.clock import Clock
from watchdog.core.agent import Beat
from watchdog.core.beat import beat_in
from watchdog.core.ownership import ROOT
from watchdog.core.process import Identity
from watchdog.errors import BadRequest, RegistryUnavailable
from watchdog.intake.notify_sockets import Message, NotifySockets
from watchdog.processes import identity
from watchdog.processes.channels import hold_datagram_sockets
from watchdog.processes.reader import awaited
from watchdog.processes.table import cgroup_of, wrapper_of
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.rows import AgentRow
from watchdog.telemetry import logger
from watchdog.telemetry.logger import EventLogger

WRAPPER = "agent-watchdog"  # comm of `run`
# Seconds after our start until clients that beat by requests (HTTP, `run`) must have reconnected. A daemon that is
# restarted again and again within that time receives none of their beats; that silence is not theirs.
RECONNECTS = 5.0
EARLY = 16  # messages kept for an agent until its main process is known; a program sends one or two by then
DROP_SECONDS = 1.0  # by then an agent of root has had the time to drop its uid (gosu, setpriv)


class PaneFinder(Protocol):
    """Interface of `probes.panes.Panes`, which is in a higher layer."""

    def find(self, agent: Agent) -> None:
        """The process of an agent has become known."""


class BeatForwarder(Protocol):
    """Interface of `discovery.forwarder.Forwarder`, which is in a higher layer."""

    def forward(self, agent: Agent, data: bytes, main: bool) -> None:
        """An agent that belongs to another daemon has sent us a beat."""


class AgentTracker:
    """Owns the pidfd watches and receives from the notify sockets. `sooner` is set when a sweep is due now."""

    def __init__(
        self,
        fleet: Fleet,
        sockets: NotifySockets,
        clock: Clock,
        log: EventLogger,
        copies: RegistrationBackup | None = None,
        panes: PaneFinder | None = None,
        forwarder: BeatForwarder | None = None,
    ) -> None:
        self.fleet = fleet
        self._clock = clock
        self.log = log
        self.sooner = asyncio.Event()
        self.sockets = sockets
        sockets.listen(self._on_datagram)
        self.exits = ExitWatcher()
        self._copies = copies
        self._panes = panes
        self._learning: set[asyncio.Task[None]] = set()
        self._forwarder = forwarder
        self._early: dict[str, deque[Message]] = {}  # by agent: messages that came before its process was known

    def look_soon(self) -> None:
        """Bring the next sweep forward to now."""
        self.sooner.set()

    def admit(self, agent: Agent) -> None:
        """Add an agent whose row is committed to the fleet, and watch for its exit. Its time begins now."""
        agent.heartbeat.silence.reckon_to(self._clock.mono())
        self.fleet.add(agent)
        self.identified(agent)

    async def connected(self, rows: Iterable[AgentRow]) -> frozenset[int]:
        """Of the sockets that must be made again: pids of last senders that may still be connected to the former one.

        Checked in one call, before any agent is taken in: the owners decide how long such a check takes.
        """
        lost = (one for one in rows if one.registration.source != "run" and not self.sockets.has_kept(one.agent_id))
        pids = tuple({row.speaker_pid for row in lost if row.speaker_pid is not None})
        try:
            return await awaited(None, hold_datagram_sockets, pids) if pids else frozenset()
        except OSError:
            return frozenset(pids)

    def readmit(self, agent: Agent, row: AgentRow, connected: Collection[int] = ()) -> None:
        """Take in an agent that an earlier daemon left, with its former socket or a new one.

        A client that connected to the former socket and still lives writes into the void (`connected`): the channel is
        lost until it beats again. A sender that has exited was short-lived (`systemd-notify`), and the next one finds
        the new socket; so does one that holds no such socket, as it makes one for each message.

        Beats sent meanwhile over HTTP or by a file are lost in any case: the full limit is waited once more.
        """
        silence = agent.heartbeat.silence
        kept = self.sockets.has_kept(agent.agent_id)
        if agent.reg.source != "run" and not self.sockets.take_up(agent.agent_id):
            self.sockets.open(agent.agent_id, agent.reg.owner_uid)
            if row.speaker_pid in connected or (kept and row.speaker_pid is not None):
                silence.lose_channel()
        silence.grant_fresh_limit()
        self.admit(agent)
        by_requests = row.speaker_pid is None and agent.reg.beat_file is None
        if agent.heartbeat.rhythm.beats and by_requests:
            silence.reckon_to(silence.reckoned + RECONNECTS)

    def readopt(self, agent: Agent) -> None:
        """Take in a living agent without a row: an older registry was restored. Its next beat writes a row."""
        if not self.sockets.take_up(agent.agent_id):
            self.sockets.open(agent.agent_id, agent.reg.owner_uid)
        self.admit(agent)

    def read_copies(self) -> list[AgentRow]:
        """The backups of registrations; read them before any agent is taken in."""
        return [] if self._copies is None else self._copies.read()

    def forget_copy(self, agent_id: str) -> None:
        """Delete the backup of its registration: it is not needed any more."""
        if self._copies is not None:
            self._copies.drop(agent_id)

    def identified(self, agent: Agent) -> None:
        """Its process, and so its owner, is known: pin it by a pidfd, whose exit event wakes us within 1 ms."""
        self.sockets.give(agent.agent_id, agent.reg.owner_uid)
        if self._copies is not None:
            self._copies.keep(agent)
        if agent.identity is not None and agent.tree.pidfd is None:
            try:
                pidfd = identity.pin(agent.identity)
                agent.tree.hold(pidfd)
                agent.tree.meet(alive=pidfd is not None and not identity.ended(pidfd))
            except OSError as error:
                self._log_event(agent, "agent.unpinned", error=str(error))
            self.exits.watch(agent)
            oom.record_counts(agent)
            agent.tree.begin_measuring()  # scans before its process was known have not seen it
            agent.tree.lives_in(cgroup_of(agent.identity))
            if agent.reg.source == "run":
                task = asyncio.create_task(self._learn_wrapper(agent, agent.identity))
                self._learning.add(task)
                task.add_done_callback(self._learning.discard)
            asyncio.get_running_loop().call_later(DROP_SECONDS, self.follow_owner, agent)
            if self._panes is not None:
                self._panes.find(agent)
            for message in self._early.pop(agent.agent_id, ()):
                if message.pid == agent.identity.pid:
                    self._on_datagram(agent.agent_id, message)
        self.look_soon()

    async def _learn_wrapper(self, agent: Agent, main: Identity) -> None:
        """Find the `run` that started it; its owner decides how long that takes."""
        with suppress(OSError):
            wrapper = await awaited(None, wrapper_of, main, WRAPPER)
            if agent.identity == main:
                agent.tree.wrapped_by(wrapper)

    def follow_owner(self, agent: Agent) -> None:
        """Check the owner of its process. A process of root may have dropped to a user: `follow` commits that."""
        ownership.look(agent)
        if agent.owner.dropping is not None:
            self.sockets.give(agent.agent_id, agent.owner.dropping)
            self.look_soon()

    async def follow(self, agent: Agent, registry: AsyncRegistry) -> None:
        """As `follow_owner`, and commit a drop before it counts, so that no restart can see a second one.

        While the registry is away, or has no row for it, the agent stays untouchable.
        """
        self.follow_owner(agent)
        uid = agent.owner.dropping
        if uid is None:
            return
        try:
            done = await registry.write(registry.agent_details.drop_owner, agent.agent_id, uid, self._clock.now().wall)
        except RegistryUnavailable:
            return  # the sweep reports it
        if done and agent.owner.dropping == uid:
            agent.amend(replace(agent.reg, owner_uid=uid, dropped=True, pane=None))  # the pane was found as root's
            agent.owner.drops_to(None)
            self._log_event(agent, "agent.owner_changed", uid=uid)
            self.identified(agent)
            if self._panes is not None:
                self._panes.find(agent)

    def forget(self, agent: Agent) -> None:
        """Its row is closed: stop receiving and watching."""
        self.sockets.close(agent.agent_id)
        self._early.pop(agent.agent_id, None)
        self.forget_copy(agent.agent_id)
        self.exits.unwatch(agent)
        self.fleet.drop(agent.agent_id)
        own_cgroup.leave(agent)

    def close(self) -> None:
        """Release everything; socket paths stay for the next daemon."""
        for task in self._learning:
            task.cancel()
        self.sockets.close_all()
        self.exits.close()
        if self._copies is not None:
            self._copies.settled()

    def _on_datagram(self, agent_id: str, message: Message) -> None:
        """A datagram on an agent's socket: a beat, if the kernel says that its owner (or root) sent it."""
        agent = self.fleet.get(agent_id)
        if agent is None:
            return
        if message.uid not in (agent.reg.owner_uid, 0) and not self._has_dropped_to(agent, message.uid):
            self._reject(agent, f"uid {message.uid} is not its owner (uid {agent.reg.owner_uid})")
            return
        main = agent.identity is not None and message.pid == agent.identity.pid
        try:
            beat = beat_in(b"" if message.truncated else message.data, main)
        except BadRequest as error:
            self._reject(agent, str(error))
            return
        if agent.identity is None:  # an orchestrator registers the pid after the start
            self._keep(agent_id, message, beat)
        if beat is not None:
            now = self._clock.now()
            if agent.heartbeat.rhythm.beats == 0:
                self._log_event(agent, "agent.first_beat")
            agent.beat(beat, now.mono, now.wall)
            agent.heartbeat.sent_by(message.pid)
            if agent.owner.elsewhere is not None and self._forwarder is not None:
                self._forwarder.forward(agent, message.data, main)

    def _keep(self, agent_id: str, message: Message, beat: Beat | None) -> None:
        """Keep messages from the first on that says more if the main process sent it; later ones may amend it."""
        early = self._early.get(agent_id)
        if early is None:
            if not _says_more_from_main(message.data, beat):
                return
            early = self._early[agent_id] = deque(maxlen=EARLY)
        if not early or early[-1] != message:
            early.append(message)

    def _has_dropped_to(self, agent: Agent, uid: int) -> bool:
        """Whether root started it and its process has dropped to that user by now."""
        if agent.reg.owner_uid == ROOT:
            self.follow_owner(agent)
        return agent.owner.dropping == uid

    def _reject(self, agent: Agent, why: str) -> None:
        if agent.reported.first_refusal(f"rejected {why}", "rejected "):
            self._log_event(agent, "beat.rejected", why=why)

    def _log_event(self, agent: Agent, event: str, **facts: str | int) -> None:
        """Log a line on the account of its owner: one user may have any number of agents."""
        with logger.caused_by(agent.reg.owner_uid):
            self.log.event(event, exc_info=None, agent_id=agent.agent_id, name=agent.reg.name, **facts)


def _says_more_from_main(data: bytes, beat: Beat | None) -> bool:
    """Whether a message means more if the main process sent it: `READY=1`, or `EXTEND_TIMEOUT_USEC=` beside a beat."""
    try:
        return beat_in(data, True) != beat
    except BadRequest:
        return False
