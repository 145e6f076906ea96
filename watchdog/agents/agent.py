"""One watched run: who it is, and what is known of it, each part written by its own methods alone.

Only the event loop touches it; nothing here does I/O beyond closing a pidfd.
"""

from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from watchdog.agents.ages import Elapsed
from watchdog.agents.ending import EndingState
from watchdog.agents.exit import Exit
from watchdog.agents.heartbeat import Heartbeat
from watchdog.agents.judged import Judged
from watchdog.agents.owner_state import OwnerState
from watchdog.agents.silence import Silence, SilenceLimits
from watchdog.agents.told import Told
from watchdog.agents.tree import Tree
from watchdog.core.agent import Beat, Policy, Registration, Status
from watchdog.core.custody import Holder
from watchdog.core.kill import Step
from watchdog.core.observed_activity import ObservedActivity
from watchdog.core.process import Identity

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
