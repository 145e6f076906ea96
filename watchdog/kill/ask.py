"""Asks an agent to end by itself, before anything is signalled: in the answers to its beats, then by its exit keys.

Only who beats over HTTP hears the answers, and is waited for; when he says that he rests, he has finished what he was
at. Where the program in whose registry it stands has a command of its own that stops an agent, its owner's helper runs
that. Exit keys go into the agent's own tmux pane, typed by that helper. What then lives is ended by the ladder's next
steps.
"""

from dataclasses import replace
from datetime import timedelta

from watchdog.agents.fleet import Agent
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
from watchdog.kill.order import ASKING, AUTOMATIC, WITHDRAWN_BY_BEAT, Order, daemon_identity
from watchdog.kill.pinned_tree import until_gone
from watchdog.processes.identity import presence
from watchdog.registry.store import AsyncStore

LOOK = 0.25  # seconds between two looks at what it said meanwhile; its end and an operator's word wake us at once
AFTER_KEYS = timedelta(seconds=5)  # between TERM and KILL for whom keys were typed: it has had time already
PROGRAM_SECONDS = 10.0  # for the stop command of a program whose registry it is in
KEYS_SECONDS = 3.0  # that an agent has to end after its exit keys were typed
AT_REST = frozenset({State.IDLE, State.WAITING, State.DONE})  # no tool call of its own runs


class StopRequest:
    """Sets the flag, has keys typed, and waits; signals nobody."""

    def __init__(
        self, store: AsyncStore, clock: Clock, holds: Holds, owners: HelperPool, chronicle: EventRecorder
    ) -> None:
        self._store = store
        self._clock = clock
        self._holds = holds
        self._owners = owners
        self._chronicle = chronicle

    async def ask(self, order: Order) -> None:
        """Ask the order's agent, if it is to be asked, until it has ended, has obeyed, or the time is over.

        Each step is committed before it is taken; after a restart its time begins anew, and keys are not typed again.
        The agent's row is not claimed yet: until then its beats count, and a hold calls the order off.

        1. Its beats are answered. Who hears that is given the time; who stalls hears nothing.
        2. The own command of the program that it is listed by.
        3. Exit keys. An operator's order then goes on; that of a ladder gives the whole time of its step.
        """
        agent, pause = order.agent, order.options.ask
        if pause is None or (order.resumed and order.reason in WITHDRAWN_BY_BEAT):  # judged anew: see the claim
            return
        seconds = pause.total_seconds()
        waits = order.step in ASKING
        agent.asked = StopAsked(order.why, self._clock.mono() + (seconds if waits else 0.0))
        if not waits or not await self._begin(order):
            return
        hears = agent.hears and order.reason is not Reason.STALLED
        rested = agent.state in AT_REST
        if hears and order.step is KillStep.ASKED:
            await self._wait(order, seconds, unless_at_rest=True)
        if order.step is KillStep.ASKED:
            await self._by_its_program(order)
        typed = order.step is KillStep.KEYS or await self._type(order)
        if typed and order.options.grace is None:
            order.options = replace(order.options, grace=min(AFTER_KEYS, agent.policy.grace))
        obeyed = hears and not rested and agent.state in AT_REST  # a program that runs one prompt ends after it
        if typed or obeyed or (not hears and order.reason in AUTOMATIC):
            await self._wait(order, KEYS_SECONDS if hears or order.reason not in AUTOMATIC else seconds)
        if order.options.only_ask and not _gone(agent):
            order.vetoed = "it was asked to stop and did not; its ladder ends before a kill"

    async def _begin(self, order: Order) -> bool:
        """Commit that it is asked; False where the order is somebody else's (the claim says so)."""
        agent, store, now = order.agent, self._store.store, self._clock.now().wall
        me = daemon_identity(agent.reg.host)
        if not await self._store.write(store.claim_request, order.request_id, me, now, takeover_from=order.former):
            return False
        if order.step is KillStep.REQUESTED:
            if order.reason in AUTOMATIC:
                await self._store.write(store.set_rung, agent.agent_id, Step.STOP)
                agent.climbed(Step.STOP)
            if agent.hears:  # learnt since the last sweep, it may stand nowhere yet
                await self._store.write(store.set_hears, agent.agent_id)
            if not await self._intend(order, KillStep.ASKED):
                return False
            can = f"it has {span(order.options.ask)}" if agent.hears and order.options.ask else "it cannot hear it"
            self._chronicle.tell("stop.asked", agent, f"{order.why}; {can}", order.by)
        order.asked = True
        return True

    async def _intend(self, order: Order, step: KillStep) -> bool:
        saved = await self._store.write(
            self._store.store.save_step, order.request_id, step.value, by=order.holders, evidence=order.kept or None
        )
        if saved:
            order.step = step
        return saved

    async def _by_its_program(self, order: Order) -> None:
        """Run `hcom stop NAME` and its like, as the owner; what it does not end is ended all the same."""
        agent = order.agent
        command = next((entry.stop for entry in agent.reg.entries if entry.stop), None)
        if command is None or self._over(order) or not await self._intend(order, KillStep.PROGRAM):
            return
        try:
            uid = owner_of(agent)
        except OwnerCallFailed as error:
            self._chronicle.tell("stop.program", agent, f"not run: {error}")
            return
        ran = await self._owners.run_notice(command, "stop", "{}", PROGRAM_SECONDS, uid)
        said = f": {ran.message.splitlines()[0]}" if ran.message else ""
        self._chronicle.tell("stop.program", agent, f"{' '.join(command)}: {ran.outcome}{said}"[:500])

    async def _type(self, order: Order) -> bool:
        """Its exit keys into its own pane; whether they were typed."""
        agent, keys = order.agent, order.agent.policy.exit_keys
        main = agent.identity
        if not keys or main is None or self._over(order):
            return False
        if not agent.started:  # it may show whatever it asks first
            self._chronicle.tell("stop.keys", agent, "not typed: it has not started, as far as is known")
            return False
        if agent.state is State.WAITING:  # Enter says yes to most dialogs
            self._chronicle.tell(
                "stop.keys", agent, "not typed: it waits for a person's answer, and would take them for it"
            )
            return False
        if not await self._intend(order, KillStep.KEYS):
            return False
        try:
            how = await self._owners.type_keys(owner_of(agent), main.pid, main.start_ticks, keys, clear=True)
        except OwnerCallFailed as error:
            self._chronicle.tell("stop.keys", agent, f"not typed: {error}")
            return False
        self._chronicle.tell("stop.keys", agent, how)
        return True

    async def _wait(self, order: Order, seconds: float, *, unless_at_rest: bool = False) -> None:
        until = self._clock.mono() + seconds
        while (left := until - self._clock.mono()) > 0 and not self._over(order):
            if unless_at_rest and order.agent.state in AT_REST:
                return
            alive = () if order.agent.identity is None else (order.agent.identity,)
            await until_gone(alive, order.again, min(LOOK, left))

    def _over(self, order: Order) -> bool:
        """Whether waiting for it has no sense any more: it ended, the order is called off, or somebody wants more."""
        called_off = order.reprieve(self._holds, self._clock.now().wall) is not None
        return _gone(order.agent) or called_off or order.pressed or order.options.force


def _gone(agent: Agent) -> bool:
    return agent.identity is not None and presence(agent.identity, agent.pidfd) is Presence.ABSENT
