"""What the control socket needs of the rest of the daemon, in one value; `service.wiring` fills it in.

Nothing in here acts: a request becomes a call of one of these parts, which decides and acts.

Tests: tests/control/test_server.py, tests/control/routes/test_agents.py.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from aiohttp import web

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.history import EventRecorder
from watchdog.agents.holds import Holds
from watchdog.agents.own_cgroup import CgroupPlacement
from watchdog.agents.registration import Registrar
from watchdog.clock import Clock
from watchdog.config.settings import Settings
from watchdog.control.callers import Callers
from watchdog.control.peers import peer_of
from watchdog.core.admission import WAIT, LimitKind
from watchdog.core.agent import Registration
from watchdog.core.peer import Peer
from watchdog.discovery.discovery import Discovery
from watchdog.errors import BadRequest, RegistryUnavailable
from watchdog.helpers.pool import HelperPool
from watchdog.kill.safeguards import Safeguards
from watchdog.kill.worker import KillWorker
from watchdog.reaper.reaper import Reaper
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.sweep.sweeper import Sweeper
from watchdog.telemetry.logger import EventLogger

Json = dict[str, object]


class StatusReport(Protocol):
    """`service.status.DaemonStatus`, which stands in a layer above."""

    def facts(self) -> Json:
        """What `status` reports of the daemon."""

    def figures(self) -> bytes:
        """The metrics, in Prometheus's format."""

    def no_space(self, uid: int) -> str | None:
        """Why nothing that this user can do without is written, or None."""


class Reloader(Protocol):
    """`service.reload.ConfigReload`, which stands in a layer above."""

    async def ask(self) -> Json:
        """Have the configuration read again, and say what came of it."""


@dataclass(eq=False)
class ControlContext:
    """The parts of the daemon that a request may use.

    `registrar` registers agents, and has the tracker that follows their processes; `kill_worker` takes kill requests
    and gives their outcomes; `safeguards` has the daemon's own holds; `reaper` knows ended agents whose processes live
    on, and what dead agents left; `helpers` acts as the agents' owners; `discovery` knows the agents of other daemons
    and of other programs' registries; `sweeper` gives a copy of an agent with its ages as of now; `placement` moves an
    agent to a cgroup of its own; `callers` keeps what users' requests may cost.
    """

    fleet: Fleet
    registry: AsyncRegistry
    registrar: Registrar
    recorder: EventRecorder
    kill_worker: KillWorker
    holds: Holds
    safeguards: Safeguards
    reaper: Reaper
    helpers: HelperPool
    discovery: Discovery
    sweeper: Sweeper
    placement: CgroupPlacement
    callers: Callers
    status: StatusReport
    reload: Reloader

    @property
    def settings(self) -> Settings:
        """The current ones: a reload replaces them."""
        return self.registrar.settings

    @property
    def clock(self) -> Clock:
        """The daemon's."""
        return self.registrar.clock

    @property
    def log(self) -> EventLogger:
        """For what the history does not have."""
        return self.registrar.tracker.log

    @property
    def host(self) -> str:
        """The name of this host in the registry."""
        return self.registrar.host

    @property
    def boot_id(self) -> str:
        """The kernel's id of this boot."""
        return self.registrar.boot_id

    @property
    def socket_path(self) -> str:
        """Where this daemon listens."""
        return f"{self.settings.runtime_dir}/control.sock"

    def now(self) -> datetime:
        """Wall time, for people."""
        return self.clock.now().wall

    def look_soon(self) -> None:
        """Make the next sweep come now."""
        self.registrar.tracker.look_soon()

    async def scan(self, peer: Peer) -> None:
        """Look at every tree again, at the cost of the user that asks."""
        self.callers.charge_scan(peer)
        await self.kill_worker.scan()

    def unheard(self, uid: int) -> None:
        """A connection of that uid was refused for a limit; it may have carried a heartbeat.

        The agents that may have been meant are not judged silent before their next beat: the uid's own, and all if that
        uid may beat for all (the `run` of an agent that has dropped to another uid is root's).
        """
        anybody = uid in (0, os.geteuid())
        for agent in self.fleet:
            if anybody or agent.reg.owner_uid == uid:
                agent.heartbeat.silence.lose_channel(look=False)

    async def learnt(self, agent: Agent, former: Registration) -> None:
        """Apply and store what a beat changed in its registration. A failed write is not repeated."""
        if agent.reg.agent_type != former.agent_type:
            agent.adopt(self.settings.policy_for(agent.reg))
        admission = self.callers.admission
        if agent.reg == former or admission.take(agent.reg.owner_uid, LimitKind.REQUESTS, 1.0) > WAIT:
            return  # its user writes more than its share: the same as a failed write
        with suppress(RegistryUnavailable):  # a later daemon uses what was stored first
            if agent.reg.transcript is not None and agent.reg.transcript != former.transcript:
                await self.registry.write(
                    self.registry.agent_details.set_transcript, agent.agent_id, agent.reg.transcript
                )
            if agent.reg.agent_type != former.agent_type:
                await self.registry.write(self.registry.agent_details.set_type, agent.agent_id, agent.reg.agent_type)

    def event(self, event: str, /, **fields: object) -> None:
        """One line in the log, and a wake-up for those that follow the history."""
        self.recorder.event(event, **fields)


CONTEXT = web.AppKey("context", ControlContext)


def context_of(request: web.Request) -> ControlContext:
    """What serves this request."""
    return request.app[CONTEXT]


def peer_at(request: web.Request) -> Peer:
    """The caller, read from the kernel. Raises BadRequest when the connection is closed already."""
    group = context_of(request).settings.control.admin_group
    try:
        if request.transport is not None:
            return peer_of(request.transport.get_extra_info("socket"), group)
    except OSError:
        pass
    raise BadRequest("the kernel does not say who you are; are you still there?")
