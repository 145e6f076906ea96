"""The kernel's view of agents' processes: which are alive, and by one scan of /proc for all, the state of their trees.

Tests: tests/sweep/test_sweeper.py.
"""

from datetime import timedelta

from watchdog.agents import judging, oom
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.tracker import AgentTracker
from watchdog.clock import Clock
from watchdog.config.settings import Settings
from watchdog.core.agent import Verdict
from watchdog.core.process import Presence
from watchdog.core.sessions import SESSION
from watchdog.probes import cpu
from watchdog.probes.process_scan import ProcessScanner
from watchdog.processes.identity import LookFailed, presence
from watchdog.sweep.stats import SweepStats

SCAN_EVERY = 60.0  # seconds; a scan of 2,000 processes takes 50 to 100 ms


class ProcessWatch:
    """Checks single agents each sweep, and scans for all when a tree must be known."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        clock: Clock,
        tracker: AgentTracker,
        scanner: ProcessScanner,
        stats: SweepStats,
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._clock = clock
        self._tracker = tracker
        self._scanner = scanner
        self._stats = stats
        self._scanned = float("-inf")

    def apply(self, settings: Settings) -> None:
        """Apply these settings from now on."""
        self._settings = settings

    @property
    def services(self) -> list[dict[str, object]]:
        """Services that many sessions share: the number of agents each serves, and of the silent ones among them."""
        told = []
        for one in self._scanner.services:
            mine = [agent for agent in self._fleet if one.pid in agent.reg.served_by]
            silent = [agent for agent in mine if agent.judged.verdict in (Verdict.LATE, Verdict.STALLED)]
            told.append({**one._asdict(), "agents": len(mine), "silent": len(silent)})
        return told

    async def find_hung(self) -> None:
        """Find the processes that cannot be read now."""
        await self._scanner.find_hung()

    def report_hung(self) -> None:
        """Report those that `find_hung` found."""
        self._stats.unreadable(self._scanner.hung)

    def show(self, shown: Agent) -> None:
        """Record the age of its process information in a copy of an agent."""
        if shown.tree.members and self._scanned > float("-inf"):
            shown.judged.scanned_before(timedelta(seconds=self._clock.mono() - self._scanned))

    def presence(self, agent: Agent) -> Presence:
        """The kernel's view of the main process: by its pidfd, unless that has become readable, else by /proc.

        The exit of a further process (the harness beside its wrapper) counts as its exit; in observe mode the main
        process, and with it the agent, keeps running.
        """
        agent.judged.hung(None)
        if agent.identity is None:
            return self._of_service(agent)
        if agent.tree.pidfd is None or agent.exit.ended:
            return presence(agent.identity, agent.tree.pidfd)
        if (hung := self._scanner.hung.get(agent.identity.pid)) is not None:
            agent.judged.hung(f"/proc/{hung.pid}/{hung.file}")
            return Presence.UNKNOWN  # unless its pidfd became readable, which the exit watcher has noted
        also = [
            one for entry in agent.reg.entries if entry.kind != SESSION for one in entry.also
        ]  # most agents have none
        if also and not self._settings.observe and not agent.reg.told_of:
            return Presence.ABSENT if any(presence(one, None) is Presence.ABSENT for one in also) else Presence.ALIVE
        return Presence.ALIVE

    def _of_service(self, agent: Agent) -> Presence:
        """A session without a process of its own lives as long as the service that works for it."""
        services = [one for entry in agent.reg.entries if entry.kind == SESSION for one in entry.also]
        gone = bool(services) and all(presence(one, None) is Presence.ABSENT for one in services)
        return Presence.ABSENT if gone else Presence.NO_PID

    async def scan_if_needed(self, now: float, seen: list[tuple[Agent, Presence]], doubtful: list[Agent]) -> None:
        """Scan /proc once a minute, when activity may decide about a late agent, and for new agents.

        A process without a mark that leaves a tree between two scans is not recognised later, so the first scan must
        come soon.
        """
        living = [agent for agent, presence in seen if presence is Presence.ALIVE]
        soon = any(agent.tree.cpu_used is None for agent in living)
        soon = soon or any(judging.perhaps_started(agent, presence) for agent, presence in seen)
        soon = soon or any(judging.needs_scan(agent, self._settings.interval) for agent in doubtful)
        # The use of a tree is measured over an interval: in the short time between two sweeps that were brought forward
        # no clock tick (10 ms) may fall, and a busy agent would look idle.
        interval = self._settings.interval.total_seconds()
        if not len(self._fleet) or now - self._scanned < (0.9 * interval if soon else SCAN_EVERY):
            return
        elapsed, self._scanned = now - self._scanned, now
        try:
            await self._scanner.trees()
        except OSError as error:
            self._stats.scanned(error)
            return
        self._stats.scanned(None)
        for agent in self._fleet:
            self._tracker.follow_owner(agent)
        try:
            await oom.record_all_counts(self._fleet)
            waited = await cpu.waiting(self._fleet)
            await cpu.see_halts(doubtful)
        except LookFailed as error:
            self._stats.scanned(error)
            return
        cpu.measure(self._fleet, elapsed, waited)
