"""One kill order: what is asked for, how far it has come, how it went, and who waits for its outcome.

`KillOrder` is a value: a change makes another one. Its row in the registry keeps the same as JSON, so that a later
daemon can continue it. `KillOutcome` is a value, too. `OpenOrder` is an order in work, with its `KillProgress` and its
`OutcomeWaiters`: only the worker writes these, by their methods; the stages read them.

This is one module because each stage of a kill reads all of it.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from watchdog.agents.agent import Agent
from watchdog.agents.holds import Holds
from watchdog.core.agent import ENDED, State, Status
from watchdog.core.conversations import Conversation, conversation_json, conversation_of
from watchdog.core.kill import KillOptions, KillStep, Reason
from watchdog.core.ownership import ROOT
from watchdog.core.process import Identity, Presence, TreeMember
from watchdog.kill.terminate import Grace, TerminationResult
from watchdog.processes.identity import boot_id, presence, read_identity
from watchdog.registry.rows import RequestRow

Json = dict[str, object]
AUTOMATIC = frozenset({Reason.STALLED, Reason.EXPIRED, Reason.LINGERING, Reason.FAILED_TO_START})  # the daemon's own
WITHDRAWN_BY_BEAT = AUTOMATIC - {Reason.EXPIRED}  # ordered for lack of a beat, which may still arrive
ASKING = frozenset({KillStep.REQUESTED, KillStep.ASKED, KillStep.PROGRAM, KillStep.KEYS})  # before the claim
BEFORE_SIGNALS = ASKING | {KillStep.LOOKED}  # no signal has been sent
STOPPING = frozenset({KillStep.FREEZE, KillStep.STOP, KillStep.KILL})  # processes may be stopped or frozen by us


@dataclass(frozen=True, slots=True, eq=False)
class KillOrder:
    """What is asked for. `beats`: `Rhythm.renewed` at the decision; if it rises, a kill for a stall is withdrawn."""

    request_id: str
    agent: Agent
    reason: Reason
    options: KillOptions
    by: str
    why: str
    beats: int
    finished: bool = False  # the agent's work was done before this order was given
    resumed: bool = False  # taken up after a restart
    former: str | None = None  # the daemon that had claimed it, and has ended

    @property
    def sender(self) -> int | None:
        """The user with whose rights its signals are sent; None: with the daemon's own.

        The host's daemon is root, which may signal every process: only root may order that. A user's daemon is limited
        by the kernel.
        """
        owner = self.agent.reg.owner_uid
        return None if self.options.by_root or owner == ROOT or os.geteuid() != ROOT else owner

    @property
    def holders(self) -> tuple[str, str | None]:
        """The claims on it that count as ours: this daemon's, and that of the daemon which it succeeds."""
        return daemon_identity(self.agent.reg.host), self.former

    def asked_at(self, step: KillStep) -> bool:
        """Whether the agent has been asked to exit, once the order has come to that step."""
        return self.options.ask is not None and step is not KillStep.REQUESTED

    def ended_by_itself(self, step: KillStep) -> "KillOrder":
        """The same order when the agent exited before the claim: we did not kill it, whatever it left behind."""
        when = "when it was asked to stop" if self.asked_at(step) else "before the kill began"
        return replace(self, reason=Reason.GONE, why=f"it exited by itself {when}")

    def merged(self, reason: Reason, options: KillOptions, by: str, why: str, *, begun: bool) -> "KillOrder":
        """The same order with what a second request asks for; the more forceful option counts.

        The daemon's own order becomes the person's who asks for the same, with that reason, unless it has `begun`: from
        then on no beat, doubt or restart withdraws it. If either asks for no cleanup, there is none.
        """
        order, mine = self, self.options
        if by != "daemon":
            if self.reason in AUTOMATIC and not begun and reason in (Reason.OPERATOR, Reason.STOP):
                order = replace(self, reason=reason, by=by, why=why)
            grace = mine.grace if options.grace is None else options.grace
            cleanup, cancel = mine.cleanup and options.cleanup, mine.cancel or options.cancel
            mine = replace(mine, only_ask=False, grace=grace, cleanup=cleanup, cancel=cancel)
        force, by_root = mine.force or options.force, mine.by_root or options.by_root
        return replace(order, options=replace(mine, force=force, by_root=by_root))

    def json(self) -> dict[str, object]:
        """Its options as its row keeps them; `from_json` reads them."""
        return to_json(self.options, self.beats, self.why, finished=self.finished)


@cache
def daemon_identity(host: str) -> str:
    """This daemon: its host, boot, pid and start ticks."""
    me = read_identity(os.getpid(), host)
    ticks = me.start_ticks if me else 0  # a daemon always sees itself; no process has 0, so it would read as ended
    return f"daemon {os.getpid()} {ticks} of boot {boot_id()} of host {host}"


def claim_is_stale(claimed_by: str | None, host: str) -> bool:
    """Whether no daemon holds the claim any more: there is none, or its daemon's process is proved absent.

    A claim from another boot of this host is stale: that boot is over, or its daemon would be heard (`claim_host`).
    So is text that no daemon of ours wrote: it names no process.
    """
    words = (claimed_by or "").split(" ", 8)
    if len(words) != 9 or not (words[1].isdigit() and words[2].isdigit()):
        return True
    identity = Identity(host=words[8], boot_id=words[5], pid=int(words[1]), start_ticks=int(words[2]))
    if identity.pid == os.getpid() and claimed_by == daemon_identity(host):
        return True  # our own, for an order that we do not know: the answer to our claim was lost
    return presence(identity, None, host=host) is Presence.ABSENT


# -- how it went ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentDeath:
    """The part of an outcome that only an order for a living agent has: how it ended. The rest is in `KillOutcome`."""

    pid: int | None
    task_id: str | None
    task_status: str
    killed_at: datetime
    grace: timedelta | None  # None: no process had to be signalled
    silence: timedelta | None  # since its last beat; None: it has never beaten
    resume: str | None  # the command that resumes its conversation
    conversation: Conversation | None
    stop_reason: str | None
    exit_code: int | None
    exit_signal: int | None


@dataclass(frozen=True, slots=True)
class KillOutcome:
    """How an order went, so far or in the end.

    `error` None: all that was to be killed is dead. `status`: how the agent ended; None while it lives.
    """

    agent_id: str
    message: str
    error: str | None = None
    status: Status | None = None
    killed: bool = False  # TERM was not enough, or was not tried
    processes: tuple[Json, ...] = ()  # how each of them ended
    death: AgentDeath | None = None  # None: its agent lives, or had ended before (orphans)
    cleanup: tuple[Json, ...] | None = None  # what each hook did; None: not yet, or no cleanup was wanted
    stored: Json | None = None  # as an earlier daemon, perhaps of another version, wrote it: kept as it is

    @classmethod
    def of_row(cls, agent_id: str, stored: Mapping[str, object]) -> "tuple[KillOutcome | None, object]":
        """The outcome so far that an earlier daemon committed, if any, and beside it what it noted of a grace."""
        rest = dict(stored)
        termed = rest.pop("termed", None)
        if not rest:
            return None, termed
        error, status = rest.get("error"), rest.get("status")
        told = cls(
            agent_id,
            str(rest.get("message", "")),
            None if error is None else str(error),
            Status(status) if isinstance(status, str) and status in ENDED else None,
            stored=rest,
        )
        return told, termed

    def cleaned(self, runs: Iterable[Json]) -> "KillOutcome":
        """The same with what its hooks did."""
        return replace(self, cleanup=tuple(runs))

    def json(self) -> Json:
        """As the row and the answers have it: keys and their order are those of the first version."""
        told = self._told() if self.stored is None else dict(self.stored)
        if self.cleanup is not None:
            told["cleanup"] = list(self.cleanup)
            if retry := next((run["retry"] for run in self.cleanup if "retry" in run), None):
                told |= {"pane_cleanup_failed": True, "pane_retry_command": retry}  # the kill is a success
        return told

    def _told(self) -> Json:
        if self.error is not None or self.status is None:
            error = {} if self.error is None else {"error": self.error}
            return {"success": self.error is None, **error, "agent_id": self.agent_id, "message": self.message}
        action = "force_kill" if self.killed else "graceful_kill"
        head = {"success": True, "agent_id": self.agent_id, "action": action}
        processes, death = list(self.processes), self.death
        if death is None:
            return {**head, "message": self.message, "status": self.status.value, "processes": processes}
        kept = {} if death.conversation is None else {"conversation": conversation_json(death.conversation)}
        return {
            **head,
            "pid": death.pid,
            "kill_signal": "SIGKILL" if self.killed else "SIGTERM",
            "task_id": death.task_id,
            "killed_at": death.killed_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "grace_period_seconds": None if death.grace is None else death.grace.total_seconds(),
            "killed_gracefully": not self.killed,
            "seconds_since_heartbeat": None if death.silence is None else round(death.silence.total_seconds(), 1),
            "message": self.message,
            "status": self.status.value,
            "resume": death.resume,
            "resumable": death.resume is not None,
            **kept,
            "stop_reason": death.stop_reason,
            "exit_code": death.exit_code,
            "exit_signal": death.exit_signal,
            "processes": processes,
            "task_status": death.task_status,
        }


def withdrawn(agent_id: str, why: str = "withdrawn") -> KillOutcome:
    """The outcome of an order that was withdrawn."""
    return KillOutcome(agent_id, why, "withdrawn")


def result_of(row: RequestRow) -> Json | None:
    """The outcome of an order that only the registry remembers; None while it is open."""
    if row.finished_at is None:
        return None
    return withdrawn(row.agent_id, str(row.outcome["why"])).json() if "why" in row.outcome else row.outcome


# -- how far it has come, and who waits ------------------------------------------------------------------------------


@dataclass(slots=True)
class KillProgress:
    """How far an order has come. `stored`: step and members as this daemon last committed them."""

    step: KillStep = KillStep.REQUESTED
    members: tuple[TreeMember, ...] = ()
    begun: bool = False  # the first signal was about to be sent: no beat withdraws it any more
    main_signalled: bool = False  # its main process may have got a signal, from this daemon or an earlier one
    touched: bool = False  # any process of its tree may have
    killed: bool = False  # and it may have been KILL
    processes: dict[Identity, Json] = field(default_factory=dict)  # how each ended, of all attempts
    result: TerminationResult = field(default_factory=TerminationResult)  # of all attempts together
    planned: timedelta | None = None  # the grace of the last attempt
    grace: Grace | None = None  # that runs
    conversation: Conversation | None = None  # the agent's
    outcome: KillOutcome | None = None  # as its row has it
    stored: tuple[KillStep, tuple[TreeMember, ...]] = (KillStep.REQUESTED, ())
    evidence: Json | None = None  # that no write has included yet

    @classmethod
    def of_row(cls, row: RequestRow, now: float) -> "KillProgress":
        """As an earlier daemon left it: its signals may have been sent, or not. `now`: of the monotonic clock.

        If the row says that TERM was sent, the grace that it gave continues.
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
        """The evidence that is stored from the first step on, since it cannot be found out later."""
        return {} if self.conversation is None else {"conversation": conversation_json(self.conversation)}

    @property
    def unsaved(self) -> dict[str, Any]:
        """What its row lacks, for the next write: evidence, and the members if they have changed."""
        members = None if self.stored[1] == self.members else list(map(member_json, self.members))
        return {"members": members, "evidence": self.evidence}

    @property
    def is_stopping(self) -> bool:
        """Whether its row already says of the same processes that they may be stopped: a later daemon needs no more."""
        return self.step in STOPPING and self.stored[0] in STOPPING and self.stored[1] == self.members

    def intend(self, step: KillStep, members: tuple[TreeMember, ...]) -> None:
        """The next step is about to be committed; it may be, even if the answer to that is lost."""
        self.step, self.members = step, members

    def asked(self, step: KillStep) -> None:
        """This step of asking is committed."""
        self.step = step

    def saved(self, step: KillStep) -> None:
        """Its row has this step, and all that is known."""
        self.step, self.stored, self.evidence = step, (step, self.members), None

    def keep_conversation(self, conversation: Conversation | None) -> None:
        """Keep the agent's conversation, if one was found."""
        self.conversation = conversation

    def keep_evidence(self, snapshot: Json, said: Json) -> None:
        """Keep for the next write what its processes did, and what each source said of the agent."""
        self.evidence = {**snapshot, **self.kept, "said": said}

    def plan(self, grace: timedelta) -> None:
        """An attempt with this grace begins."""
        self.planned = grace

    def begin(self) -> None:
        """The first signal is about to be sent."""
        self.begun = True

    def keep_outcome(self, outcome: KillOutcome) -> None:
        """Keep how it went, so far or in the end."""
        self.outcome = outcome

    def signalled(self, name: str, *, main: bool) -> None:
        """A signal of that name was sent; `main`: also to the main process, to end it."""
        self.main_signalled = self.main_signalled or main
        self.touched, self.killed = True, self.killed or name == "SIGKILL"

    def add_attempt(self, result: TerminationResult) -> None:
        """Add what one attempt did. What was alive before it and is not in its tree any more has ended in between."""
        self.result = result = result.after(self.result)
        self.touched = self.touched or result.signalled
        self.killed = self.killed or any("SIGKILL" in member.sent for member in result.members)
        for member in result.members:
            if member.sent or not member.dead or member.seen.identity not in self.processes:
                self.processes[member.seen.identity] = process_json(member.seen, member.how())

    def grace_json(self, grace: Grace) -> Json:
        """The outcome so far with this grace, so that a later attempt, of this daemon or the next, continues it."""
        self.grace = grace
        note = {"boot_id": boot_id(), "mono": grace.started, "all": grace.everybody}
        return {**({} if self.outcome is None else self.outcome.json()), "termed": note}


def process_json(member: TreeMember, how: str) -> Json:
    """One process of the tree, as an outcome lists it."""
    return {"pid": member.identity.pid, "name": member.name, "how": how}


def _grace_of(termed: object, now: float) -> Grace | None:
    """The grace that a row has, if it is of this boot; anything else, as in an edited row, starts it again."""
    if not isinstance(termed, Mapping) or termed.get("boot_id") != boot_id():
        return None
    mono = termed.get("mono")
    return Grace(mono, termed.get("all") is True) if isinstance(mono, float) and mono <= now else None


class OutcomeWaiters:
    """Lets callers wait for the outcome of one order. One that could not be killed may get another outcome later."""

    def __init__(self, proved: KillOutcome | None = None) -> None:
        """`proved`: the outcome, if an earlier daemon proved the tree dead and left its cleanup."""
        self._done = asyncio.Event()
        self._proved = asyncio.Event()
        self._result: KillOutcome | None = None  # None: not yet
        self._death = proved
        self._cleaned: list[Json] = []  # what the hooks did that have ended since
        self._cleaning: tuple[str, ...] = ()  # the hook that runs, and those still to be run
        if proved is not None:
            self._proved.set()

    async def wait(self, timeout: float, cleanup: float | None) -> Json | None:
        """The outcome, or None when there is none within `timeout` seconds.

        `cleanup`: how many seconds to wait for the hooks once the tree is proved dead. After that the outcome so far is
        returned, with the hooks that are left (`cleanup_left`).
        """
        if cleanup is None:
            await _any_of(timeout, self._done)
            return None if self._result is None else self._result.json()
        await _any_of(timeout, self._done, self._proved)
        if self._proved.is_set():
            await _any_of(cleanup, self._done)
        return self._so_far() if self._result is None else self._result.json()

    def _so_far(self) -> Json | None:
        """For a caller that waits no longer for the cleanup: how it died, and which hooks are left."""
        if self._death is None:
            return None
        return {**self._death.json(), "cleanup": self._cleaned, "cleanup_left": list(self._cleaning)}

    def prove(self, outcome: KillOutcome) -> None:
        """All of it is dead, and that is committed. An earlier outcome, that it could not be killed, is void."""
        self._death = outcome
        self.reopen()
        self._proved.set()

    def clean(self, cleaned: list[Json], cleaning: tuple[str, ...]) -> None:
        """Keep how far its cleanup has come."""
        self._cleaned, self._cleaning = cleaned, cleaning

    def tell(self, outcome: KillOutcome) -> None:
        """Give this outcome to all that wait for it."""
        self._result = outcome
        self._done.set()

    def reopen(self) -> None:
        """It continues: callers from now on wait for a new outcome."""
        self._result = None
        self._done.clear()

    def leave(self) -> None:
        """The daemon stops: all that wait get "not yet"."""
        self._done.set()


@dataclass(slots=True, eq=False)
class OpenOrder:
    """An order in work: what is asked for now, what was asked for since it began, how far it has come."""

    order: KillOrder
    progress: KillProgress = field(default_factory=KillProgress)
    waiters: OutcomeWaiters = field(default_factory=OutcomeWaiters)
    pressed: bool = False  # a later request does not ask the agent first: the asking ends
    wanted: bool = False  # a person wants it too, even if the daemon ordered it first
    cancelled: str | None = None  # why it is withdrawn, unless it is `wanted` or under way
    # Why the daemon kills nothing now (observe mode): withdrawn even if it is `wanted`; if it is under way, it waits.
    observed: str | None = None
    again: asyncio.Event = field(default_factory=asyncio.Event)  # the next attempt is wanted now
    hurry: asyncio.Event = field(default_factory=asyncio.Event)  # force is wanted in the current attempt

    @property
    def under_way(self) -> bool:
        """Whether it has sent a signal, or found that it may not: then it is finished, not withdrawn."""
        return self.progress.begun or self.order.agent.status is Status.UNKILLABLE

    def become(self, order: KillOrder) -> None:
        """Continue as this order: the same one, with something changed."""
        self.order = order

    def cancel(self, why: str) -> None:
        """Withdraw it for this reason, unless a person wants it or a signal was sent."""
        self.cancelled = why
        self.again.set()

    def refuse(self, why: str | None) -> None:
        """As `cancel`, when an agent that was only to be asked has not exited. None: it is killed."""
        self.cancelled = why or self.cancelled

    def observe(self, why: str | None) -> None:
        """Only observe from now on, for this reason; None: no longer."""
        if self.observed != why:
            self.observed = why
            self.again.set()

    def merge_request(self, reason: Reason, options: KillOptions, by: str, why: str) -> Json | None:
        """Take in a second request while this order is open. What could not be killed is tried again at once.

        A request that does not ask first ends the asking. Returns the options to be stored, with the order's reason and
        `by`, if any of these changed.
        """
        self.again.set()
        self.pressed = self.pressed or options.ask is None
        former = self.order
        self.order = order = former.merged(reason, options, by, why, begun=self.under_way)
        self.wanted = self.wanted or by != "daemon"
        if order.options.by_root and not former.options.by_root:  # what could not be killed can be now
            self.waiters.reopen()
        if order.options.force and not former.options.force:
            self.hurry.set()
        changed = order.options != former.options or order.reason is not former.reason
        return order.json() if changed else None

    def withdrawal_reason(self, holds: Holds, now: datetime, order: KillOrder | None = None) -> str | None:
        """Why it is withdrawn before its first signal, if it is: a beat since the look that decided, or a hold.

        A hold does not matter for an agent of an earlier boot: no process is left to spare. `order`: as it is about to
        become.
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
        """Why a beat since the look that decided withdraws it, if it does; once a signal was sent none does."""
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


# -- as its row has it -----------------------------------------------------------------------------------------------


_MEMBER, _IDENTITY = (tuple(field.name for field in fields(kind)) for kind in (TreeMember, Identity))


def to_json(options: KillOptions, beats: int, why: str, *, finished: bool | None = None) -> dict[str, object]:
    """As its row keeps them. `finished`: whether the agent's work was done by then; None: not known."""
    return {
        "force": options.force,
        "grace_seconds": None if options.grace is None else options.grace.total_seconds(),
        "cleanup": options.cleanup,
        "ask_seconds": None if options.ask is None else options.ask.total_seconds(),
        "only_ask": options.only_ask,
        "cancel": options.cancel,
        "with_messages": options.with_messages,
        "by_root": options.by_root,
        "beats": beats,
        "why": why,
        "finished": finished,
    }


def from_json(stored: dict[str, object]) -> tuple[KillOptions, int, str]:
    beats = stored.get("beats")
    options = KillOptions(
        force=stored.get("force") is True,
        grace=_seconds(stored.get("grace_seconds")),
        cleanup=stored.get("cleanup") is not False,
        ask=_seconds(stored.get("ask_seconds")),
        only_ask=stored.get("only_ask") is True,
        cancel=stored.get("cancel") is True,
        with_messages=stored.get("with_messages") is True,
        by_root=stored.get("by_root") is True,
    )
    return options, beats if isinstance(beats, int) else 0, str(stored.get("why", ""))


def _seconds(stored: object) -> timedelta | None:
    return timedelta(seconds=stored) if isinstance(stored, int | float) else None


def member_json(member: TreeMember) -> dict[str, object]:
    """As `member_of` reads it. Not asdict(), which copies each value deeply."""
    flat = {name: getattr(member, name) for name in _MEMBER}
    return {**flat, "identity": {name: getattr(member.identity, name) for name in _IDENTITY}}


def member_of(stored: dict[str, object]) -> TreeMember:
    """A member as it was committed. It is only a memory: `pin` asks the kernel before anything is done with it."""
    facts = dict(stored)
    identity = facts.pop("identity")
    if not isinstance(identity, dict):
        raise TypeError(f"a member of a kill request has no identity: {stored}")
    return TreeMember(identity=Identity(**identity), **facts)  # type: ignore[arg-type] # checked by its constructor's use
