"""Orders in the registry that no living daemon carries out: passed to the kill worker, or closed.

Hosts that share a registry order kills for each other's agents: such an order is a row like any other, and waits until
the daemon of that host finds it here. So does an order of our own whose commit succeeded though it was reported as
failed.

Tests: tests/service/test_recovery.py, tests/e2e/test_two_hosts.py.
"""

from watchdog.agents.agent import Agent
from watchdog.agents.holds import Holds
from watchdog.agents.registration import Registrar
from watchdog.config.settings import Settings
from watchdog.core.kill import KillOptions, KillStep, Reason
from watchdog.core.process import Presence
from watchdog.kill.claim import started_us
from watchdog.kill.order import claim_is_stale
from watchdog.kill.worker import DEAD, KillWorker
from watchdog.processes.identity import presence
from watchdog.registry.rows import Problem, RequestRow
from watchdog.telemetry.logger import EventLogger

OPEN = frozenset({"open", "claimed", "unkillable"})


class StoredOrders:
    """Takes up these orders, at start and later."""

    def __init__(
        self, settings: Settings, registrar: Registrar, holds: Holds, kills: KillWorker, log: EventLogger
    ) -> None:
        self._settings = settings
        self._registrar = registrar
        self._holds = holds
        self._kills = kills
        self._log = log
        self._quarantined: set[Problem] = set()  # already reported

    def apply(self, settings: Settings) -> None:
        """Apply these settings from now on."""
        self._settings = settings

    async def take_up(self, request: RequestRow, *, readable: bool) -> None:
        """Take up an order found at start, when all agents are known.

        `readable`: its agent's row is, if there is one.
        """
        found, host = self._registrar.fleet.get(request.agent_id), self._registrar.host
        if found is not None:
            if (self._settings.observe or started_us(found)) and claim_is_stale(request.claimed_by, host):
                self._kills.resume_stopped(request, found)
            self.begin(request, found)
            # another daemon took it over; an operator's order is still carried out
            if found.owner.elsewhere is not None:
                self._kills.cancel_automatic(found, f"watched by {found.owner.elsewhere}")
        elif request.reason is Reason.ORPHANED and claim_is_stale(request.claimed_by, host):
            await self.let_orphans_go(request)
        elif readable:
            # Its row was closed; only the end of this request was not written any more.
            why = str(request.outcome.get("message") or "its agent's row is closed")
            await self.finish(request, "done", request.outcome, why)

    async def lose(self, agent: Agent) -> None:
        """Order the end of an agent of an earlier boot, unless that is ordered already."""
        if agent.reg.boot_id != self._registrar.boot_id and agent.ending.request_id is None:
            await self._kills.request(agent, Reason.LOST, KillOptions(), "daemon", "its boot is gone")

    async def take(self, request_id: str, agent: Agent) -> None:
        """Check again, now that no other caller can begin an order for this agent."""
        request = await self._registrar.registry.read(self._registrar.registry.kills.request, request_id)
        if request is None or request.status not in OPEN or agent.ending.request_id is not None:
            return
        held = self._holds.reason_for(agent.agent_id, self._registrar.clock.now().wall)
        if held is not None and request.step is None:
            why = f"{agent.reg.name} is held on host {self._registrar.host}: {held}"
            outcome = {"success": False, "error": "held", "agent_id": agent.agent_id, "message": why}
            await self.finish(request, "withdrawn", outcome, why)
            return
        self.begin(request, agent)

    def begin(self, request: RequestRow, agent: Agent) -> None:
        """Resume it. In observe mode no agent that may live is killed, and the claim of a living daemon is respected.

        The order for an agent that is an ancestor of this daemon waits until the agent has exited.
        """
        lost = agent.reg.boot_id != self._registrar.boot_id
        if self._settings.observe and not lost and request.reason not in DEAD:
            return
        seen = Presence.NO_PID if agent.identity is None else presence(agent.identity, agent.tree.pidfd)
        if request.step == KillStep.CLEANUP and seen is Presence.ALIVE:
            self.quarantine([Problem(agent.agent_id, "step: 'cleanup', but its main process lives")])
        elif claim_is_stale(request.claimed_by, self._registrar.host) and not started_us(agent):
            self._kills.resume(request, agent, lost=lost)

    async def let_orphans_go(self, request: RequestRow) -> None:
        """Resume processes that an earlier daemon stopped; the reaper's next round finds and orders the rest again."""
        row = await self._registrar.registry.read(self._registrar.registry.agents.get, request.agent_id)
        if row is not None:
            policy = self._settings.policy_for(row.registration)
            self._kills.resume_stopped(request, Agent(row.registration, policy, row.status))
        why = "the daemon was restarted; processes that outlived their agent are looked for again"
        await self.finish(request, "withdrawn", {"why": why}, why)

    async def finish(self, request: RequestRow, status: str, outcome: dict[str, object], why: str) -> None:
        """Close an order that is not carried out."""
        registry = self._registrar.registry
        now = self._registrar.clock.now().wall
        await registry.write(
            registry.kills.finish_request, request.request_id, status, outcome, now=now, who="daemon", why=why
        )

    def quarantine(self, problems: list[Problem]) -> None:
        """Rows that are unreadable, or ask for something forbidden: reported once, and left alone."""
        for problem in set(problems) - self._quarantined:
            self._log.event("row.quarantined", agent_id=problem.agent_id, why=problem.message)
        self._quarantined |= set(problems)
