"""One watched run: who it is, and what is known of it, each part written by its own methods alone.

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
    """Of its time to live. None: it has no end."""

    left: timedelta | None = None
    warning: timedelta = ZERO  # how long before its end that is told: a tenth of it, five minutes at most

    @property
    def ends_soon(self) -> bool:
        return self.left is not None and ZERO < self.left <= self.warning


NO_END = TimeLeft()


@dataclass(slots=True)
class LadderPlace:
    """The step of its ladder that was taken last, in this spell of trouble; its age then, and what it had said."""

    rung: Step | None = None
    at: timedelta = ZERO
    renewed: int = 0  # another word obeys the step

    def climb(self, rung: Step | None, heartbeat: Heartbeat) -> None:
        """It has come to that step now (None: to none)."""
        self.rung, self.at, self.renewed = rung, heartbeat.ages.age, heartbeat.rhythm.renewed


@dataclass(slots=True)
class Judged:
    """What looks have made of it: the last verdict and its line, and what the next one has to be compared with."""

    verdict: Verdict | None = None
    line: str = ""
    presence: Presence = Presence.ALIVE
    hangs: str | None = None  # which file of its main process did, then
    beats_judged: int = 0  # its count then
    renewed_judged: int = 0  # the same of `renewed`: one more since then makes the verdict old
    scan_age: timedelta | None = None  # of a copy that is shown: how old what is known of its processes is
    doomed_since: float | None = None  # monotonic instant from which on its silence asks for its end
    first_look: bool = True

    def hung(self, path: str | None) -> None:
        """Reading that file of its main process hangs (None: none does)."""
        self.hangs = path

    def saw(self, presence: Presence) -> None:
        """What the kernel says of its main process."""
        self.presence = presence

    def remember(self, judgement: Judgement, now: float, beats: int, renewed: int) -> None:
        """Remember a verdict."""
        self.verdict, self.line = judgement.verdict, judgement.line
        self.beats_judged, self.renewed_judged = beats, renewed
        if judgement.verdict is not Verdict.STALLED and not judgement.overdue:
            self.doomed_since = None
        elif self.doomed_since is None:
            self.doomed_since = now
        if judgement.verdict not in (Verdict.LATE, Verdict.STALLED):
            self.first_look = False

    def begin_anew(self) -> None:
        """Nothing of its silence asks for its end any more."""
        self.doomed_since = None

    def shown(self, judgement: Judgement, since: timedelta, beats: int) -> None:
        """Of a copy: what its ages of now make of its verdict. `since`: the last look.

        A verdict that only time has changed is for a look, which tells it; a word since then counts at once.
        """
        spoke = beats != self.beats_judged
        if judgement.verdict is self.verdict or (spoke and judgement.verdict in (Verdict.HEALTHY, Verdict.WAITING)):
            self.verdict, self.line = judgement.verdict, judgement.line
        elif self.verdict is not Verdict.HEALTHY and self.line:
            self.line += f" ({span(since)} ago)"

    def scanned_before(self, age: timedelta) -> None:
        """Of a copy: so old is what is known of its processes."""
        self.scan_age = age

    def restore(self, verdict: Verdict | None, beats: int) -> None:
        """What an earlier daemon made of it and told, after so many beats."""
        self.verdict, self.beats_judged = verdict, beats

    def written(self, verdict: Verdict | None, line: str) -> None:
        """Of one that nobody looks at here: what its row says."""
        self.verdict, self.line = verdict, line


@dataclass(slots=True)
class EndingState:
    """What all have to know of an order to end it; empty while there is none. The order itself is `kill.order`'s."""

    request_id: str | None = None
    ordering: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while an order to end it is committed
    asked: StopAsked | None = None
    lives_on: str | None = None  # what of it could not be killed, at the last attempt

    def begin(self, request_id: str) -> None:
        """That order is to end it."""
        self.request_id = request_id

    def over(self) -> None:
        """No order is open any more."""
        self.request_id = None

    def withdrawn(self) -> None:
        """It goes on, and is not asked to end any more."""
        self.request_id = self.asked = None

    def ask(self, asked: StopAsked) -> None:
        """From now on its beats are answered so."""
        self.asked = asked

    def heard(self) -> None:
        """A beat was answered so, to one who reads it."""
        if self.asked is not None:
            self.asked = replace(self.asked, heard=True)

    def survived(self, what: str) -> None:
        """That lives on after an attempt."""
        self.lives_on = what


@dataclass(slots=True)
class OwnerState:
    """Whose it is now, by the last look at its process (`ownership`) and by what other daemons say (`custody`)."""

    dropping: int | None = None  # the user to whom its process has dropped from root, until that is committed
    untouchable: str | None = None  # why nothing is done as its owner
    unseen: str | None = None  # why that look failed
    elsewhere: Holder | None = None  # another daemon, whose it is

    def drops_to(self, uid: int | None) -> None:
        """Its process has dropped to that user (None: that is committed)."""
        self.dropping = uid

    def touchable(self, why_not: str | None) -> None:
        """Whether anything may be done as its owner."""
        self.untouchable = why_not

    def hidden(self, why: str | None) -> None:
        """Whose its process is cannot be seen (None: it can)."""
        self.unseen = why

    def held_by(self, holder: Holder | None) -> None:
        """It is that daemon's (None: ours)."""
        self.elsewhere = holder


MOST_WORDS = 5  # of one kind in which others' words stand, told of the present condition of an agent


@dataclass(slots=True)
class Told:
    """What was told: of its present condition, of what did not count, and once while this daemon runs."""

    events: set[str] = field(default_factory=set)  # of the present condition, told once
    refused: set[str] = field(default_factory=set)  # messages about it that did not count, each told once
    needed_human: bool = False  # told, and not answered yet
    recovering: bool = False  # it was late, and is well for no word of its own: what it says next is its recovery
    expiry_told: bool = False
    cap_told: bool = False
    untouchable_told: bool = False

    def first(self, key: str, kind: str = "") -> bool:
        """Whether this is to be told: not yet told of the present condition.

        `kind`: what keys begin with that hold another's words, of which there may be any number: five are told.
        """
        if key in self.events or (kind and sum(one.startswith(kind) for one in self.events) >= MOST_WORDS):
            return False
        self.events.add(key)
        return True

    def first_refusal(self, key: str, kind: str) -> bool:
        """Whether this is to be told, as `first`; what does not count has nothing to do with its condition."""
        if key in self.refused or sum(one.startswith(kind) for one in self.refused) >= MOST_WORDS:
            return False
        self.refused.add(key)
        return True

    def begin_condition(self) -> None:
        """What was said of the former condition may be said again."""
        self.events.clear()

    def human(self, *, needed: bool) -> None:
        """It was told that it waits for a human, or that it does not any more."""
        self.needed_human = needed

    def recover(self, *, later: bool) -> None:
        """Its recovery is told with its next word (`later`), or is told."""
        self.recovering = later

    def expiry(self, *, told: bool = True) -> None:
        """It was told that its time is nearly up."""
        self.expiry_told = told

    def cap(self) -> None:
        """It was told that it asked for too much."""
        self.cap_told = True

    def untouchable(self) -> None:
        """It was told that nothing is done as its owner."""
        self.untouchable_told = True


@dataclass(slots=True)
class Agent:
    """Its registration, its status, and the parts."""

    reg: Registration
    policy: Policy
    status: Status
    notify_socket: str | None = None
    heartbeat: Heartbeat = field(init=False)
    sights: ObservedActivity = field(default_factory=ObservedActivity)  # what was seen of it from outside
    tree: Tree = field(default_factory=Tree)
    exit: Exit = field(default_factory=Exit)
    judged: Judged = field(default_factory=Judged)
    ladder: LadderPlace = field(default_factory=LadderPlace)
    ending: EndingState = field(default_factory=EndingState)
    owner: OwnerState = field(default_factory=OwnerState)
    told: Told = field(default_factory=Told)
    perhaps: dict[str, str] = field(default_factory=dict)  # by id: agents that stand for sessions it may have begun

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
        """Its main process and its tree, as pid and start ticks."""
        known = [member.identity for member in self.tree.members]
        known += [self.identity] if self.identity is not None else []
        return frozenset([(one.pid, one.start_ticks) for one in known])

    @property
    def started(self) -> bool:
        """Whether what one waits for has come that starts: its first beat, where it promised any, or a process."""
        if self.heartbeat.said.promised:
            return self.heartbeat.rhythm.beats > 0
        return self.identity is not None or bool(self.tree.members)

    @property
    def in_question(self) -> bool:
        """Whether it has been silent for so long that what it does may soon decide."""
        beat = self.heartbeat
        if not beat.said.promised or self.ending.request_id is not None:
            return False
        if 4 * beat.silence.lasted < beat.silence.after and not beat.stuck:
            return False
        return not beat.excused

    @property
    def activity(self) -> str | None:
        """The freshest thing seen from outside; believed for half of the silence that is too long."""
        if not self.sights.seen:
            return None
        return self.sights.best(max(self.heartbeat.silence.after / 2, self.heartbeat.silence.sweep_span))

    @property
    def ttl(self) -> TimeLeft:
        """What is left of its time to live."""
        if self.reg.ttl is None:
            return NO_END
        return TimeLeft(self.reg.ttl - self.heartbeat.ages.age, min(self.reg.ttl / 10, timedelta(minutes=5)))

    def copy(self) -> "Agent":
        """One whose ages go on by themselves, to be shown; it holds what this one holds, and must not be closed."""
        shown = copy(self)
        shown.heartbeat, shown.sights = self.heartbeat.copy(), self.sights.copy()
        shown.judged, shown.tree = copy(self.judged), copy(self.tree)
        return shown

    def amend(self, reg: Registration) -> None:
        """That is known of it from now on: what was known (`reg`), with something replaced."""
        self.reg = reg
        self.heartbeat.adopt(SilenceLimits.of(reg, self.policy))

    def adopt(self, policy: Policy) -> None:
        """Other limits from now on."""
        self.policy = policy
        self.heartbeat.adopt(SilenceLimits.of(self.reg, policy))
        self.heartbeat.silence.doubts.unsettle()

    def become(self, status: Status) -> None:
        """That is committed to its row."""
        self.status = status

    def beat(self, beat: Beat, mono: float, wall: datetime, age: timedelta = ZERO) -> Beat:
        """Take one word, as `Heartbeat.beat`; and what it says of the agent as a whole."""
        beat = self.heartbeat.beat(beat, mono, wall, age)
        if beat.transcript is not None:
            self.amend(replace(self.reg, transcript=beat.transcript))
        if beat.agent_type is not None and not self.reg.agent_type:
            self.amend(replace(self.reg, agent_type=beat.agent_type))
        return beat

    def watch(self, last: float, now: float, cap: float) -> None:
        """Reckon the time from `last` to `now` (monotonic seconds), at most `cap`, to everything that ages."""
        elapsed = Elapsed.between(last, now, cap)
        self.heartbeat.watch(elapsed)
        self.sights.watch(elapsed.whole)

    def left_to(self, holder: Holder) -> None:
        """It is another daemon's: nothing is judged here."""
        self.owner.held_by(holder)
        self.heartbeat.silence.doubts.unsettle()

    def taken_over(self) -> None:
        """It is ours (again): what it said to that daemon nobody has told us, so its silence begins now.

        Its `run` may not have found out yet that it is ours, and what it says cannot reach us before.
        """
        self.owner.held_by(None)
        self.heartbeat.silence.begin_anew()
        self.judged.begin_anew()
        if self.reg.source == "run":
            self.heartbeat.silence.lose_channel()
