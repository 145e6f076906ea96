"""How long an agent has been silent, how much of that is not its own, and how much is too much.

Silence grows only in `advance`, by time that the daemon watched on its monotonic clock, so no clock step, suspend or
late start can make anybody stale.
"""

from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta

from watchdog.core.agent import Policy, Registration

ZERO = timedelta()


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """What decides how long a silence is too long."""

    policy: Policy
    stall_after: timedelta | None = None
    interval: timedelta | None = None
    said: timedelta | None = None  # by itself, in a word
    # The silence that is too long: its own word, else its registration, else the policy; never under two beats.
    after: timedelta = field(init=False)

    def __post_init__(self) -> None:
        after = self.said or self.stall_after or self.policy.after
        if self.interval is not None:
            after = max(after, 2 * self.interval)
        object.__setattr__(self, "after", after)  # each beat and each look asks for it

    @classmethod
    def of(cls, reg: Registration, policy: Policy) -> "SilenceLimits":
        return cls(policy, reg.stall_after, reg.interval)


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why a silence may not be the agent's own: we cannot hear it, or somebody keeps it from speaking."""

    unread: timedelta | None = None  # its file cannot be read, for so long in this silence
    unread_why: str = ""
    halt: str | None = None  # somebody stopped it on purpose, in words; None: it runs, or was stopped by nobody known
    halted: timedelta = ZERO  # how long that was so in this silence
    channel_lost: bool = False


NO_HINDRANCE = Hindrance()


@dataclass(slots=True)
class Doubts:
    """What looks have made of the silence so far, and until when they cannot; over with its next word."""

    settled_until: timedelta = ZERO  # the age up to which time alone cannot change that it is healthy
    late_looks: int = 0
    looked: float | None = None  # monotonic instant of the last counted late look

    def too_soon(self, now: float, interval: float) -> bool:
        """Whether a look now comes too soon after the last late one to count as another."""
        return self.looked is not None and now - self.looked < 0.9 * interval

    def late(self, now: float, interval: float) -> None:
        """A look has found it late."""
        if not self.too_soon(now, interval):
            self.late_looks, self.looked = self.late_looks + 1, now

    def none(self) -> None:
        """A look has found it well, or what looks have found does not count."""
        self.late_looks, self.looked = 0, None

    def spoke(self) -> None:
        """It has said a word: the next late look is the first, also one that follows at once."""
        self.late_looks = 0

    def keep(self, late_looks: int) -> None:
        """What it said changes nothing of what was confirmed."""
        self.late_looks = late_looks

    def looked_at(self, now: float) -> None:
        """Of a copy: what is shown now is no further look."""
        self.looked = None if self.looked is None else now

    def settle(self, until: timedelta) -> None:
        """Nothing but a word can change what is made of it up to that age."""
        self.settled_until = until

    def unsettle(self) -> None:
        """It is to be judged anew by the next look."""
        self.settled_until = ZERO


@dataclass(slots=True)
class Silence:
    """Since its last word; without any, since its registration."""

    limits: SilenceLimits
    lasted: timedelta = ZERO
    forgiven: timedelta = ZERO  # of it: it may have spoken and we could not hear it
    hindrance: Hindrance = NO_HINDRANCE
    touched: float | None = None  # monotonic instant of the last word, not yet reckoned
    reckoned: float = float("-inf")  # monotonic instant up to which was reckoned
    sweep_span: timedelta = ZERO  # two intervals of the sweep: what is seen is believed at least so long
    doubts: Doubts = field(default_factory=Doubts)

    @property
    def after(self) -> timedelta:
        """The silence that is too long."""
        return self.limits.after

    @property
    def counted(self) -> timedelta:
        """The silence that is held against it."""
        return self.lasted - self.forgiven

    def copy(self) -> "Silence":
        """One that goes on by itself."""
        shown = copy(self)
        shown.doubts = copy(self.doubts)
        return shown

    def adopt(self, limits: SilenceLimits) -> None:
        """Other limits from now on."""
        self.limits = limits

    def end(self, mono: float) -> None:
        """It speaks."""
        self.touched = mono
        self.lasted = self.forgiven = ZERO
        self.hindrance = NO_HINDRANCE

    def end_earlier(self, aged: timedelta, before: "Silence", mono: float) -> None:
        """What it has just said was said so long ago. `before`: how silent it was; what was confirmed may stay so."""
        self.lasted = min(before.lasted, aged)
        if aged >= before.lasted:  # since the last reckoning: from then on, and no sooner than it was silent already
            said_at = mono - (aged - before.lasted).total_seconds()
            self.touched = said_at if before.touched is None else max(before.touched, said_at)
        if self.lasted >= self.after:
            self.doubts.keep(before.doubts.late_looks)  # as silent as before

    def advance(self, quiet: timedelta, excused: timedelta, cap: float) -> None:
        """So much time was watched in which it was quiet, `excused` of it by its own word."""
        self.lasted += quiet - excused
        seen = self.hindrance
        if seen.unread is not None:
            self.hindrance = replace(self.hindrance, unread=seen.unread + quiet)
        if seen.halt is not None:
            self.hindrance = replace(self.hindrance, halted=seen.halted + quiet)
        self.sweep_span = timedelta(seconds=cap)
        self.touched = None

    def reckon_to(self, mono: float) -> None:
        """Up to there its time is reckoned; the next look begins there."""
        self.reckoned = max(self.reckoned, mono)

    def forgive(self) -> None:
        """It may have spoken and we could not hear it: all of `after` is waited once more, once in one silence.

        Again and again, as by a daemon that is restarted each minute or comes late to each look, makes that no longer.
        """
        former, self.forgiven = self.forgiven, max(self.forgiven, min(self.lasted, self.after))
        self.doubts.unsettle()
        if self.forgiven > former:
            self.doubts.none()

    def lose_channel(self, *, look: bool = True) -> None:
        """What it says cannot reach us: its silence is the channel's until its next word, or until that is found.

        `look`: it is to be judged by the next look, whether or not that was due.
        """
        self.hindrance = replace(self.hindrance, channel_lost=True)
        if look:
            self.doubts.unsettle()

    def find_channel(self) -> None:
        """What it says can reach us again: all of `after` is waited once more, as what it said meanwhile is lost."""
        if self.hindrance.channel_lost:
            self.hindrance = replace(self.hindrance, channel_lost=False)
            self.forgive()

    def unread_now(self, why: str = "") -> None:
        """Its only beat, a file, cannot be read: how long that lasts is watched until its next word."""
        self.hindrance = replace(self.hindrance, unread=ZERO, unread_why=why)
        self.doubts.unsettle()

    def read_again(self) -> None:
        """Its file can be read; the disk that could not be read could perhaps not be written, either.

        All of `after` is waited once more, once in one silence and where that lasted as long; else only that time does
        not count. A file that is locked now and then keeps no stalled one alive.
        """
        former, spell = self.forgiven, self.hindrance.unread
        if spell is not None:
            self.hindrance = replace(self.hindrance, unread=None)
            self.forgive()
            fresh = not former or spell >= self.after
            self.forgiven = self.lasted if fresh else min(self.lasted, former + spell)

    def stopped(self, halt: str | None) -> None:
        """Somebody stopped it on purpose (in words), or (None) nobody does any more.

        Then all of `after` is waited once more. Who is stopped again and again, for longer than `wait_limit` in one
        silence, is judged by that silence.
        """
        seen = self.hindrance
        if halt is None and seen.halt is not None and seen.halted < self.limits.policy.wait_limit:
            self.forgiven = self.lasted
            self.doubts.none()
        if halt != seen.halt:
            self.doubts.unsettle()
            self.hindrance = replace(seen, halt=halt)

    def begin_anew(self, lasted: timedelta = ZERO) -> None:
        """So long it was silent before we could hear it, of which nothing was made yet."""
        self.lasted, self.forgiven = lasted, ZERO
        self.hindrance = replace(self.hindrance, halted=ZERO)
        self.doubts.unsettle()
        self.doubts.none()
