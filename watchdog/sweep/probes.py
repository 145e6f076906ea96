"""What a sweep observes with: agents' words and ends, the kernel, and what owners' helpers read beside the sweep.

Tests: tests/sweep/test_sweeper.py.
"""

from datetime import timedelta

from watchdog.agents.agent import Agent
from watchdog.agents.background_queries import BackgroundQueries
from watchdog.agents.sites import Sites
from watchdog.agents.tracker import AgentTracker
from watchdog.agents.watched_time import WatchedTime
from watchdog.clock import Clock
from watchdog.probes.heartbeat_files import HeartbeatFiles
from watchdog.probes.output_growth import OutputGrowth
from watchdog.probes.permission_prompts import PermissionPrompts
from watchdog.probes.session_files import SessionFiles
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.sweep.announcer import Announcer
from watchdog.sweep.process_watch import ProcessWatch

DROPS_UID = timedelta(minutes=1)  # younger than that it is looked at each time whether it has; later with each scan


class Probes:
    """Asks each of them once a sweep. What is asked of helpers is answered until the next one."""

    def __init__(
        self,
        tracker: AgentTracker,
        watched: WatchedTime,
        processes: ProcessWatch,
        queries: BackgroundQueries,
        registry: AsyncRegistry,
        clock: Clock,
        announcer: Announcer,
    ) -> None:
        fleet, log = tracker.fleet, tracker.log
        self.tracker = tracker
        self.watched = watched
        self.processes = processes
        self._registry = registry
        self._announcer = announcer
        self.inquiries = queries
        self._beat_files = HeartbeatFiles(fleet, self.inquiries, clock, log)
        self._growth = OutputGrowth(fleet, self.inquiries, clock)
        self._prompts = PermissionPrompts(fleet, self.inquiries, clock, announcer)
        self._session_files = SessionFiles(fleet, self.inquiries, clock)
        self._sites = Sites(fleet, self.inquiries, registry, clock)

    def hear(self) -> None:
        """Take the words that wait on the sockets."""
        self.tracker.sockets.drain_all()

    def look(self) -> list[Agent]:
        """Ask everything that can be asked without waiting; the agents whose silence may be work."""
        for agent in self.tracker.fleet:
            if agent.heartbeat.ages.age < DROPS_UID or agent.owner.untouchable is not None:
                self.tracker.follow_owner(agent)
        self._beat_files.look()
        doubtful = self._growth.look()
        self._prompts.look()
        self._session_files.look()
        self._sites.look()
        self.tracker.ends.take()
        return doubtful

    async def record(self) -> None:
        """Commit the drops from root that were seen, and the sites; tell once of each that may not be touched."""
        for agent in self.tracker.fleet:
            if agent.owner.dropping is not None:
                await self.tracker.follow(agent, self._registry)
            self._announcer.untouchable(agent)
        await self._sites.record()

    async def close(self) -> None:
        """Give up what was asked of helpers."""
        await self.inquiries.close()
