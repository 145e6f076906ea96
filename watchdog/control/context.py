"""What the control socket needs of the rest of the house, in one value; `service` fills it in.

Nothing in here acts: a request becomes a call of one of these, and whoever it belongs to decides and acts.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from weakref import WeakValueDictionary

from aiohttp import web

from watchdog.agents.fleet import Agent, Fleet
from watchdog.agents.holds import Holds
from watchdog.clock import Clock
from watchdog.concurrency.lanes import Pace, Turns
from watchdog.config.settings import Settings
from watchdog.control.admission import Admission
from watchdog.control.peers import peer_of, too_often
from watchdog.core.admission import PER_TARGET, PER_TOKEN, WAIT, LimitKind
from watchdog.core.agent import Registration
from watchdog.core.custody import Holder
from watchdog.core.kill import KillOptions, Reason
from watchdog.core.peer import Peer
from watchdog.core.process import Identity
from watchdog.errors import BadRequest, DaemonUnreachable, RegistryUnavailable
from watchdog.registry.store import AsyncStore
from watchdog.telemetry.logger import EventLogger
from watchdog.telemetry.metrics import Metrics

Json = dict[str, object]
HELPERS = 16  # that run at once for requests of users, one of each user; 13 MB each


class HistorySignal:
    """Wakes everybody who waits for something new. Take `next()`, look, then wait for it: no ring is missed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._closed = False

    def closed(self) -> bool:
        """Whether the daemon stops."""
        return self._closed

    def ring(self) -> None:
        """Something was added to the history."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    def close(self) -> None:
        """The daemon stops: whoever follows is let go."""
        self._closed = True
        self.ring()

    def next(self) -> asyncio.Event:
        """The event that the next ring sets."""
        return self._event


class Alone:
    """For a daemon that knows of no other one."""

    async def holder_of(self, process: Identity, owner: int, *, ordered: bool = False) -> Holder | None:
        """The other daemon whose a process is that we do not hold; `ordered`: by root or an admin, whatever it says."""
        return None

    def left_to(self, pid: int) -> Holder | None:
        """Whose a process was, if we left it to another daemon a moment ago."""
        return None

    def pid_of(self, word: str) -> int | None:
        """The process that a word may mean which is no agent here: a pid, or its name at the daemon we left it to."""
        return None

    async def pass_on(self, holder: Holder, method: str, path: str, body: object) -> tuple[int, Json]:
        """Say to that daemon what was said to us. Raises DaemonUnreachable."""
        raise DaemonUnreachable(f"{holder} is not known here")


async def _nothing() -> Json:
    return {}


async def _none(*_: object, **__: object) -> list[Any]:
    return []


@dataclass(eq=False)
class ControlContext:
    """The rooms behind the counter.

    `admit` is called after an agent's row is committed and puts it into the fleet; `identified` after a pid became
    known; `follow` commits that its process has dropped from root to a user, if it has; `place` has it moved to a
    cgroup of its own. `request_kill` (agent, reason, options, by, why) commits a request, or finds the open one and
    raises its force, and gives its id; `finished` waits at most that many seconds for its outcome (None: not yet), and
    for the cleanup of who is proved dead so many as it is told beside.
    `open_notify` makes the daemon's socket for an agent (id, owner uid) and gives its path. `doubts` are the daemon's
    own holds (with a uid: on that uid's agents), `lift_doubts` ends them. `facts` is what `status` tells of the loop.
    `ask_owner` (uid, call, arguments, seconds) has a helper of that owner's, started for it, do one thing.
    `orphans` gives ended agents whose processes live on; `reap` (may, by, dry_run) what dead agents left.
    `custodians` knows what other daemons hold.
    `reload` has the configuration read again, and says what came of it.
    `present` gives a copy of an agent of this host with its ages of now.
    `admission` says what a user may take. `shown` is who stands in a foreign registry and is not watched. `no_space`
    says why nothing optional of that uid's is written.
    """

    fleet: Fleet
    store: AsyncStore
    settings: Settings  # a reload puts new ones here
    clock: Clock
    holds: Holds
    metrics: Metrics
    log: EventLogger
    host: str
    boot_id: str
    runtime_dir: str
    admit: Callable[[Agent], None]
    identified: Callable[[Agent], None]
    follow: Callable[[Agent], Awaitable[None]]
    place: Callable[[Agent], Awaitable[None]]
    open_notify: Callable[[str, int], str]
    close_notify: Callable[[str], None]
    request_kill: Callable[[Agent, Reason, KillOptions, str, str], Awaitable[str]]
    finished: Callable[..., Awaitable[Json | None]]
    look_soon: Callable[[], None]
    ask_owner: Callable[[int, str, Json, float], Awaitable[Any]]
    admission: Admission
    present: Callable[[Agent], Agent] = lambda agent: agent
    facts: Callable[[], Json] = dict
    doubts: Callable[..., list[str]] = lambda *_: []
    lift_doubts: Callable[[], list[str]] = list
    orphans: Callable[[], Awaitable[list[Agent]]] = _none
    reap: Callable[..., Awaitable[list[Json]]] = _none
    shown: Callable[[], list[Json]] = list
    reload: Callable[[], Awaitable[Json]] = _nothing
    no_space: Callable[[int], str | None] = lambda uid: None
    custodians: Alone = field(default_factory=Alone)
    bell: HistorySignal = field(default_factory=HistorySignal)
    # By owner; a lock lives as long as somebody has it or waits for it.
    registrations: WeakValueDictionary[int, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    pace: Pace = field(default_factory=Pace)  # in which users' requests begin
    helping: Turns = field(default_factory=lambda: Turns(HELPERS, 1))  # requests for which a helper is started
    purging: WeakValueDictionary[int, asyncio.Lock] = field(default_factory=WeakValueDictionary)  # one of each owner's
    denied: dict[tuple[int, str], float] = field(default_factory=dict)  # when a refusal was last logged
    talks: dict[tuple[int, str, int, int], Any] = field(default_factory=dict)  # `sessions.Talk`

    @property
    def socket_path(self) -> str:
        """Where this daemon listens."""
        return f"{self.runtime_dir}/control.sock"

    def now(self) -> datetime:
        """Wall time, for people."""
        return self.clock.now().wall

    def charge_answer(self, peer: Peer, size: int) -> float:
        """Have its user pay for an answer of so many bytes; seconds until that is paid."""
        return 0.0 if peer.admin else self.admission.charge(peer.uid, size / PER_TOKEN)

    def charge(self, peer: Peer, act: str, targets: int) -> None:
        """Take the tokens for so many targets of one request; the first is paid for."""
        if targets > 1 and not peer.admin:
            self.admission.charge(peer.uid, PER_TARGET[act] * (targets - 1))

    def charge_named(self, peer: Peer, targets: int) -> None:
        """The same for so many words before they are looked up. Raises Limited for one who owes too much already.

        That is more than a request may wait for: what `Admission.take` let in gets through, however many came with it.
        """
        if targets > 1 and not peer.admin:
            seconds = self.admission.owes(peer.uid)
            if seconds > WAIT:
                self.admission.refused(peer.uid, LimitKind.REQUESTS)
                raise too_often(peer.uid, self.admission.user_of(peer.uid), seconds)
            self.charge(peer, "named", targets)

    def unheard(self, uid: int) -> None:
        """A connection of that uid was refused for a limit; it may have carried a heartbeat.

        Whom it may have been for is not judged silent before the next beat: the uid's own agents, and everybody's when
        it was one who may speak for all (the `run` of an agent that has dropped to another uid is root's).
        """
        anybody = uid in (0, os.geteuid())
        for agent in self.fleet:
            if anybody or agent.reg.owner_uid == uid:
                agent.channel_lost = True

    async def learnt(self, agent: Agent, former: Registration) -> None:
        """What its word changed in its registration: the type decides its limits. A failed write is not repeated."""
        if agent.reg.agent_type != former.agent_type:
            agent.adopt(self.settings.policy_for(agent.reg))
        if agent.reg == former or self.admission.take(agent.reg.owner_uid, LimitKind.REQUESTS, 1.0) > WAIT:
            return  # its user writes more than its share: as a failed write
        with suppress(RegistryUnavailable):  # a daemon after us goes by what it was told first
            if agent.reg.transcript is not None and agent.reg.transcript != former.transcript:
                await self.store.write(self.store.store.set_transcript, agent.agent_id, agent.reg.transcript)
            if agent.reg.agent_type != former.agent_type:
                await self.store.write(self.store.store.set_type, agent.agent_id, agent.reg.agent_type)

    @asynccontextmanager
    async def registering(self, owner_uid: int) -> AsyncIterator[None]:
        """One registration of an owner at a time: a name is looked up, then taken. Other owners' do not wait for it."""
        lock = self.registrations.setdefault(owner_uid, asyncio.Lock())
        async with lock:
            yield

    def event(self, event: str, /, **fields: object) -> None:
        """One line in the log, and a ring for those who follow the history."""
        self.log.event(event, exc_info=None, **fields)
        self.bell.ring()


DESK = web.AppKey("desk", ControlContext)


def desk_of(request: web.Request) -> ControlContext:
    """The desk that serves this request."""
    return request.app[DESK]


def peer_at(request: web.Request) -> Peer:
    """Who asks, read from the kernel. Raises BadRequest when the connection is gone already."""
    group = desk_of(request).settings.control.admin_group
    try:
        if request.transport is not None:
            return peer_of(request.transport.get_extra_info("socket"), group)
    except OSError:
        pass
    raise BadRequest("the kernel does not say who you are; are you still there?")
