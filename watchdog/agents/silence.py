"""How long an agent has been silent, how much of that is not its own fault, and how much is too much.

Silence grows only in `advance`, by time that the daemon watched on its monotonic clock, so no clock step, suspend or
late start can make an agent stale.
"""

from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta

from watchdog.core.agent import Policy, Registration

ZERO = timedelta()


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """The settings and reports that determine the allowed silence."""

    policy: Policy
    stall_after: timedelta | None = None
    interval: timedelta | None = None
    said: timedelta | None = None  # announced by the agent itself in a beat
    # The allowed silence: as announced by itself, else by its registration, else by the policy; at least two beats.
    after: timedelta = field(init=False)

    def __post_init__(self) -> None:
        after = self.said or self.stall_after or self.policy.after
        if self.interval is not None:
            after = max(after, 2 * self.interval)
        object.__setattr__(self, "after", after)  # read by each beat and each sweep

    @classmethod
    def of(cls, reg: Registration, policy: Policy) -> "SilenceLimits":
        return cls(policy, reg.stall_after, reg.interval)


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why a silence may not be the agent's own: we cannot receive its beats, or it was stopped on purpose."""

    unread: timedelta | None = None  # how long its file could not be read in this silence
    unread_why: str = ""
    halt: str | None = None  # who stopped it on purpose, as text; None: it runs, or was stopped by an unknown process
    halted: timedelta = ZERO  # how long it was stopped on purpose in this silence
    channel_lost: bool = False


NO_HINDRANCE = Hindrance()


@dataclass(slots=True)
class Doubts:
    """The conclusions of sweeps about the silence so far, and their validity; reset by the next beat."""

    settled_until: timedelta = ZERO  # the age up to which time alone cannot change that it is healthy
    late_looks: int = 0
    looked: float | None = None  # monotonic instant of the last counted late sweep

    def too_soon(self, now: float, interval: float) -> bool:
        """Whether a sweep now comes too soon after the last late one to count as another."""
        return self.looked is not None and now - self.looked < 0.9 * interval

    def late(self, now: float, interval: float) -> None:
        """A sweep found it late."""
        if not self.too_soon(now, interval):
            self.late_looks, self.looked = self.late_looks + 1, now

    def none(self) -> None:
        """A sweep found it healthy, or earlier findings do not count."""
        self.late_looks, self.looked = 0, None

    def spoke(self) -> None:
        """It sent a beat: the next late sweep is the first, even if it follows at once."""
        self.late_looks = 0

    def keep(self, late_looks: int) -> None:
        """Its beat does not change the confirmed count."""
        self.late_looks = late_looks

    def looked_at(self, now: float) -> None:
        """In a copy for display: what is shown now is not a further sweep."""
        self.looked = None if self.looked is None else now

    def settle(self, until: timedelta) -> None:
        """Up to that age only a beat can change the verdict."""
        self.settled_until = until

    def unsettle(self) -> None:
        """The next sweep must judge it again."""
        self.settled_until = ZERO


@dataclass(slots=True)
class Silence:
    """Silence since its last beat, or since its registration if there was none."""

    limits: SilenceLimits
    lasted: timedelta = ZERO
    forgiven: timedelta = ZERO  # part of it in which a beat may have been lost by us
    hindrance: Hindrance = NO_HINDRANCE
    touched: float | None = None  # monotonic instant of the last beat, not yet accounted for
    reckoned: float = float("-inf")  # monotonic instant up to which time was accounted for
    sweep_span: timedelta = ZERO  # two sweep intervals: observed activity counts at least this long
    doubts: Doubts = field(default_factory=Doubts)

    @property
    def after(self) -> timedelta:
        """The allowed silence."""
        return self.limits.after

    @property
    def counted(self) -> timedelta:
        """The silence that counts against it."""
        return self.lasted - self.forgiven

    def copy(self) -> "Silence":
        """A copy that advances independently."""
        shown = copy(self)
        shown.doubts = copy(self.doubts)
        return shown

    def adopt(self, limits: SilenceLimits) -> None:
        """Apply other limits from now on."""
        self.limits = limits

    def end(self, mono: float) -> None:
        """It sent a beat."""
        self.touched = mono
        self.lasted = self.forgiven = ZERO
        self.hindrance = NO_HINDRANCE

    def end_earlier(self, aged: timedelta, before: "Silence", mono: float) -> None:
        """A beat that arrives now was sent this long ago. `before`: the silence until then; late sweeps may stay."""
        self.lasted = min(before.lasted, aged)
        if aged >= before.lasted:  # since the last accounting: silence starts there, or where it already was
            said_at = mono - (aged - before.lasted).total_seconds()
            self.touched = said_at if before.touched is None else max(before.touched, said_at)
        if self.lasted >= self.after:
            self.doubts.keep(before.doubts.late_looks)  # as silent as before

    def advance(self, quiet: timedelta, excused: timedelta, cap: float) -> None:
        """Add watched time in which it was quiet, `excused` of it by its own announcement."""
        self.lasted += quiet - excused
        seen = self.hindrance
        if seen.unread is not None:
            self.hindrance = replace(self.hindrance, unread=seen.unread + quiet)
        if seen.halt is not None:
            self.hindrance = replace(self.hindrance, halted=seen.halted + quiet)
        self.sweep_span = timedelta(seconds=cap)
        self.touched = None

    def reckon_to(self, mono: float) -> None:
        """Its time is accounted for up to there; the next sweep begins there."""
        self.reckoned = max(self.reckoned, mono)

    def grant_fresh_limit(self) -> None:
        """Its beats may have been lost by us: wait the full `after` once more, once per silence.

        Repeating this does not extend it, as with a daemon that is restarted each minute or whose sweeps are all late.
        """
        former, self.forgiven = self.forgiven, max(self.forgiven, min(self.lasted, self.after))
        self.doubts.unsettle()
        if self.forgiven > former:
            self.doubts.none()

    def lose_channel(self, *, look: bool = True) -> None:
        """Its beats cannot reach us: until its next beat, or `find_channel`, the silence is not its own.

        `look`: the next sweep must judge it, whether or not that was due.
        """
        self.hindrance = replace(self.hindrance, channel_lost=True)
        if look:
            self.doubts.unsettle()

    def find_channel(self) -> None:
        """Its beats can reach us again: wait the full `after` once more, as beats in between are lost."""
        if self.hindrance.channel_lost:
            self.hindrance = replace(self.hindrance, channel_lost=False)
            self.grant_fresh_limit()

    def unread_now(self, why: str = "") -> None:
        """Its heartbeat file, its only channel, cannot be read: time this until its next beat."""
        self.hindrance = replace(self.hindrance, unread=ZERO, unread_why=why)
        self.doubts.unsettle()

    def read_again(self) -> None:
        """Its file can be read again; a disk that could not be read may not have been writable either.

        The full `after` is waited once more, once per silence and if the failure lasted as long; else only that time
        does not count. So a file that is locked now and then does not keep a stalled agent alive.
        """
        former, spell = self.forgiven, self.hindrance.unread
        if spell is not None:
            self.hindrance = replace(self.hindrance, unread=None)
            self.grant_fresh_limit()
            fresh = not former or spell >= self.after
            self.forgiven = self.lasted if fresh else min(self.lasted, former + spell)

    def stopped(self, halt: str | None) -> None:
        """It was stopped on purpose (the text says by which process), or (None) no longer is.

        Then the full `after` is waited once more. An agent that is stopped again and again, for longer than
        `wait_limit` in one silence, is judged by that silence.
        """
        seen = self.hindrance
        if halt is None and seen.halt is not None and seen.halted < self.limits.policy.wait_limit:
            self.forgiven = self.lasted
            self.doubts.none()
        if halt != seen.halt:
            self.doubts.unsettle()
            self.hindrance = replace(seen, halt=halt)

    def restart(self, lasted: timedelta = ZERO) -> None:
        """Start again with a silence of this length, about which nothing has been concluded yet."""
        self.lasted, self.forgiven = lasted, ZERO
        self.hindrance = replace(self.hindrance, halted=ZERO)
        self.doubts.unsettle()
        self.doubts.none()
