"""Registers agents: each one that the daemon watches came through `Registrar`, whoever asked for it.

    POST /agents, a vendor's hook, an entry of another program's registry, the report of a `run`
      -> RegistrationRequest -> checked against the kernel and the living agents -> its row is committed
      -> it is in the fleet, and watched

What the kernel says of a process (uid, identity) comes from the kernel, never from a request.
"""

import asyncio
import os
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from weakref import WeakValueDictionary

from watchdog.agents.admission import Admission
from watchdog.agents.agent import ZERO, Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.history import EventRecorder
from watchdog.agents.process_claim import ProcessClaim, identify_pid, refuse_twice
from watchdog.agents.selectors import parent_of
from watchdog.agents.shared_paths import refuse_temp_dir, sharing_worktree, within
from watchdog.agents.tracker import AgentTracker
from watchdog.clock import Clock
from watchdog.concurrency.lanes import Lane, in_lane
from watchdog.config.settings import Settings
from watchdog.core.admission import WAIT, LimitKind, cost_of
from watchdog.core.agent import LIVE, Registration, Status
from watchdog.core.ownership import ROOT
from watchdog.core.peer import Peer
from watchdog.core.process import Listed
from watchdog.core.registration import RegistrationRequest
from watchdog.core.sessions import SESSION
from watchdog.core.verdict import span
from watchdog.errors import BadRequest, Conflict, Limited
from watchdog.host.fd_limit import scarce
from watchdog.processes import identity as identities
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.registry.rows import AgentRow

_OF_RUN = re.compile("notify/run-[0-9a-f]{32}")  # `cli.run.inbox`
_TAKES_A_PID = frozenset({Status.QUEUED, Status.STARTING, Status.RUNNING})


@dataclass(frozen=True, slots=True)
class Registered:
    """A new agent, and what its client should know of its registration."""

    agent: Agent
    notes: tuple[str, ...] = ()


class Registrar:
    """Checks requests, commits them, and adds the agents to `fleet`."""

    def __init__(
        self,
        fleet: Fleet,
        registry: AsyncRegistry,
        clock: Clock,
        settings: Settings,
        tracker: AgentTracker,
        admission: Admission,
        recorder: EventRecorder,
    ) -> None:
        self.fleet = fleet
        self.registry = registry
        self.host = identities.this_host(settings.host)
        self.boot_id = identities.boot_id()
        self.clock = clock
        self.settings = settings
        self.tracker = tracker
        self._admission = admission
        self._recorder = recorder
        # By owner; a lock lives as long as a caller holds it or waits for it.
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    def apply(self, settings: Settings) -> None:
        """Apply these settings from now on."""
        self.settings = settings

    @asynccontextmanager
    async def turn(self, owner_uid: int) -> AsyncIterator[None]:
        """One registration of an owner at a time: a name is looked up, then taken. Other owners do not wait for it."""
        lock = self._turns.setdefault(owner_uid, asyncio.Lock())
        async with lock:
            yield

    @asynccontextmanager
    async def turn_of_its_user(self, owner_uid: int) -> AsyncIterator[None]:
        """The same for registrations without a request: their registry calls run in the lane of that owner's user."""
        async with in_lane(Lane(self._admission.user_of(owner_uid))), self.turn(owner_uid):
            yield

    def take_share(self, uid: int) -> float:
        """Take the cost of a registration from its user. Returns seconds to wait; more than `WAIT`: refused."""
        seconds = self._admission.take(uid, LimitKind.REQUESTS, cost_of("POST", "/agents")[1])
        if seconds > WAIT:
            self._admission.refused(uid, LimitKind.REQUESTS)
        return seconds

    # -- a new agent

    async def register(self, request: RegistrationRequest, peer: Peer, taken: ProcessClaim | None = None) -> Registered:
        """Check a request, commit it, and watch the agent from now on. The caller holds the owner's `turn`.

        1. Find the owner of the pid (`taken`: already checked); the owner is its uid, else the peer's.
        2. Check name, parent and temp dir against the living agents.
        3. Create socket, row, task row; if the row cannot be committed, the socket is removed.
        4. Add it to the fleet and watch for its exit.

        Raises as `identify_pid` does, Conflict (a name, process or place is another agent's; too many agents), Limited,
        BadRequest and Forbidden (its parent, its socket), RegistryUnavailable.
        """
        if taken is not None:  # checked before its owner's turn came: its hook may have registered it since
            refuse_twice(taken, peer, self.fleet)
        elif request.pid is not None:
            taken = await identify_pid(request.pid, peer, self.fleet, self.host)
        owner = peer.uid if taken is None else taken.uid
        self._refuse_many(peer, owner)
        self.fleet.refuse_taken(request.name, owner)
        parent = None if request.parent is None else parent_of(self.fleet, peer, request.parent, owner)
        self._refuse_paths(request, owner, parent)
        agent = self._agent(request, owner, parent, taken)
        try:
            await self._commit(agent, peer)
        except BaseException:
            if request.notify_socket is None:
                self.tracker.sockets.close(agent.agent_id)
            raise
        self.tracker.admit(agent)
        notes = self._notes(agent)
        if agent.reg.task_id != request.task:
            notes.append(f"task {request.task} belongs to another user's agent; this agent is watched without a task")
        self._recorder.event(
            "agent.registered",
            agent_id=agent.agent_id,
            name=agent.reg.name,
            owner_uid=owner,
            by=peer.by,
            pid=taken.identity.pid if taken else None,
            status=agent.status.value,
            after_seconds=agent.heartbeat.silence.after.total_seconds(),
            **({"note": "; ".join(notes)} if notes else {}),
        )
        return Registered(agent, tuple(notes))

    def _agent(self, request: RegistrationRequest, owner: int, parent: str | None, taken: ProcessClaim | None) -> Agent:
        """The agent that is to be committed."""
        reg = Registration(
            agent_id=request.agent_id or uuid.uuid4().hex,
            name=request.name,
            owner_uid=owner,
            host=self.host,
            boot_id=self.boot_id,
            agent_type=request.type,
            tags=tuple(dict.fromkeys(request.tags)),
            task_id=request.task,
            parent_id=parent,
            identity=taken.identity if taken else None,
            stall_after=_duration(request.stall_after_seconds),
            interval=_duration(request.interval_seconds),
            ttl=_duration(request.ttl_seconds),
            worktree=one_spelling(request.worktree),
            temp_dir=one_spelling(request.temp_dir),
            beat_file=one_spelling(request.beat_file),
            log=one_spelling(request.log),
            transcript=one_spelling(request.transcript),
            source=request.source,
            command=request.command or (taken.name if taken else None),
            created_at=self.clock.now().wall,
            entries=() if request.entry is None else (request.entry,),
        )
        status = Status.QUEUED if request.queued else Status.STARTING if taken is None else Status.RUNNING
        if request.entry is not None and request.entry.kind == SESSION:
            status = Status.RUNNING  # it has no process of its own, and needs none
        policy = self.settings.policy_for(reg)
        socket = request.notify_socket or self.tracker.sockets.open(reg.agent_id, owner)
        agent = Agent(reg, policy, status, socket)
        agent.heartbeat.said.promise(request.stall_after_seconds is not None)
        return agent

    def _refuse_many(self, peer: Peer, owner: int) -> None:
        """Each agent costs descriptors; one user must not take them all. Root and admins are not limited."""
        if peer.admin:
            return
        if not self._admission.may_register(owner, (agent.reg.owner_uid for agent in self.fleet)):
            self._admission.refused(owner, LimitKind.AGENTS)
            user = self._admission.user_of(owner)
            raise Conflict(
                f"uid {owner} (user {user}) already has as many living agents as one user may have; kill"
                " some, or remove dead ones (agent-watchdog remove)"
            )
        if not self._admission.exempt(owner) and scarce():
            self._admission.refused(owner, LimitKind.AGENTS)
            words = "few file descriptors are left, and they are reserved for registered agents; try again later"
            raise Limited(words, 10)

    def _refuse_paths(self, request: RegistrationRequest, owner: int, parent: str | None) -> None:
        """A temp dir is removed when its agent ends, so it belongs to one agent; only `run` brings its own socket."""
        wanted = one_spelling(request.temp_dir)
        if wanted is not None:
            refuse_temp_dir(self.fleet, wanted, owner, parent, self.settings.cleanup.roots)
        socket = one_spelling(request.notify_socket)
        if socket is not None and request.source != "run":
            raise BadRequest(
                "notify_socket: only `run` owns its agent's socket; leave it out, and the daemon makes one"
            )
        own = f"{one_spelling(self.settings.runtime_dir)}/"
        name = None if socket is None or not socket.startswith(own) else socket.removeprefix(own)
        by_id = f"notify/{request.agent_id}"  # up to 0.1
        if name is not None and name != by_id and not _OF_RUN.fullmatch(name):
            raise BadRequest(f"notify_socket: {socket} is no {own}notify/run-ID; that directory holds nothing else")

    async def _commit(self, agent: Agent, peer: Peer) -> None:
        """Commit its row and its task's; then the agent has the stored registration."""
        words = agent.reg, agent.status, self.clock.now().wall, agent.notify_socket
        agent.amend(await self.registry.write(_add, self.registry.sync, peer, *words))

    def _notes(self, agent: Agent) -> list[str]:
        """Notes for the client: its limit was raised, another agent works in its worktree, a place is kept."""
        notes = []
        asked = agent.reg.stall_after or agent.policy.after
        if agent.heartbeat.silence.after > asked:
            notes.append(
                f"the limit of {span(asked)} is less than two beats of {span(agent.reg.interval or ZERO)}; "
                f"raised to {span(agent.heartbeat.silence.after)} for this agent"
            )
        if others := sharing_worktree(self.fleet, agent):
            notes.append(
                f"{agent.reg.worktree} is also the worktree of {', '.join(others)}; it stays until the last"
                " of them has ended"
            )
        temp, roots = agent.reg.temp_dir, self.settings.cleanup.roots
        made_by_run = temp is not None and os.path.basename(temp).startswith("agent-watchdog-")  # with a mark in it
        if temp is not None and not made_by_run and not any(within(temp, root) for root in roots):
            notes.append(
                f"temp_dir: {temp} is not below any of cleanup.roots ({', '.join(roots)}), so it is never removed"
            )
        return notes

    # -- facts about an agent that arrive later

    async def identify(self, agent: Agent, taken: ProcessClaim, peer: Peer) -> None:
        """Commit the pid of an agent that had none. Needs the `turn`; the same process again changes nothing.

        Raises Conflict (it has another process, is ending, or belongs to another user than that process) and
        RegistryUnavailable.
        """
        if agent.identity is not None:
            if agent.identity.same_process(taken.identity):
                return
            raise Conflict(
                f"pid: agent {agent.agent_id} has process {agent.identity.pid} already; register a new agent"
            )
        if agent.status not in _TAKES_A_PID:
            raise Conflict(f"agent {agent.agent_id} ({agent.reg.name}) is being killed and takes no pid")
        before = agent.reg.owner_uid
        if taken.uid != before:
            if before != ROOT:  # never from user to user, and never to root
                words = (
                    f"process {taken.identity.pid} runs as uid {taken.uid}, agent {agent.agent_id} is uid {before}'s"
                )
                raise Conflict(f"pid: {words} for good; register a new agent")
            self.fleet.refuse_taken(agent.reg.name, taken.uid)
        now = self.clock.now().wall
        known = agent.agent_id, taken.identity, Status.RUNNING, now, peer.by, taken.uid
        done = await self.registry.write(self.registry.agent_details.set_identity, *known)
        if not done or agent.status not in LIVE:
            raise Conflict(f"agent {agent.agent_id} no longer takes a pid; it has ended or has another one")
        command = agent.reg.command or taken.name
        agent.amend(replace(agent.reg, identity=taken.identity, owner_uid=taken.uid, command=command))
        if agent.status in (Status.QUEUED, Status.STARTING):
            agent.become(Status.RUNNING)
        self.tracker.identified(agent)
        name, pid = agent.reg.name, taken.identity.pid
        self._recorder.event("agent.pid_known", agent_id=agent.agent_id, name=name, pid=pid, by=peer.by)

    def keep_entries(self, agent: Agent, entries: tuple[Listed, ...]) -> "asyncio.Future[bool]":
        """Store the entries of foreign registries that list it from now on; done when committed.

        Not awaited here: concurrent requests are committed together.
        """
        agent.amend(replace(agent.reg, entries=entries))
        agent.adopt(self.settings.policy_for(agent.reg))
        return self.registry.ask(self.registry.agent_details.set_entries, agent.agent_id, entries)

    # -- agents registered with an earlier daemon that the registry does not know (any more)

    async def readopt(self, copy: AgentRow, *, with_row: bool) -> None:
        """Take in a living agent by the backup of its registration. Raises RegistryUnavailable.

        `with_row`: write its row again at once; else its next beat has it written (`write_row`).
        """
        reg = copy.registration
        agent = Agent(reg, self.settings.policy_for(reg), Status.RUNNING, copy.notify_socket)
        agent.heartbeat.said.promise(reg.stall_after is not None)
        if with_row:
            await self.write_row(agent)
        self.tracker.readopt(agent)

    async def write_row(self, agent: Agent) -> None:
        """Write the lost row of an agent again. Raises RegistryUnavailable."""
        now, add = self.clock.now().wall, self.registry.agents.add
        await self.registry.write(add, agent.reg, agent.status, now, "daemon", agent.notify_socket)

    async def restore_identity(self, agent: Agent, copy: Registration) -> None:
        """Commit the process that the registration backup names: the row is older. Raises RegistryUnavailable."""
        identity = copy.identity
        if identity is None:
            return
        owner = copy.owner_uid if agent.reg.owner_uid == ROOT else agent.reg.owner_uid
        known = agent.agent_id, identity, Status.RUNNING, self.clock.now().wall, "daemon", owner
        await self.registry.write(self.registry.agent_details.set_identity, *known)
        agent.become(Status.RUNNING)
        agent.amend(replace(agent.reg, identity=identity, owner_uid=owner))
        self.tracker.identified(agent)


def one_spelling(path: str | None) -> str | None:
    """Without doubled and trailing slashes, so that two spellings of one path compare equal."""
    return None if path is None else "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _duration(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _add(
    registry: Registry, peer: Peer, reg: Registration, status: Status, now: datetime, notify_socket: str | None
) -> Registration:
    """In the writer's thread: store the row and the task's; returns the registration as stored.

    A task on which another user's agent works or worked stays that user's: its outcome belongs to that agent. The id
    may also have been guessed, so the new agent is watched all the same, without a task. The check is made here because
    registrations of two owners do not wait for each other, while writes do.
    """
    worker = None if reg.task_id is None else _worker(registry, reg.task_id)
    if worker is not None and not peer.may(worker.registration.owner_uid):
        reg = replace(reg, task_id=None)
    registry.agents.add(reg, status, now, peer.by, notify_socket)
    if reg.task_id is not None:
        registry.history.assign_task(reg.task_id, reg.agent_id, now)
    return reg


def _worker(registry: Registry, task_id: str) -> AgentRow | None:
    """The agent that works, or worked last, on a task, also on one that waits for another try."""
    row = registry.history.task(task_id)
    if row is None:
        return None
    worker = None if row.assigned_agent is None else registry.agents.get(row.assigned_agent)
    return worker or next(iter(registry.agents.by_task(task_id, live_only=False)), None)
