"""Asks an agent to exit, before any signal: in the answers to its beats, by its program's own command, by exit keys.

Only an agent that beats over HTTP gets the answers, and is waited for; once it reports a state of rest, it has finished
what it was doing. If the program that lists the agent has a command that stops it, its owner's helper runs that
command. Exit keys are typed by that helper into the agent's own tmux pane. What is still alive then is killed by the
next steps of the ladder.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from watchdog.agents.agent import Agent
from watchdog.agents.history import EventRecorder
from watchdog.agents.holds import Holds
from watchdog.agents.ownership import owner_of
from watchdog.clock import Clock
from watchdog.core.agent import State
from watchdog.core.kill import KillStep, Reason, Step, StopAsked
from watchdog.core.process import Presence
from watchdog.core.verdict import span
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.kill.order import ASKING, AUTOMATIC, WITHDRAWN_BY_BEAT, KillOrder, OpenOrder, daemon_identity
from watchdog.kill.pinned_tree import until_gone
from watchdog.processes.identity import presence
from watchdog.registry.async_registry import AsyncRegistry

LOOK = 0.25  # seconds between two reads of its reported state; its exit and a second order wake us at once
AFTER_KEYS = timedelta(seconds=5)  # between TERM and KILL after exit keys were typed: it has had time already
PROGRAM_SECONDS = 10.0  # for the stop command of a program whose registry it is in
KEYS_SECONDS = 3.0  # that an agent has to end after its exit keys were typed
AT_REST = frozenset({State.IDLE, State.WAITING, State.DONE})  # no tool call of its own runs


@dataclass(frozen=True, slots=True)
class Asked:
    """The result of asking. `refused`: why the agent is not killed, if it was only to be asked and has not exited."""

    typed: bool = False  # exit keys, now or before a restart
    refused: str | None = None


class AskLog(Protocol):
    """Where the steps of asking are committed."""

    async def asking(self, step: KillStep) -> bool:
        """Commit a step before it is taken. False: the order is done, or another daemon's."""
        ...


class StopRequest:
    """Sets the flag for its beats, has the command run and keys typed, and waits; sends no signal."""

    def __init__(
        self, registry: AsyncRegistry, clock: Clock, holds: Holds, helpers: HelperPool, recorder: EventRecorder
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._holds = holds
        self._helpers = helpers
        self._recorder = recorder

    async def ask(self, opened: OpenOrder, log: AskLog) -> Asked:
        """Ask the order's agent until it has ended, has obeyed, or `options.ask` is over.

        Each step is committed before it is taken; after a restart its time starts again, and keys are not typed twice.
        The agent's row is not claimed yet: its beats still count, and a hold withdraws the order.

        1. Its beats are answered with `stop`. An agent that hears this is given the time; a stalled one hears nothing.
        2. The stop command of the program that lists it.
        3. Exit keys. An operator's order then continues; a ladder's gives the whole time of its step.
        """
        order = opened.order
        agent, pause = order.agent, order.options.ask
        assert pause is not None
        if order.resumed and order.reason in WITHDRAWN_BY_BEAT:  # the claim withdraws it: it is judged again
            return Asked()
        seconds = pause.total_seconds()
        waits = opened.progress.step in ASKING
        agent.ending.ask(StopAsked(order.why, self._clock.mono() + (seconds if waits else 0.0)))
        if not waits or not await self._begin(opened, log):
            return Asked()
        order = opened.order
        hears = agent.heartbeat.reads_answers and order.reason is not Reason.STALLED
        rested = agent.heartbeat.said.state in AT_REST
        if hears and opened.progress.step is KillStep.ASKED:
            await self._wait(opened, seconds, unless_at_rest=True)
        if opened.progress.step is KillStep.ASKED:
            await self._by_its_program(opened, log)
        typed = opened.progress.step is KillStep.KEYS or await self._type(opened, log)
        # A program that runs one prompt exits after it.
        obeyed = hears and not rested and agent.heartbeat.said.state in AT_REST
        own = opened.order.reason in AUTOMATIC
        if typed or obeyed or (not hears and own):
            await self._wait(opened, KEYS_SECONDS if hears or not own else seconds)
        if opened.order.options.only_ask and not _gone(agent):
            return Asked(typed, "it was asked to stop and did not; its ladder ends before a kill")
        return Asked(typed)

    async def _begin(self, opened: OpenOrder, log: AskLog) -> bool:
        """Commit that it is asked; False where the order is another daemon's (the claim finds that, too)."""
        order = opened.order
        agent, registry, now = order.agent, self._registry, self._clock.now().wall
        me = daemon_identity(agent.reg.host)
        if not await registry.write(
            registry.kills.claim_request, order.request_id, me, now, takeover_from=order.former
        ):
            return False
        if opened.progress.step is KillStep.REQUESTED:
            if opened.order.reason in AUTOMATIC:
                await registry.write(registry.agent_details.set_rung, agent.agent_id, Step.STOP)
                agent.ladder.climb(Step.STOP, agent.heartbeat)
            if agent.heartbeat.reads_answers:  # learnt since the last sweep, so it may not be in its row yet
                await registry.write(registry.agent_details.set_hears, agent.agent_id)
            if not await log.asking(KillStep.ASKED):
                return False
            order = opened.order
            can = (
                f"it has {span(order.options.ask)}"
                if agent.heartbeat.reads_answers and order.options.ask
                else "it cannot hear it"
            )
            self._recorder.record("stop.asked", agent, f"{order.why}; {can}", order.by)
        return True

    async def _by_its_program(self, opened: OpenOrder, log: AskLog) -> None:
        """Run `hcom stop NAME` and the like, as the owner; what that does not end is killed all the same."""
        agent = opened.order.agent
        command = next((entry.stop for entry in agent.reg.entries if entry.stop), None)
        if command is None or self._over(opened) or not await log.asking(KillStep.PROGRAM):
            return
        try:
            uid = owner_of(agent)
        except OwnerCallFailed as error:
            self._recorder.record("stop.program", agent, f"not run: {error}")
            return
        ran = await self._helpers.run_notice(command, "stop", "{}", PROGRAM_SECONDS, uid)
        said = f": {ran.message.splitlines()[0]}" if ran.message else ""
        self._recorder.record("stop.program", agent, f"{' '.join(command)}: {ran.outcome}{said}"[:500])

    async def _type(self, opened: OpenOrder, log: AskLog) -> bool:
        """Have its exit keys typed into its own pane; whether they were."""
        agent = opened.order.agent
        keys = agent.policy.exit_keys
        main = agent.identity
        if not keys or main is None or self._over(opened):
            return False
        if not agent.started:  # its screen may show any first question
            self._recorder.record("stop.keys", agent, "not typed: it has not started, as far as is known")
            return False
        if agent.heartbeat.said.state is State.WAITING:  # Enter answers yes in most dialogs
            self._recorder.record(
                "stop.keys", agent, "not typed: it waits for a person's answer, and would take them for it"
            )
            return False
        if not await log.asking(KillStep.KEYS):
            return False
        try:
            how = await self._helpers.type_keys(owner_of(agent), main.pid, main.start_ticks, keys, clear=True)
        except OwnerCallFailed as error:
            self._recorder.record("stop.keys", agent, f"not typed: {error}")
            return False
        self._recorder.record("stop.keys", agent, how)
        return True

    async def _wait(self, opened: OpenOrder, seconds: float, *, unless_at_rest: bool = False) -> None:
        agent = opened.order.agent
        until = self._clock.mono() + seconds
        while (left := until - self._clock.mono()) > 0 and not self._over(opened):
            if unless_at_rest and agent.heartbeat.said.state in AT_REST:
                return
            alive = () if agent.identity is None else (agent.identity,)
            await until_gone(alive, opened.again, min(LOOK, left))

    def _over(self, opened: OpenOrder) -> bool:
        """Whether to stop waiting: it has ended, the order is withdrawn, or a second one wants it killed."""
        called_off = opened.withdrawal_reason(self._holds, self._clock.now().wall) is not None
        return _gone(opened.order.agent) or called_off or opened.pressed or opened.order.options.force


def grace_after(asked: Asked, order: KillOrder) -> KillOrder:
    """The order as it continues: after exit keys the grace is short, unless one was asked for."""
    if not asked.typed or order.options.grace is not None:
        return order
    return replace(order, options=replace(order.options, grace=min(AFTER_KEYS, order.agent.policy.grace)))


def _gone(agent: Agent) -> bool:
    return agent.identity is not None and presence(agent.identity, agent.tree.pidfd) is Presence.ABSENT
