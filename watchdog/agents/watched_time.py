"""How long each agent was watched: ages grow only while the daemon runs, and no faster than it can check."""

from datetime import timedelta

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.config.settings import Settings
from watchdog.core.agent import Verdict


class WatchedTime:
    """Accounts for time at each sweep, and for one agent between two sweeps."""

    def __init__(self, settings: Settings, fleet: Fleet, clock: Clock) -> None:
        self._settings = settings
        self._fleet = fleet
        self._clock = clock
        self._last: float | None = None  # monotonic seconds of the last sweep

    def apply(self, settings: Settings) -> None:
        """Apply these settings from now on."""
        self._settings = settings

    @property
    def interval(self) -> float:
        """Seconds between two sweeps."""
        return self._settings.interval.total_seconds()

    def reckon(self, *, missed: bool) -> None:
        """A sweep begins. `missed`: beats may have been lost since the last one."""
        last, self._last = self._last, self._clock.mono()
        for agent in self._fleet:
            self._advance(agent, last)
            if missed:
                agent.heartbeat.silence.grant_fresh_limit()

    def catch_up(self, agent: Agent) -> timedelta:
        """Account for one agent's time up to now, between two sweeps; returns that time."""
        return self._advance(agent, self._last)

    def _advance(self, agent: Agent, last: float | None) -> timedelta:
        """The time since the sweep at `last` (None: there was none), or since a later check of that agent alone.

        At most two intervals, however long the daemon did not run (suspended, stopped, starved).
        """
        now = self._clock.mono()
        if last is None:
            return timedelta()
        since = max(last, agent.heartbeat.silence.reckoned)
        agent.watch(since, now, 2 * self.interval)
        agent.heartbeat.silence.reckon_to(now)
        return timedelta(seconds=max(0.0, now - since))

    def next_deadline(self) -> float:
        """Seconds until the next agent's silence could become too long: the next sweep may come that much sooner."""
        soon = timedelta(seconds=self.interval)
        left = (
            (a.heartbeat.silence.after - a.heartbeat.silence.counted + a.heartbeat.ages.lease_left).total_seconds()
            for a in self._fleet
            if a.judged.verdict is Verdict.HEALTHY
            and a.heartbeat.said.promised
            and a.heartbeat.silence.doubts.settled_until - a.heartbeat.ages.age < soon
        )
        # A sweep just before the due instant costs nearly an interval; with more than two to confirm that is too much.
        counts = (
            a.heartbeat.silence.doubts.looked + 0.9 * self.interval - self._clock.mono()
            for a in self._fleet
            if a.judged.verdict is Verdict.LATE
            and a.heartbeat.silence.doubts.looked is not None
            and 2 < a.policy.confirm_sweeps > a.heartbeat.silence.doubts.late_looks
        )
        return max(0.0, min((s for s in (*left, *counts) if s >= 0), default=self.interval))
