"""The inputs of a sweep: agents' beats and exits, the kernel, and answers of the owners' helpers.

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

# a younger agent is checked for a dropped uid by each sweep, an older one with each scan
DROPS_UID = timedelta(minutes=1)


class Probes:
    """Asks all probes once a sweep. Helpers answer before the next one."""

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

    def receive(self) -> None:
        """Read the beats that wait on the sockets."""
        self.tracker.sockets.drain_all()

    def look(self) -> list[Agent]:
        """Start everything that does not block; returns the agents whose silence may be work."""
        for agent in self.tracker.fleet:
            if agent.heartbeat.ages.age < DROPS_UID or agent.owner.untouchable is not None:
                self.tracker.follow_owner(agent)
        self._beat_files.look()
        doubtful = self._growth.look()
        self._prompts.look()
        self._session_files.look()
        self._sites.look()
        self.tracker.exits.collect()
        return doubtful

    async def record(self) -> None:
        """Commit observed drops from root, and sites; report each untouchable agent once."""
        for agent in self.tracker.fleet:
            if agent.owner.dropping is not None:
                await self.tracker.follow(agent, self._registry)
            self._announcer.untouchable(agent)
        await self._sites.record()

    async def close(self) -> None:
        """Cancel open queries to helpers."""
        await self.inquiries.close()
