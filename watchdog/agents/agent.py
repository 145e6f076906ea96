"""One watched run: its registration and the state kept about it, each part changed only by its own methods.

Only the event loop touches it; nothing here does I/O beyond closing a pidfd.
"""

import asyncio
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from watchdog.agents.ages import Elapsed
from watchdog.agents.exit import Exit
from watchdog.agents.heartbeat import Heartbeat
from watchdog.agents.silence import Silence, SilenceLimits
from watchdog.agents.tree import Tree
from watchdog.core.agent import Beat, Policy, Registration, Status, Verdict
from watchdog.core.custody import Holder
from watchdog.core.kill import Step, StopAsked
from watchdog.core.observed_activity import ObservedActivity
from watchdog.core.process import Identity, Presence
from watchdog.core.verdict import Judgement, span

ZERO = timedelta()


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """The rest of its time to live. None: unlimited."""

    left: timedelta | None = None
    # how long before its expiry a warning is due: a tenth of the time to live, at most five minutes
    warning: timedelta = ZERO

    @property
    def ends_soon(self) -> bool:
        return self.left is not None and ZERO < self.left <= self.warning


NO_END = TimeLeft()


@dataclass(slots=True)
class LadderPlace:
    """The ladder step taken last in this spell of trouble, with the agent's age and beat count at that time."""

    rung: Step | None = None
    at: timedelta = ZERO
    renewed: int = 0  # `Rhythm.renewed` at that time; a higher count means that the agent obeyed

    def climb(self, rung: Step | None, heartbeat: Heartbeat) -> None:
        """Record that the agent is at this step now (None: at none)."""
        self.rung, self.at, self.renewed = rung, heartbeat.ages.age, heartbeat.rhythm.renewed


@dataclass(slots=True)
class Judged:
    """Results of the sweeps: the last verdict and its line, and what the next judgement is compared with."""

    verdict: Verdict | None = None
    line: str = ""
    presence: Presence = Presence.ALIVE
    hangs: str | None = None  # the file of its main process whose read hung at the last check
    beats_judged: int = 0  # number of beats at the last verdict
    renewed_judged: int = 0  # `Rhythm.renewed` at the last verdict; a higher count makes the verdict outdated
    scan_age: timedelta | None = None  # in a copy for display: the age of its process information
    kill_due_since: float | None = None  # monotonic instant since which its silence justifies killing it
    first_look: bool = True

    def hung(self, path: str | None) -> None:
        """Record which file of its main process hangs when read (None: none)."""
        self.hangs = path

    def saw(self, presence: Presence) -> None:
        """Record the kernel's view of its main process."""
        self.presence = presence

    def remember(self, judgement: Judgement, now: float, beats: int, renewed: int) -> None:
        """Remember a verdict."""
        self.verdict, self.line = judgement.verdict, judgement.line
        self.beats_judged, self.renewed_judged = beats, renewed
        if judgement.verdict is not Verdict.STALLED and not judgement.overdue:
            self.kill_due_since = None
        elif self.kill_due_since is None:
            self.kill_due_since = now
        if judgement.verdict not in (Verdict.LATE, Verdict.STALLED):
            self.first_look = False

    def clear_kill_due(self) -> None:
        """Its silence no longer justifies killing it."""
        self.kill_due_since = None

    def shown(self, judgement: Judgement, since: timedelta, beats: int) -> None:
        """In a copy for display: update the verdict by the present ages. `since`: time since the last sweep.

        A verdict that changed only by time is left to the next sweep, which reports it; a beat since then counts at
        once.
        """
        spoke = beats != self.beats_judged
        if judgement.verdict is self.verdict or (spoke and judgement.verdict in (Verdict.HEALTHY, Verdict.WAITING)):
            self.verdict, self.line = judgement.verdict, judgement.line
        elif self.verdict is not Verdict.HEALTHY and self.line:
            self.line += f" ({span(since)} ago)"

    def scanned_before(self, age: timedelta) -> None:
        """In a copy for display: record the age of its process information."""
        self.scan_age = age

    def restore(self, verdict: Verdict | None, beats: int) -> None:
        """Restore the verdict that an earlier daemon reported, and the number of beats at that time."""
        self.verdict, self.beats_judged = verdict, beats

    def written(self, verdict: Verdict | None, line: str) -> None:
        """For an agent that is not judged here: take the verdict of its row."""
        self.verdict, self.line = verdict, line


@dataclass(slots=True)
class EndingState:
    """What other parts need to know of a kill order for the agent; empty while there is none (see `kill.order`)."""

    request_id: str | None = None
    ordering: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while a kill order for it is committed
    why: str = ""  # the reason, if the order is not the daemon's own
    asked: StopAsked | None = None
    lives_on: str | None = None  # what could not be killed in the last attempt

    def begin(self, request_id: str, why: str = "") -> None:
        """A kill order was opened."""
        self.request_id, self.why = request_id, why

    def over(self) -> None:
        """No kill order is open any more."""
        self.request_id = None

    def withdrawn(self) -> None:
        """The kill was withdrawn: the agent keeps running and is no longer asked to stop."""
        self.request_id = self.asked = None

    def ask(self, asked: StopAsked) -> None:
        """Answer its beats with this stop request from now on."""
        self.asked = asked

    def heard(self) -> None:
        """A beat was answered with the stop request, and the client reads answers."""
        if self.asked is not None:
            self.asked = replace(self.asked, heard=True)

    def survived(self, what: str) -> None:
        """Record what was still running after an attempt."""
        self.lives_on = what


@dataclass(slots=True)
class OwnerState:
    """The present owner, by the last check of its process (`ownership`) and by reports of other daemons (`custody`)."""

    dropping: int | None = None  # the uid to which its process dropped from root, until that is committed
    untouchable: str | None = None  # why nothing may be done as its owner
    unseen: str | None = None  # why the last check failed
    elsewhere: Holder | None = None  # the other daemon that it belongs to

    def drops_to(self, uid: int | None) -> None:
        """Its process dropped to that uid (None: the drop is committed)."""
        self.dropping = uid

    def touchable(self, why_not: str | None) -> None:
        """Record why nothing may be done as its owner (None: everything may)."""
        self.untouchable = why_not

    def hidden(self, why: str | None) -> None:
        """Record why the owner of its process cannot be seen (None: it can)."""
        self.unseen = why

    def held_by(self, holder: Holder | None) -> None:
        """Record which daemon it belongs to (None: this one)."""
        self.elsewhere = holder


MOST_WORDS = 5  # reports of one kind with text from other programs, per condition of an agent


@dataclass(slots=True)
class Reported:
    """What was already reported: in its present condition, about refused messages, and once per run of this daemon."""

    events: set[str] = field(default_factory=set)  # reported once in the present condition
    refused: set[str] = field(default_factory=set)  # refused messages about it, each reported once
    needed_human: bool = False  # reported, and not answered yet
    # it was late and is healthy without a beat of its own: its next beat is reported as its recovery
    recovering: bool = False
    expiry_reported: bool = False
    cap_reported: bool = False
    untouchable_reported: bool = False

    def first(self, key: str, kind: str = "") -> bool:
        """Whether to report this: True unless it was already reported in the present condition.

        `kind`: a common prefix of keys that contain text from other programs; at most five of a kind are reported.
        """
        if key in self.events or (kind and sum(one.startswith(kind) for one in self.events) >= MOST_WORDS):
            return False
        self.events.add(key)
        return True

    def first_refusal(self, key: str, kind: str) -> bool:
        """Like `first`, but for refused messages, which do not depend on the agent's condition."""
        if key in self.refused or sum(one.startswith(kind) for one in self.refused) >= MOST_WORDS:
            return False
        self.refused.add(key)
        return True

    def begin_condition(self) -> None:
        """A new condition: everything may be reported again."""
        self.events.clear()

    def human(self, *, needed: bool) -> None:
        """It was reported that it waits for a human, or that it no longer does."""
        self.needed_human = needed

    def recover(self, *, later: bool) -> None:
        """Its recovery is to be reported with its next beat (`later`), or was reported."""
        self.recovering = later

    def expiry(self, *, reported: bool = True) -> None:
        """It was reported that its time is nearly up."""
        self.expiry_reported = reported

    def cap(self) -> None:
        """It was reported that it asked for too long a time."""
        self.cap_reported = True

    def untouchable(self) -> None:
        """It was reported that nothing is done as its owner."""
        self.untouchable_reported = True


@dataclass(slots=True)
class Agent:
    """Registration, status and the parts."""

    reg: Registration
    policy: Policy
    status: Status
    notify_socket: str | None = None
    heartbeat: Heartbeat = field(init=False)
    sights: ObservedActivity = field(default_factory=ObservedActivity)  # activity observed from outside
    tree: Tree = field(default_factory=Tree)
    exit: Exit = field(default_factory=Exit)
    judged: Judged = field(default_factory=Judged)
    ladder: LadderPlace = field(default_factory=LadderPlace)
    ending: EndingState = field(default_factory=EndingState)
    owner: OwnerState = field(default_factory=OwnerState)
    reported: Reported = field(default_factory=Reported)
    perhaps: dict[str, str] = field(default_factory=dict)  # by id: agents for sessions that this one may have started

    def __post_init__(self) -> None:
        self.heartbeat = Heartbeat(Silence(SilenceLimits.of(self.reg, self.policy)))

    @property
    def agent_id(self) -> str:
        return self.reg.agent_id

    @property
    def identity(self) -> Identity | None:
        return self.reg.identity

    @property
    def processes(self) -> frozenset[tuple[int, int]]:
        """Its main process and its tree, as (pid, start ticks)."""
        known = [member.identity for member in self.tree.members]
        known += [self.identity] if self.identity is not None else []
        return frozenset([(one.pid, one.start_ticks) for one in known])

    @property
    def started(self) -> bool:
        """Whether it has started: by its first beat if it promised beats, or by having a process."""
        if self.heartbeat.said.promised:
            return self.heartbeat.rhythm.beats > 0
        return self.identity is not None or bool(self.tree.members)

    @property
    def in_question(self) -> bool:
        """Whether it has been silent for so long that its observed activity may soon decide."""
        beat = self.heartbeat
        if not beat.said.promised or self.ending.request_id is not None:
            return False
        if 4 * beat.silence.lasted < beat.silence.after and not beat.stuck:
            return False
        return not beat.excused

    @property
    def activity(self) -> str | None:
        """The most recent activity observed from outside; it counts for half of the allowed silence."""
        if not self.sights.seen:
            return None
        return self.sights.best(max(self.heartbeat.silence.after / 2, self.heartbeat.silence.sweep_span))

    @property
    def ttl(self) -> TimeLeft:
        """The rest of its time to live."""
        if self.reg.ttl is None:
            return NO_END
        return TimeLeft(self.reg.ttl - self.heartbeat.ages.age, min(self.reg.ttl / 10, timedelta(minutes=5)))

    def copy(self) -> "Agent":
        """A copy for display whose ages advance independently. It shares the pidfd, so it must not be closed."""
        shown = copy(self)
        shown.heartbeat, shown.sights = self.heartbeat.copy(), self.sights.copy()
        shown.judged, shown.tree = copy(self.judged), copy(self.tree)
        return shown

    def amend(self, reg: Registration) -> None:
        """Replace the registration: the known facts with some changed."""
        self.reg = reg
        self.heartbeat.adopt(SilenceLimits.of(reg, self.policy))

    def adopt(self, policy: Policy) -> None:
        """Apply other limits from now on."""
        self.policy = policy
        self.heartbeat.adopt(SilenceLimits.of(self.reg, policy))
        self.heartbeat.silence.doubts.unsettle()

    def become(self, status: Status) -> None:
        """Take on a status that was committed to its row."""
        self.status = status

    def beat(self, beat: Beat, mono: float, wall: datetime, age: timedelta = ZERO) -> Beat:
        """Take a beat, as `Heartbeat.beat`, and apply what it says about the agent as a whole."""
        beat = self.heartbeat.beat(beat, mono, wall, age)
        if beat.transcript is not None:
            self.amend(replace(self.reg, transcript=beat.transcript))
        if beat.agent_type is not None and not self.reg.agent_type:
            self.amend(replace(self.reg, agent_type=beat.agent_type))
        return beat

    def watch(self, last: float, now: float, cap: float) -> None:
        """Add the time from `last` to `now` (monotonic seconds), at most `cap`, to everything that ages."""
        elapsed = Elapsed.between(last, now, cap)
        self.heartbeat.watch(elapsed)
        self.sights.watch(elapsed.whole)

    def left_to(self, holder: Holder) -> None:
        """It belongs to another daemon: it is not judged here."""
        self.owner.held_by(holder)
        self.heartbeat.silence.doubts.unsettle()

    def taken_over(self) -> None:
        """It belongs to this daemon (again). Its beats to the other daemon are unknown here, so its silence begins now.

        Its `run` may not have noticed yet, and until then its beats cannot reach us.
        """
        self.owner.held_by(None)
        self.heartbeat.silence.restart()
        self.judged.clear_kill_due()
        if self.reg.source == "run":
            self.heartbeat.silence.lose_channel()
