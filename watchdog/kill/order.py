"""A kill request in memory: what was asked for, how far it has come, and how its outcome is told.

Values and words only; `kill_worker` acts. The registry keeps the same as JSON, so a later daemon can go on with it.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cache

from watchdog.agents.fleet import Agent
from watchdog.agents.holds import Holds
from watchdog.concurrency.lanes import Lane
from watchdog.core.agent import State, Status
from watchdog.core.conversations import RESUME, Conversation, conversation_json
from watchdog.core.kill import KillOptions, KillStep, Polite, Reason
from watchdog.core.ownership import ROOT
from watchdog.core.process import Identity, Presence, TreeMember
from watchdog.kill.outcome import KillOutcome
from watchdog.kill.terminate import TerminationPlan, TerminationResult
from watchdog.processes.identity import boot_id, presence, read_identity

AUTOMATIC = frozenset({Reason.STALLED, Reason.EXPIRED, Reason.LINGERING, Reason.FAILED_TO_START})
WITHDRAWN_BY_BEAT = AUTOMATIC - {Reason.EXPIRED}  # for want of a word, which may still come
ASKING = frozenset({KillStep.REQUESTED, KillStep.ASKED, KillStep.PROGRAM, KillStep.KEYS})  # before the claim
BEFORE_SIGNALS = ASKING | {KillStep.LOOKED}  # at which nothing has been signalled
STOPPING = frozenset({KillStep.FREEZE, KillStep.STOP, KillStep.KILL})  # processes may be stopped or frozen by us
FAULTS = frozenset(  # that the kernel, or abort(3), sends for what a process itself did (signal(7))
    getattr(signal, f"SIG{name}") for name in ["ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP", "XCPU", "XFSZ"]
)


MOST_SAID, LONGEST_SAID = 1000, 100  # things that are told of one order, and characters of each that are kept


@dataclass(slots=True)
class Order:
    """A kill request in memory. `beats` is the agent's count when it was decided: one more withdraws a stall."""

    request_id: str
    agent: Agent
    reason: Reason
    options: KillOptions
    by: str
    why: str
    beats: int
    step: KillStep = KillStep.REQUESTED
    resumed: bool = False  # taken up after a restart
    former: str | None = None  # the daemon, gone now, that had claimed it
    signalled: bool = False  # the main process may have got a signal of ours, from this daemon or a former one
    touched: bool = False  # anybody of its tree may have
    begun: bool = False  # the first signal was on its way: no beat withdraws it any more
    killed: bool = False  # and it may have been KILL
    asked: bool = False  # it was asked to end by itself
    finished: bool = False  # its work was done before any of this began
    pressed: bool = False  # somebody wants it ended without asking any longer
    wanted: bool = False  # by a person too, whoever ordered it first
    vetoed: str | None = None  # why it is called off, if nothing was signalled yet
    stayed: str | None = None  # why nobody is ended at all: called off as well, whoever wants it, or it waits
    processes: dict[Identity, dict[str, object]] = field(default_factory=dict)  # of all attempts, how each ended
    shortage: str | None = None  # the kernel ended it for want of memory
    members: tuple[TreeMember, ...] = ()
    evidence: dict[str, object] | None = None  # that no write has taken along yet
    stored: tuple[KillStep, tuple[TreeMember, ...]] = (
        KillStep.REQUESTED,
        (),
    )  # step and members, as this daemon has committed them last
    plan: TerminationPlan | None = None
    outcome: KillOutcome | None = None  # as the row has it
    result: dict[str, object] | None = None  # as it is told to who waits; None: not yet
    ended: TerminationResult = field(default_factory=TerminationResult)  # how far the attempts have come
    again: asyncio.Event = field(default_factory=asyncio.Event)  # somebody wants the next attempt now
    done: asyncio.Event = field(default_factory=asyncio.Event)
    proved: asyncio.Event = field(default_factory=asyncio.Event)  # all of it is dead, and that is committed
    cleaned: list[dict[str, object]] = field(default_factory=list)  # what hooks that have ended since did
    cleaning: tuple[str, ...] = ()  # the one that runs, and those after it that have something to do
    conversation: Conversation | None = None  # that its agent was in
    termed: tuple[float, bool] | None = None  # when the grace began, by this boot's monotonic clock; whether of all
    lane: Lane = field(default_factory=Lane)  # whose work it is
    left: int = 0  # rows of history on what could not be ended
    said: set[str] = field(default_factory=set)  # troubles and signals that were told: attempts repeat them

    def first(self, words: str) -> bool:
        """Whether this was not told of it yet; False, too, when a thousand other things were."""
        key = words if len(words) < LONGEST_SAID else f"{words[:LONGEST_SAID]} {hash(words)}"
        if key in self.said or len(self.said) >= MOST_SAID:
            return False
        self.said.add(key)
        return True

    @property
    def resume(self) -> str | None:
        """The command that takes it up again: of the program that lists it, else of its own, with its directory."""
        told = {entry.kind: entry.resume for entry in self.agent.reg.entries if entry.resume}
        others = [resume for kind, resume in told.items() if kind not in RESUME]
        own = [] if self.conversation is None else [self.conversation.resume]
        return next(iter([*others, *own, *told.values()]), None)

    @property
    def kept(self) -> dict[str, object]:
        """What of it is evidence from the first step on: it cannot be found out later."""
        return {} if self.conversation is None else {"conversation": conversation_json(self.conversation)}

    @property
    def sender(self) -> int | None:
        """The user by whose right its signals are sent; None: by the daemon's own.

        The host's daemon is root, which may signal all: only root orders that. A user's daemon is told by the kernel.
        """
        owner = self.agent.reg.owner_uid
        return None if self.options.by_root or owner == ROOT or os.geteuid() != ROOT else owner

    @property
    def under_way(self) -> bool:
        """Whether it has signalled somebody, or found that it could not: it is finished, not called off."""
        return self.begun or self.agent.status is Status.UNKILLABLE

    @property
    def urgent(self) -> bool:
        """Whether root or an admin wants it: it waits for no turn."""
        return self.lane.user is None and self.by != "daemon"

    @property
    def holders(self) -> tuple[str, str | None]:
        """Whose claim on it is ours to use: this daemon's, or that of the one whom it succeeds."""
        return daemon_identity(self.agent.reg.host), self.former

    def take_over(self, stored: Mapping[str, object], now: float) -> None:
        """An earlier daemon came as far as `step` with `members`: its signals may have gone out, or not.

        `stored`: the outcome so far, of its row.

        Where it says that they have got TERM, the grace goes on that it gave; `now` is of the monotonic clock.
        """
        self.resumed = True
        self.outcome, termed = KillOutcome.of_row(self.agent.agent_id, stored)
        if isinstance(termed, dict) and termed.get("boot_id") == boot_id() and isinstance(termed.get("mono"), float):
            self.termed = (termed["mono"], termed.get("all") is True) if termed["mono"] <= now else None
        if self.step is KillStep.CLEANUP:
            self.proved.set()
        self.asked = self.options.ask is not None and self.step is not KillStep.REQUESTED
        self.signalled = self.step not in BEFORE_SIGNALS | {KillStep.TERM_REST}
        self.touched = self.begun = self.step not in BEFORE_SIGNALS
        self.killed = self.step in STOPPING
        if self.agent.status is Status.UNKILLABLE:
            self.said.add("unkillable")  # it was told before its row got that status
        how = f"after {'SIGKILL' if self.killed else 'SIGTERM'}" if self.touched else "by itself"
        for member in self.members:
            self.processes[member.identity] = _process(member, f"{how}, while no daemon was there")

    def have_termed(self, started: float, everybody: bool) -> dict[str, object]:
        """The outcome so far, which tells of this grace to an attempt after this one, here or of a successor."""
        self.termed = started, everybody
        return {**self.outcome_json, "termed": {"boot_id": boot_id(), "mono": started, "all": everybody}}

    def planned(self) -> TerminationPlan:
        """What one attempt is to do."""
        agent, options = self.agent, self.options
        return TerminationPlan(
            agent_id=agent.agent_id,
            main=agent.identity,
            grace=agent.policy.grace if options.grace is None else options.grace,
            verify=agent.policy.verify,
            polite=Polite.ALL if self.reason is Reason.GONE else agent.policy.polite,
            force=options.force,
            cgroup=agent.cgroup,
            main_pidfd=agent.pidfd,
            begun=self.step not in BEFORE_SIGNALS,
            stopped=self.members if self.step in STOPPING else (),
            termed=self.termed,
        )

    def attempted(self, ended: TerminationResult) -> None:
        """Add what one attempt did; who was alive before it and is not on its roll has ended in between."""
        self.touched = self.touched or ended.signalled
        self.killed = self.killed or any("SIGKILL" in member.sent for member in ended.members)
        for member in ended.members:
            if member.sent or not member.dead or member.seen.identity not in self.processes:
                self.processes[member.seen.identity] = _process(member.seen, member.how())

    def prove(self) -> None:
        """All of it is dead, and that is committed; what was told before, that it could not be ended, holds no more."""
        self.step, self.result = KillStep.CLEANUP, None
        self.done.clear()
        self.proved.set()

    def clean(self, cleaned: list[dict[str, object]], cleaning: tuple[str, ...]) -> None:
        """How far its cleanup has come."""
        self.cleaned, self.cleaning = cleaned, cleaning

    @property
    def so_far(self) -> dict[str, object] | None:
        """What is told to who waits no longer for its cleanup: it is dead, and what is still to be put in order."""
        if not self.proved.is_set():
            return None
        return {**self.outcome_json, "cleanup": self.cleaned, "cleanup_left": list(self.cleaning)}

    @property
    def outcome_json(self) -> dict[str, object]:
        """The outcome so far; empty while there is none."""
        return {} if self.outcome is None else self.outcome.json()

    def tell(self, result: KillOutcome) -> None:
        """Let who waits for it know how it went; what could not be ended may be told again."""
        self.result = result.json()
        self.done.set()

    def press(self, reason: Reason, options: KillOptions, by: str, why: str) -> dict[str, object] | None:
        """A second request while this one is open: more force counts, and what could not be ended is tried at once.

        One that asks nobody ends the asking. The daemon's own becomes the person's who wants the same, for his reason:
        no heartbeat, no doubt and no restart calls it off. Who wants no cleanup gets none. Returns the options to be
        stored, with `reason` and `by`, if any of these changed.
        """
        self.again.set()
        self.pressed = self.pressed or options.ask is None
        mine, theirs, former = self.options, options, self.reason
        if by != "daemon":
            self.wanted = True
            if former in AUTOMATIC and not self.under_way and reason in (Reason.OPERATOR, Reason.STOP):
                self.reason, self.by, self.why = reason, by, why
            grace = mine.grace if theirs.grace is None else theirs.grace
            cleanup, cancel = mine.cleanup and theirs.cleanup, mine.cancel or theirs.cancel
            mine = replace(mine, only_ask=False, grace=grace, cleanup=cleanup, cancel=cancel)
        if theirs.by_root and not mine.by_root:  # what could not be ended can be now: who asks waits for that
            mine = replace(mine, by_root=True)
            self.result = None
            self.done.clear()
        if theirs.force and not mine.force:
            mine = replace(mine, force=True)
            if self.plan is not None:
                self.plan.hurry.set()
        changed = mine != self.options or self.reason is not former
        self.options = mine
        return to_json(mine, self.beats, self.why, finished=self.finished) if changed else None

    def reprieve(self, holds: Holds, now: datetime) -> str | None:
        """Why it is called off before the claim, if it is: a heartbeat since the look that decided, or a hold.

        What an earlier boot left is no matter for a hold: there is nobody to spare.
        """
        agent = self.agent
        why = self.spoke() or (None if self.under_way else self.stayed or (None if self.wanted else self.vetoed))
        if why is not None:
            return why
        held = holds.against(agent.agent_id, now, own=self.by == "daemon" and not self.wanted)
        return (
            None
            if self.under_way or held is None or self.reason is Reason.LOST
            else f"held before the first signal: {held}"
        )

    def spoke(self) -> str | None:
        """Whether a word since the look that decided withdraws it; once a signal was on its way none does."""
        agent = self.agent
        if self.wanted or self.under_way:
            return None
        match self.reason:
            case Reason.STALLED if agent.renewed != self.beats:
                return "a heartbeat came before the first signal"
            case Reason.FAILED_TO_START if agent.started:
                return "it has started before the first signal"
            case Reason.LINGERING if agent.state is not State.DONE:
                return f"it says {agent.state} before the first signal, no longer done"
        return None


def _process(member: TreeMember, how: str) -> dict[str, object]:
    return {"pid": member.identity.pid, "name": member.name, "how": how}


def status_of(order: Order, agent: Agent) -> Status:
    """How the agent ended. Who was never signalled ended by himself, whatever we were about to do."""
    match Reason.GONE if by_itself(order) else order.reason:
        case Reason.GONE:
            # Who has a `run` has a witness: where that one is silent it was killed too, and nobody saw a success.
            unseen = not agent.exit_known and agent.reg.source == "run"
            well = not unseen and not agent.exit_code and not agent.exit_signal and not _ended_with_a_part(order)
            return Status.COMPLETED if well else Status.FAILED
        case Reason.FAILED_TO_START:
            return Status.FAILED
        case Reason.LOST:
            return Status.LOST
        case Reason.STOP:
            return Status.STOPPED
        case _:
            return Status.KILLED


def by_itself(order: Order) -> bool:
    """Whether it ended before anything was done to it."""
    return order.reason is Reason.GONE or (
        order.reason in AUTOMATIC and not order.signalled and order.agent.identity is not None
    )


def told(order: Order) -> str:
    """One sentence on how it ended."""
    agent, count = order.agent, len(order.processes)
    if order.reason is Reason.LOST:
        return "its host was restarted; none of its processes can live"
    if by_itself(order):
        part = _ended_with_a_part(order)
        if order.shortage:
            end = order.shortage
        elif part:
            end = f"a further process of it ended, and its main process was then ended {_force(order)}"
        elif agent.exit_signal:
            whose = "a crash, or sent by another process" if agent.exit_signal in FAULTS else "sent by another process"
            end = f"killed by signal {agent.exit_signal} ({whose})"
        elif agent.exit_code is None:
            end = "exited by itself, exit status unknown"
        else:
            end = f"exited by itself with status {agent.exit_code}"
        end += f" ({agent.exit_told})" if agent.exit_told and not order.shortage and not part else ""
        left = sum("after" in str(process["how"]) for process in order.processes.values()) - part
        return f"{end}; {left} process{'' if left == 1 else 'es'} that it left behind killed" if left else end
    if not order.touched:
        if agent.identity is None:
            return "no pid was ever registered, so there was nothing to kill"
        return "it exited by itself when it was asked to stop" if order.asked else "no process of it was left to kill"
    return f"{order.reason}: {count} process{'' if count == 1 else 'es'} ended {_force(order)}"


def _ended_with_a_part(order: Order) -> bool:
    """Whether we ended a main process that lived, because a further one (the harness in its wrapper) had ended."""
    main = None if order.agent.identity is None else order.processes.get(order.agent.identity)
    return order.reason is Reason.GONE and order.signalled and main is not None and "after" in str(main["how"])


def _force(order: Order) -> str:
    if order.killed:
        return "by KILL" if order.options.force else "by KILL, TERM was not enough"
    return "on TERM"


def task_of(order: Order, agent: Agent, status: Status) -> tuple[str, str | None]:
    """The task's new status and error message.

    Work that was finished is completed, whatever became of its agent afterwards; an exit status that is not 0 is its
    own later word.
    """
    if order.options.cancel:
        return "cancelled", f"cancelled by {order.by}: {order.why}"
    if status is Status.COMPLETED or (order.finished and not (status is Status.FAILED and agent.exit_code)):
        return "completed", None
    failed = status not in (Status.LOST, Status.KILLED, Status.STOPPED)
    return "failed" if failed else agent.policy.task_status, error_of(order, status)


def error_of(order: Order, status: Status) -> str | None:
    """Why the agent is no success, in words; None: it is one."""
    match status:
        case Status.COMPLETED:
            return None
        case Status.LOST:
            return "Agent lost: its host was restarted"
        case Status.KILLED | Status.STOPPED if order.options.cancel:
            return f"cancelled by {order.by}: {order.why}"
        case Status.KILLED:
            return f"Agent killed: {order.why}"
        case Status.STOPPED:
            return f"Agent stopped: {order.why}"
        case _:
            return f"Agent failed: {order.why if order.outcome is None else order.outcome.message}"


@cache
def daemon_identity(host: str) -> str:
    """This daemon: its host, boot, pid and start ticks."""
    me = read_identity(os.getpid(), host)
    ticks = me.start_ticks if me else 0  # a daemon always sees itself; 0 is nobody's, so it reads as gone
    return f"daemon {os.getpid()} {ticks} of boot {boot_id()} of host {host}"


def claim_is_stale(claimed_by: str | None, host: str) -> bool:
    """Whether nobody holds the claim any more: there is none, or its daemon's process is proved absent.

    A claim of another boot of this host is nobody's: that boot is over, or its daemon would be heard (`claim_host`).
    Text that no daemon of ours wrote names no process, so nobody can be asked.
    """
    words = (claimed_by or "").split(" ", 8)
    if len(words) != 9 or not (words[1].isdigit() and words[2].isdigit()):
        return True
    identity = Identity(host=words[8], boot_id=words[5], pid=int(words[1]), start_ticks=int(words[2]))
    if identity.pid == os.getpid() and claimed_by == daemon_identity(host):
        return True  # our own, and we know of no such order: the answer to our claim was lost
    return presence(identity, None, host=host) is Presence.ABSENT


_MEMBER, _IDENTITY = (tuple(field.name for field in fields(kind)) for kind in (TreeMember, Identity))


def to_json(options: KillOptions, beats: int, why: str, *, finished: bool | None = None) -> dict[str, object]:
    """`finished`: whether the agent's work was done by then; None: who orders does not know."""
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
    """As `member_of` reads it back. Not asdict(), which copies each value deeply."""
    flat = {name: getattr(member, name) for name in _MEMBER}
    return {**flat, "identity": {name: getattr(member.identity, name) for name in _IDENTITY}}


def member_of(stored: dict[str, object]) -> TreeMember:
    """A member as it was committed. A stored one is only a memory: `pin` asks the kernel before anything is done."""
    facts = dict(stored)
    identity = facts.pop("identity")
    if not isinstance(identity, dict):
        raise TypeError(f"a member of a kill request has no identity: {stored}")
    return TreeMember(identity=Identity(**identity), **facts)  # type: ignore[arg-type] # checked by its constructor's use
