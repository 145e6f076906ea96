"""Carries out the decision about an agent: a log line, a step of its ladder, or a kill order.

Tests: tests/sweep/test_sweeper.py.
"""

from dataclasses import replace

from watchdog.agents.agent import Agent
from watchdog.agents.tracker import AgentTracker
from watchdog.config.settings import Settings
from watchdog.core.agent import State
from watchdog.core.decision import SILENT, Action, Decision, Veto, asked_first
from watchdog.core.kill import Reason, Step
from watchdog.core.verdict import Judgement
from watchdog.errors import Conflict, RegistryUnavailable, RowRemoved
from watchdog.kill.safeguards import Safeguards
from watchdog.kill.worker import KillWorker
from watchdog.sweep.announcer import Announcer
from watchdog.sweep.escalation import Escalation
from watchdog.sweep.stats import SweepStats


class Enforcement:
    """Acts on one agent at a time, as `core.decision` decides."""

    def __init__(
        self,
        settings: Settings,
        tracker: AgentTracker,
        kills: KillWorker,
        safeguards: Safeguards,
        escalation: Escalation,
        announcer: Announcer,
        stats: SweepStats,
    ) -> None:
        self._settings = settings
        self._tracker = tracker
        self._kills = kills
        self._safeguards = safeguards
        self._escalation = escalation
        self._announcer = announcer
        self._stats = stats

    def apply(self, settings: Settings) -> None:
        """Apply these settings from now on."""
        self._settings = settings

    def judged(self, agent: Agent, judgement: Judgement) -> None:
        """Before the verdict is stored: report what changes with it."""
        self._announcer.judged(agent, judgement)
        self._escalation.look(agent, judgement)

    def call_off(self, agent_id: str, why: str) -> None:
        """Withdraw the daemon's own kill: silence does not count while we doubt it."""
        if (doubted := self._tracker.fleet.get(agent_id)) is not None:
            self._kills.cancel_automatic(doubted, why)

    async def act(self, decision: Decision) -> bool:
        """Carry out the decision about one agent. False when the registry takes no order."""
        agent = self._tracker.fleet.get(decision.agent_id)
        if agent is None:
            return True
        match decision.action:
            case Action.REQUEST_KILL:
                return await self._request(agent, decision)
            case Action.CLIMB if decision.rung is not None:
                return await self._take_step(agent, decision.rung, decision.text)
            case Action.HOLD:
                self._held(agent, decision.veto or Veto.OPERATOR, decision.text)
            case Action.NOTIFY if agent.heartbeat.said.state is State.WAITING:
                self._announcer.needs_human(agent, decision.text)
            case Action.NOTIFY:
                self._announcer.once(agent, f"notify {agent.judged.verdict}", "agent.told", decision.text)
            case Action.KEEP | Action.CLIMB:
                pass
        return True

    async def close(self) -> None:
        """Cancel running nudges."""
        await self._escalation.close()

    async def _take_step(self, agent: Agent, step: Step, text: str) -> bool:
        """Take a step that kills nothing. False when the registry does not accept it."""
        if self._settings.observe and step is not Step.WARN:
            self._announcer.once(agent, f"observe {step}", "kill.observed", f"would {step} it: {text}")
            return True
        try:
            await self._escalation.take_step(agent, step, text)
        except RegistryUnavailable as error:
            self._held(agent, Veto.REGISTRY, str(error))
            return False
        return True

    async def _request(self, agent: Agent, decision: Decision) -> bool:
        reason = decision.reason or Reason.STALLED
        if self._settings.observe and reason is not Reason.GONE:
            self._announcer.once(agent, f"observe {reason}", "kill.observed", f"would kill it: {decision.text}")
            return True
        try:
            options = asked_first(decision, agent.policy)
            if agent.owner.elsewhere is not None:
                options = replace(options, cleanup=False)  # its own daemon cleans up
            await self._kills.request(agent, reason, options, "daemon", decision.text, agent.judged.renewed_judged)
        except RegistryUnavailable as error:
            self._held(agent, Veto.REGISTRY, str(error))
            return False
        except RowRemoved as error:  # as with a closed row: whoever removed it wants no further action
            self._tracker.log.event("row.quarantined", agent_id=agent.agent_id, name=agent.reg.name, why=str(error))
            self._tracker.forget(agent)
            return True
        except Conflict:
            return True  # the registry has an open one unknown here: `service.registry_poll` finds it
        if reason is not Reason.GONE:
            self._safeguards.count_kill(agent, silent=reason in SILENT)
            self._stats.requested()
        return True

    def _held(self, agent: Agent, veto: Veto, text: str) -> None:
        """Report once per kind: an operator's hold reason and the count of a mass stall may change."""
        kind = f"held {veto} "
        if self._announcer.once(agent, f"{kind}{text if veto is Veto.OPERATOR else ''}", "kill.held", text, kind):
            self._stats.held(veto)
