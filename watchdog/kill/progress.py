"""How far an open order has come, what was said about it since it was asked for, and who waits for its outcome.

The worker alone writes here, by these methods; the stages of a kill read it while they wait.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from watchdog.agents.agent import Agent
from watchdog.agents.holds import Holds
from watchdog.core.agent import State, Status
from watchdog.core.conversations import RESUME, Conversation, conversation_json, conversation_of
from watchdog.core.kill import KillOptions, KillStep, Reason
from watchdog.core.process import Identity, TreeMember
from watchdog.kill.order import BEFORE_SIGNALS, STOPPING, KillOrder, member_json, member_of
from watchdog.kill.outcome import Json, KillOutcome
from watchdog.kill.terminate import Grace, TerminationResult
from watchdog.processes.identity import boot_id
from watchdog.registry.rows import RequestRow


@dataclass(slots=True)
class KillProgress:
    """How far it has come. `stored`: step and members as this daemon has committed them last."""

    step: KillStep = KillStep.REQUESTED
    members: tuple[TreeMember, ...] = ()
    begun: bool = False  # the first signal was on its way: no beat withdraws it any more
    main_signalled: bool = False  # its main process may have got a signal of ours, from this daemon or a former one
    touched: bool = False  # any process of its tree may have
    killed: bool = False  # and it may have been KILL
    processes: dict[Identity, Json] = field(default_factory=dict)  # of all attempts, how each ended
    result: TerminationResult = field(default_factory=TerminationResult)  # what the attempts did together
    planned: timedelta | None = None  # the grace of the last attempt
    grace: Grace | None = None  # that is on
    conversation: Conversation | None = None  # that its agent was in
    outcome: KillOutcome | None = None  # as its row has it
    stored: tuple[KillStep, tuple[TreeMember, ...]] = (KillStep.REQUESTED, ())
    evidence: Json | None = None  # that no write has taken along yet

    @classmethod
    def of_row(cls, row: RequestRow, now: float) -> "KillProgress":
        """As an earlier daemon left it: its signals may have gone out, or not. `now`: of the monotonic clock.

        Where the row says that TERM has gone out, the grace goes on that was given.
        """
        step, members = KillStep.of(row.step), tuple(map(member_of, row.members))
        outcome, termed = KillOutcome.of_row(row.agent_id, row.outcome)
        touched, killed = step not in BEFORE_SIGNALS, step in STOPPING
        how = f"after {'SIGKILL' if killed else 'SIGTERM'}" if touched else "by itself"
        return cls(
            step=step,
            members=members,
            begun=touched,
            main_signalled=touched and step is not KillStep.TERM_REST,
            touched=touched,
            killed=killed,
            processes={m.identity: process_json(m, f"{how}, while no daemon was there") for m in members},
            grace=_grace_of(termed, now),
            conversation=conversation_of(row.evidence.get("conversation")),
            outcome=outcome,
        )

    @property
    def kept(self) -> Json:
        """What of it is evidence from the first step on: it cannot be found out later."""
        return {} if self.conversation is None else {"conversation": conversation_json(self.conversation)}

    @property
    def unsaved(self) -> dict[str, Any]:
        """What its row lacks, for the next write: evidence, and members where they are others than before."""
        members = None if self.stored[1] == self.members else list(map(member_json, self.members))
        return {"members": members, "evidence": self.evidence}

    @property
    def is_stopping(self) -> bool:
        """Whether its row says already, of the same processes, that they may be stopped: all that a successor needs."""
        return self.step in STOPPING and self.stored[0] in STOPPING and self.stored[1] == self.members

    def intend(self, step: KillStep, members: tuple[TreeMember, ...]) -> None:
        """The next step, about to be committed: it may be even where the answer to that is lost."""
        self.step, self.members = step, members

    def asked(self, step: KillStep) -> None:
        """That step of asking is committed."""
        self.step = step

    def saved(self, step: KillStep) -> None:
        """Its row has that step, and all that is known."""
        self.step, self.stored, self.evidence = step, (step, self.members), None

    def found(self, conversation: Conversation | None) -> None:
        """Which conversation its agent is in."""
        self.conversation = conversation

    def looked(self, snapshot: Json, said: Json) -> None:
        """What its processes were doing, and what each source said of its agent: for the next write."""
        self.evidence = {**snapshot, **self.kept, "said": said}

    def plan(self, grace: timedelta) -> None:
        """An attempt begins that gives this grace."""
        self.planned = grace

    def begin(self) -> None:
        """The first signal is on its way."""
        self.begun = True

    def told(self, outcome: KillOutcome) -> None:
        """How it went, so far or at last."""
        self.outcome = outcome

    def signalled(self, name: str, *, main: bool) -> None:
        """A signal of that name went out; `main`: to the main process, too, to end it."""
        self.main_signalled = self.main_signalled or main
        self.touched, self.killed = True, self.killed or name == "SIGKILL"

    def attempted(self, result: TerminationResult) -> None:
        """Add what one attempt did; what was alive before it and is not in its tree has ended in between."""
        self.result = result = result.after(self.result)
        self.touched = self.touched or result.signalled
        self.killed = self.killed or any("SIGKILL" in member.sent for member in result.members)
        for member in result.members:
            if member.sent or not member.dead or member.seen.identity not in self.processes:
                self.processes[member.seen.identity] = process_json(member.seen, member.how())

    def grace_json(self, grace: Grace) -> Json:
        """The outcome so far, which tells of that grace to an attempt after this one, here or of a successor."""
        self.grace = grace
        note = {"boot_id": boot_id(), "mono": grace.started, "all": grace.everybody}
        return {**({} if self.outcome is None else self.outcome.json()), "termed": note}


def process_json(member: TreeMember, how: str) -> Json:
    """One process of the tree, as an outcome tells of it."""
    return {"pid": member.identity.pid, "name": member.name, "how": how}


def resume_command(agent: Agent, conversation: Conversation | None) -> str | None:
    """The command that takes it up again: of the program that lists it, else of its own, with its directory."""
    told = {entry.kind: entry.resume for entry in agent.reg.entries if entry.resume}
    others = [resume for kind, resume in told.items() if kind not in RESUME]
    own = [] if conversation is None else [conversation.resume]
    return next(iter([*others, *own, *told.values()]), None)


def _grace_of(termed: object, now: float) -> Grace | None:
    """The grace that a row tells of, if it is of this boot; what an edited row says otherwise begins it again."""
    if not isinstance(termed, Mapping) or termed.get("boot_id") != boot_id():
        return None
    mono = termed.get("mono")
    return Grace(mono, termed.get("all") is True) if isinstance(mono, float) and mono <= now else None


class OutcomeWaiters:
    """Whoever waits for the outcome of one order. What could not be ended may be told again."""

    def __init__(self, proved: KillOutcome | None = None) -> None:
        """`proved`: it is dead already, as an earlier daemon found."""
        self._done = asyncio.Event()
        self._proved = asyncio.Event()
        self._result: KillOutcome | None = None  # as it is told; None: not yet
        self._death = proved
        self._cleaned: list[Json] = []  # what hooks that have ended since did
        self._cleaning: tuple[str, ...] = ()  # the one that runs, and those after it that have something to do
        if proved is not None:
            self._proved.set()

    async def wait(self, timeout: float, cleanup: float | None) -> Json | None:
        """The outcome, or None when there is none within `timeout` seconds.

        `cleanup`: so many seconds are waited for the hooks once all of it is proved dead; then it is told so far as it
        has come, with the hooks that are left (`cleanup_left`).
        """
        if cleanup is None:
            await _any_of(timeout, self._done)
            return None if self._result is None else self._result.json()
        await _any_of(timeout, self._done, self._proved)
        if self._proved.is_set():
            await _any_of(cleanup, self._done)
        return self._so_far() if self._result is None else self._result.json()

    def _so_far(self) -> Json | None:
        """What is told to who waits no longer for its cleanup: it is dead, and what is still to be put in order."""
        if self._death is None:
            return None
        return {**self._death.json(), "cleanup": self._cleaned, "cleanup_left": list(self._cleaning)}

    def prove(self, outcome: KillOutcome) -> None:
        """All of it is dead, and that is committed; what was told before, that it could not be ended, holds no more."""
        self._death = outcome
        self.reopen()
        self._proved.set()

    def clean(self, cleaned: list[Json], cleaning: tuple[str, ...]) -> None:
        """How far its cleanup has come."""
        self._cleaned, self._cleaning = cleaned, cleaning

    def tell(self, outcome: KillOutcome) -> None:
        """Let whoever waits for it know how it went."""
        self._result = outcome
        self._done.set()

    def reopen(self) -> None:
        """It goes on: whoever asks from now on waits for what comes of it."""
        self._result = None
        self._done.clear()

    def leave(self) -> None:
        """The daemon stops: nobody waits any longer, and hears "not yet"."""
        self._done.set()


@dataclass(slots=True, eq=False)
class OpenOrder:
    """An order in work: as it is asked for now, what was said about it since, how far it has come."""

    order: KillOrder
    progress: KillProgress = field(default_factory=KillProgress)
    waiters: OutcomeWaiters = field(default_factory=OutcomeWaiters)
    pressed: bool = False  # somebody wants it ended without asking any longer
    wanted: bool = False  # by a person too, whoever ordered it first
    cancelled: str | None = None  # why it is called off, if nothing was signalled yet
    observed: str | None = None  # why nothing is ended at all: called off as well, whoever wants it, or it waits
    again: asyncio.Event = field(default_factory=asyncio.Event)  # somebody wants the next attempt now
    hurry: asyncio.Event = field(default_factory=asyncio.Event)  # somebody wants force in this one

    @property
    def under_way(self) -> bool:
        """Whether it has signalled something, or found that it could not: it is finished, not called off."""
        return self.progress.begun or self.order.agent.status is Status.UNKILLABLE

    def go_on(self, order: KillOrder) -> None:
        """It is asked for otherwise from now on."""
        self.order = order

    def cancel(self, why: str) -> None:
        """Call it off, unless a person wants it or anything was signalled."""
        self.cancelled = why
        self.again.set()

    def refuse(self, why: str | None) -> None:
        """It goes no further, for that reason, unless a person wants it."""
        self.cancelled = why or self.cancelled

    def observe(self, why: str | None) -> None:
        """Only observe from now on, for that reason, or (None) not any more."""
        if self.observed != why:
            self.observed = why
            self.again.set()

    def merge_request(self, reason: Reason, options: KillOptions, by: str, why: str) -> Json | None:
        """A second request while this one is open: what could not be ended is tried at once.

        One that asks nobody ends the asking. Returns the options to be stored, with the order's reason and `by`, if
        any of these changed.
        """
        self.again.set()
        self.pressed = self.pressed or options.ask is None
        former = self.order
        self.order = order = former.merged(reason, options, by, why, begun=self.under_way)
        self.wanted = self.wanted or by != "daemon"
        if order.options.by_root and not former.options.by_root:  # what could not be ended can be now
            self.waiters.reopen()
        if order.options.force and not former.options.force:
            self.hurry.set()
        changed = order.options != former.options or order.reason is not former.reason
        return order.json() if changed else None

    def withdrawal_reason(self, holds: Holds, now: datetime, order: KillOrder | None = None) -> str | None:
        """Why it is called off before the claim, if it is: a heartbeat since the look that decided, or a hold.

        What an earlier boot left is no matter for a hold: there is nobody to spare. `order`: as it is about to be.
        """
        order = order or self.order
        why = self.beat_since_decision(order)
        if why is None and not self.under_way:
            why = self.observed or (None if self.wanted else self.cancelled)
        if why is not None:
            return why
        held = holds.blocking_reason(order.agent.agent_id, now, own=order.by == "daemon" and not self.wanted)
        if self.under_way or held is None or order.reason is Reason.LOST:
            return None
        return f"held before the first signal: {held}"

    def beat_since_decision(self, order: KillOrder | None = None) -> str | None:
        """Whether a beat since the look that decided withdraws it; once a signal was on its way none does."""
        if self.wanted or self.under_way:
            return None
        order = order or self.order
        agent = order.agent
        match order.reason:
            case Reason.STALLED if agent.heartbeat.rhythm.renewed != order.beats:
                return "a heartbeat came before the first signal"
            case Reason.FAILED_TO_START if agent.started:
                return "it has started before the first signal"
            case Reason.LINGERING if agent.heartbeat.said.state is not State.DONE:
                return f"it says {agent.heartbeat.said.state} before the first signal, no longer done"
        return None


async def _any_of(timeout: float, *events: asyncio.Event) -> None:
    """Wait for the first of these, or so many seconds."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
