"""The ladder steps that kill nothing: `warn` reports, `nudge` types a line into the agent's pane or runs a command.

A step is committed before it is taken, so no restart takes it twice. The ladder ends when the agent obeys, and starts
over at its next beat. `stop` and `kill` are orders (`kill.worker`).
"""

import asyncio
import json

from watchdog.agents.agent import Agent
from watchdog.agents.history import EventRecorder
from watchdog.agents.ownership import owner_of
from watchdog.core.agent import State, Verdict
from watchdog.core.kill import Step
from watchdog.core.verdict import Judgement
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.registry.async_registry import AsyncRegistry

COMMAND_SECONDS = 10.0  # for a nudge command, as for a notification
WELL = frozenset({Verdict.HEALTHY, Verdict.WAITING})


class Escalation:
    """Takes steps as `core.decision` decides. Nudges run beside the sweep."""

    def __init__(self, registry: AsyncRegistry, helpers: HelperPool, recorder: EventRecorder) -> None:
        self._registry = registry
        self._helpers = helpers
        self._recorder = recorder
        self._nudges: set[asyncio.Task[None]] = set()

    async def take_step(self, agent: Agent, step: Step, why: str) -> None:
        """Take that step. Raises RegistryUnavailable; then nothing was done."""
        judged = agent.judged.renewed_judged
        await self._registry.write(self._registry.agent_details.set_rung, agent.agent_id, step)
        agent.ladder.climb(step, agent.heartbeat)
        if step is Step.WARN:
            self._recorder.record("agent.told", agent, why)
        elif agent.heartbeat.rhythm.renewed == judged:  # else it has beaten meanwhile
            nudge = asyncio.create_task(self._nudge(agent, why), name=f"nudge {agent.agent_id}")
            self._nudges.add(nudge)
            nudge.add_done_callback(self._nudges.discard)

    def look(self, agent: Agent, judgement: Judgement) -> None:
        """End the ladder if the agent has obeyed: it has beaten since and is healthy.

        Healthy without a new beat only means that we could not receive beats.
        """
        if (
            agent.ladder.rung is not None
            and judgement.verdict in WELL
            and agent.heartbeat.rhythm.renewed != agent.ladder.renewed
        ):
            self._recorder.record("agent.obeyed", agent, f"after {agent.ladder.rung}: {judgement.line}")
            agent.ladder.climb(None, agent.heartbeat)
            agent.heartbeat.write_soon()

    async def close(self) -> None:
        """Cancel running nudges."""
        for nudge in list(self._nudges):
            nudge.cancel()
        await asyncio.gather(*self._nudges, return_exceptions=True)

    async def _nudge(self, agent: Agent, why: str) -> None:
        try:
            how = await self._done(agent, why)
        except OwnerCallFailed as error:
            how = f"could not be nudged: {error}"
        self._recorder.record("agent.nudged", agent, f"{why}; {how}")

    async def _done(self, agent: Agent, why: str) -> str:
        policy, reg, main = agent.policy, agent.reg, agent.identity
        if policy.nudge_command:
            facts = {
                "agent_id": agent.agent_id,
                "name": reg.name,
                "pid": main and main.pid,
                "task_id": reg.task_id,
                "why": why,
                "text": policy.nudge_text,
            }
            done = await self._helpers.run_notice(
                policy.nudge_command, "agent.nudged", json.dumps(facts), COMMAND_SECONDS, uid=owner_of(agent)
            )
            return f"its nudge command: {done.outcome}{': ' if done.message else ''}{done.message[:200]}"
        if main is None:
            return "could not be nudged: it has no process yet"
        if not agent.started:
            return "could not be nudged: it has not started, as far as is known"
        if agent.heartbeat.said.state is State.WAITING:
            return "could not be nudged: it waits for a person's answer, and would take the line for it"
        keys = (policy.nudge_text, "Enter")
        return await self._helpers.type_keys(owner_of(agent), main.pid, main.start_ticks, keys)
