"""What of an agent ages by itself, whether it speaks or not: the agent, its state, its progress, leases and tools.

Durations are reckoned between two looks. What begins in between is remembered by its instant until the next one.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from watchdog.core.agent import State

ZERO = timedelta()


class Elapsed(NamedTuple):
    """The time that one look reckons, of which at most `cap` seconds count. Instants are monotonic seconds."""

    last: float
    now: float
    cap: float
    whole: timedelta

    @classmethod
    def between(cls, last: float, now: float, cap: float) -> "Elapsed":
        return cls(last, now, cap, timedelta(seconds=max(0.0, min(now - last, cap))))

    def since(self, begun: float | None) -> timedelta:
        """How much of it has passed since that instant (None: it began before the last look)."""
        if begun is None or begun <= self.last:
            return self.whole
        return timedelta(seconds=max(0.0, min(self.now - begun, self.cap)))


class Begun(NamedTuple):
    """When each began, if that was after the last look; beats that come meanwhile do not stop these clocks."""

    state: float | None = None
    progress: float | None = None
    lease: float | None = None
    tool: float | None = None


NOTHING_BEGUN = Begun()


@dataclass(slots=True)
class Ages:
    """Watched since it was registered, in its state, without progress; and what is left of a lease and of a tool."""

    age: timedelta = ZERO
    state_age: timedelta = ZERO
    progress_age: timedelta | None = None
    lease_left: timedelta = ZERO
    tool_left: timedelta = ZERO
    begun: Begun = NOTHING_BEGUN

    def begin_state(self, mono: float) -> None:
        """It is in another state. Its progress stood still while there was nothing to do."""
        self.state_age, self.begun = ZERO, self.begun._replace(state=mono)
        if self.progress_age is not None:
            self.begin_progress(mono)

    def begin_progress(self, mono: float) -> None:
        """It has come further."""
        self.progress_age, self.begun = ZERO, self.begun._replace(progress=mono)

    def begin_lease(self, left: timedelta, mono: float) -> None:
        """It will be silent for so long."""
        self.lease_left, self.begun = left, self.begun._replace(lease=mono)

    def begin_tool(self, left: timedelta, mono: float) -> None:
        """It has begun (or ended: zero) a tool that may take so long."""
        self.tool_left, self.begun = left, self.begun._replace(tool=mono)

    def advance(self, elapsed: Elapsed, quiet: timedelta, state: State | None) -> timedelta:
        """Let all of it age, and return how much of `quiet` is no silence: a lease and a tool are used up first.

        Silence begins when they end. Of a tool's limit nothing is used up while a human is asked: it may not have
        begun.
        """
        excused = no_silence = ZERO
        if self.lease_left or self.tool_left:
            asked = state is State.WAITING
            lease, tool = elapsed.since(self.begun.lease), ZERO if asked else elapsed.since(self.begun.tool)
            excused = max(min(self.lease_left, lease), min(self.tool_left, tool))
            self.lease_left, self.tool_left = self.lease_left - lease, self.tool_left - tool
            in_tool = ZERO if asked else self.tool_left + quiet
            no_silence = min(quiet, max(ZERO, self.lease_left + quiet, in_tool))
            self.lease_left, self.tool_left = max(ZERO, self.lease_left), max(ZERO, self.tool_left)
        self.age += elapsed.whole
        self.state_age += elapsed.since(self.begun.state)
        if self.progress_age is not None and state in (None, State.WORKING):
            stood = elapsed.since(self.begun.progress)
            self.progress_age += stood - min(stood, excused)
        self.begun = NOTHING_BEGUN
        return no_silence

    def begun_before(self, age: timedelta, *, lease: bool, tool: bool) -> None:
        """The lease, the tool, of which it has just spoken, began so long ago."""
        if lease:
            self.lease_left = max(ZERO, self.lease_left - age)
        if tool:
            self.tool_left = max(ZERO, self.tool_left - age)

    def in_state_for(self, least: timedelta) -> None:
        """It is in its state for at least so long."""
        self.state_age = max(self.state_age, least)

    def restore(
        self,
        age: timedelta,
        state_age: timedelta,
        progress_age: timedelta | None,
        lease_left: timedelta,
        tool_left: timedelta,
    ) -> None:
        """What an earlier daemon watched; the time without one does not count."""
        self.age, self.state_age, self.progress_age = age, state_age, progress_age
        self.lease_left, self.tool_left = lease_left, tool_left
