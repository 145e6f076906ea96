"""For how long each agent was watched: its ages run while we look, and never faster than we can look."""

from datetime import timedelta

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.config.settings import Settings
from watchdog.core.agent import Verdict


class WatchedTime:
    """Reckons it at each look at everybody, and for one agent between two of them."""

    def __init__(self, settings: Settings, fleet: Fleet, clock: Clock) -> None:
        self._settings = settings
        self._fleet = fleet
        self._clock = clock
        self._last: float | None = None  # monotonic seconds of the last look at everybody

    def apply(self, settings: Settings) -> None:
        """Go by these from now on."""
        self._settings = settings

    @property
    def interval(self) -> float:
        """Seconds between two sweeps."""
        return self._settings.interval.total_seconds()

    def reckon(self, *, missed: bool) -> None:
        """A look at everybody begins. `missed`: we may have missed words since the last one."""
        last, self._last = self._last, self._clock.mono()
        for agent in self._fleet:
            self._advance(agent, last)
            if missed:
                agent.heartbeat.silence.forgive()

    def catch_up(self, agent: Agent) -> timedelta:
        """Reckon its watched time up to now, between two looks at everybody; how much that is."""
        return self._advance(agent, self._last)

    def _advance(self, agent: Agent, last: float | None) -> timedelta:
        """The time since the look at everybody at `last` (None: there was none), or since one at that agent alone.

        At most two intervals, however long we were away (suspended, stopped, starved).
        """
        now = self._clock.mono()
        if last is None:
            return timedelta()
        since = max(last, agent.heartbeat.silence.reckoned)
        agent.watch(since, now, 2 * self.interval)
        agent.heartbeat.silence.reckon_to(now)
        return timedelta(seconds=max(0.0, now - since))

    def next_deadline(self) -> float:
        """Seconds until the next agent's silence could become too long: the next look may come that much sooner."""
        soon = timedelta(seconds=self.interval)
        left = (
            (a.heartbeat.silence.after - a.heartbeat.silence.counted + a.heartbeat.ages.lease_left).total_seconds()
            for a in self._fleet
            if a.judged.verdict is Verdict.HEALTHY
            and a.heartbeat.said.promised
            and a.heartbeat.silence.doubts.settled_until - a.heartbeat.ages.age < soon
        )
        # A look just before it would count costs nearly an interval; with more than two to confirm that is too much.
        counts = (
            a.heartbeat.silence.doubts.looked + 0.9 * self.interval - self._clock.mono()
            for a in self._fleet
            if a.judged.verdict is Verdict.LATE
            and a.heartbeat.silence.doubts.looked is not None
            and 2 < a.policy.confirm_sweeps > a.heartbeat.silence.doubts.late_looks
        )
        return max(0.0, min((s for s in (*left, *counts) if s >= 0), default=self.interval))
