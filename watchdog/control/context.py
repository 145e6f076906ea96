"""What the control socket needs of the rest of the daemon, in one value; `service` fills it in.

Nothing in here acts: a request becomes a call of one of these parts, which decides and acts.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from weakref import WeakValueDictionary

from aiohttp import web

from watchdog.agents.admission import Admission
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.history import EventRecorder
from watchdog.agents.holds import Holds
from watchdog.agents.own_cgroup import CgroupPlacement
from watchdog.agents.registration import Registrar
from watchdog.agents.tracker import AgentTracker
from watchdog.clock import Clock
from watchdog.concurrency.lanes import Pace, Turns
from watchdog.config.settings import Settings
from watchdog.control.peers import peer_of, too_often
from watchdog.core.admission import PER_TARGET, PER_TOKEN, SCAN, WAIT, LimitKind
from watchdog.core.agent import Registration
from watchdog.core.peer import Peer
from watchdog.discovery.custody import Custodians
from watchdog.discovery.importer import SourceImporter
from watchdog.errors import BadRequest, RegistryUnavailable
from watchdog.helpers.pool import HelperPool
from watchdog.kill.safeguards import Safeguards
from watchdog.kill.worker import KillWorker
from watchdog.reaper.reaper import Reaper
from watchdog.registry.store import AsyncStore
from watchdog.telemetry.logger import EventLogger
from watchdog.telemetry.metrics import Metrics

Json = dict[str, object]
HELPERS = 16  # that run at once for requests of users, one of each user; 13 MB each


async def _nothing() -> Json:
    return {}


@dataclass(eq=False)
class ControlContext:
    """The parts of the daemon that a request may use.

    `registrar` takes agents in; `tracker` follows what their processes do; `custodians` knows what other daemons hold;
    `placement` moves an agent to a cgroup of its own; `kills` takes requests to end one and gives their outcomes;
    `sources` knows which entries of foreign registries are not watched; `owners` has helpers of the owners do things.
    `safeguards` has the daemon's own holds; `reaper` knows ended agents whose processes live on, and what dead agents
    left. `facts` is what `status` reports of the loop.
    `reload` has the configuration read again, and says what came of it.
    `present` gives a copy of an agent of this host with its ages of now.
    `admission` says what a user may take. `no_space` says why nothing optional of that uid's is written.
    """

    fleet: Fleet
    store: AsyncStore
    settings: Settings  # a reload puts new ones here
    clock: Clock
    holds: Holds
    metrics: Metrics
    log: EventLogger
    recorder: EventRecorder
    tracker: AgentTracker
    registrar: Registrar
    placement: CgroupPlacement
    kills: KillWorker
    safeguards: Safeguards
    reaper: Reaper
    sources: SourceImporter
    custodians: Custodians
    owners: HelperPool
    host: str
    boot_id: str
    runtime_dir: str
    look_soon: Callable[[], None]
    admission: Admission
    present: Callable[[Agent], Agent] = lambda agent: agent
    facts: Callable[[], Json] = dict
    reload: Callable[[], Awaitable[Json]] = _nothing
    no_space: Callable[[int], str | None] = lambda uid: None
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

    async def scan(self, peer: Peer) -> None:
        """Look at every tree again, at the cost of the user that asks."""
        if not peer.admin:
            self.admission.charge(peer.uid, SCAN)
        await self.kills.scan()

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
                agent.heartbeat.silence.lose_channel(look=False)

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

    def event(self, event: str, /, **fields: object) -> None:
        """One line in the log, and a ring for those who follow the history."""
        self.recorder.event(event, **fields)


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
