"""The ages of an agent that grow with or without beats: the agent, its state, progress, leases and tools.

Durations are added up at each sweep. What begins in between is kept as an instant until the next one.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from watchdog.core.agent import State

ZERO = timedelta()


class Elapsed(NamedTuple):
    """The time between two sweeps, of which at most `cap` seconds count. Instants are monotonic seconds."""

    last: float
    now: float
    cap: float
    whole: timedelta

    @classmethod
    def between(cls, last: float, now: float, cap: float) -> "Elapsed":
        return cls(last, now, cap, timedelta(seconds=max(0.0, min(now - last, cap))))

    def since(self, begun: float | None) -> timedelta:
        """How much of it has passed since that instant (None: since before the last sweep)."""
        if begun is None or begun <= self.last:
            return self.whole
        return timedelta(seconds=max(0.0, min(self.now - begun, self.cap)))


class Begun(NamedTuple):
    """When each began, if after the last sweep; later beats do not stop these clocks."""

    state: float | None = None
    progress: float | None = None
    lease: float | None = None
    tool: float | None = None


NOTHING_BEGUN = Begun()


@dataclass(slots=True)
class Ages:
    """Watched time since registration, in the present state and without progress; the rest of a lease and of a tool."""

    age: timedelta = ZERO
    state_age: timedelta = ZERO
    progress_age: timedelta | None = None
    lease_left: timedelta = ZERO
    tool_left: timedelta = ZERO
    begun: Begun = NOTHING_BEGUN

    def begin_state(self, mono: float) -> None:
        """Its state changed. Its progress clock did not run while there was nothing to do."""
        self.state_age, self.begun = ZERO, self.begun._replace(state=mono)
        if self.progress_age is not None:
            self.begin_progress(mono)

    def begin_progress(self, mono: float) -> None:
        """It has made progress."""
        self.progress_age, self.begun = ZERO, self.begun._replace(progress=mono)

    def begin_lease(self, left: timedelta, mono: float) -> None:
        """It announced a silence of this length."""
        self.lease_left, self.begun = left, self.begun._replace(lease=mono)

    def begin_tool(self, left: timedelta, mono: float) -> None:
        """It has begun a tool that may take this long (zero: the tool ended)."""
        self.tool_left, self.begun = left, self.begun._replace(tool=mono)

    def advance(self, elapsed: Elapsed, quiet: timedelta, state: State | None) -> timedelta:
        """Let everything age, and return the part of `quiet` that is not silence: lease and tool are used up first.

        Silence begins when they end. A tool's limit is not used up while a human is asked: the tool may not have begun.
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
        """The lease or tool that it has just reported began this long ago."""
        if lease:
            self.lease_left = max(ZERO, self.lease_left - age)
        if tool:
            self.tool_left = max(ZERO, self.tool_left - age)

    def in_state_for(self, least: timedelta) -> None:
        """It has been in its state at least this long."""
        self.state_age = max(self.state_age, least)

    def restore(
        self,
        age: timedelta,
        state_age: timedelta,
        progress_age: timedelta | None,
        lease_left: timedelta,
        tool_left: timedelta,
    ) -> None:
        """Restore what an earlier daemon measured; the time without a daemon does not count."""
        self.age, self.state_age, self.progress_age = age, state_age, progress_age
        self.lease_left, self.tool_left = lease_left, tool_left
