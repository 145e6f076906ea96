"""Results and cost of the sweeps: metrics for Prometheus, and a summary line every ten minutes.

Nothing depends on it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock, Instant
from watchdog.core.agent import Status
from watchdog.core.decision import Veto
from watchdog.core.verdict import span
from watchdog.processes.bounded import Hung
from watchdog.telemetry import logger
from watchdog.telemetry.logger import EventLogger
from watchdog.telemetry.metrics import Metrics

SUMMARY_EVERY = 600.0  # seconds
LINES = 20  # of one event in one sweep


@dataclass(slots=True)
class _Interval:
    """The numbers of one summary line."""

    sweeps: int = 0
    failed: int = 0
    overrun: int = 0
    requested: int = 0
    held: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0


class SweepStats:
    """Reports each lasting trouble when it begins and when it ends; the summary counts what lies between."""

    def __init__(self, fleet: Fleet, clock: Clock, metrics: Metrics, log: EventLogger) -> None:
        self._fleet = fleet
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._tally = _Interval()
        self._summary_at = clock.mono()
        self._failing = ""
        self._failed = 0  # sweeps in a row
        self._overrunning = self._blind = False
        self._hung: dict[int, Hung] = {}  # those that were reported
        self.hung: Mapping[int, Hung] = {}
        self.last_sweep: Instant | None = None

    def requested(self) -> None:
        """The daemon requested a kill of its own."""
        self._tally.requested += 1

    def held(self, veto: Veto) -> None:
        """A kill was blocked, for an agent and a reason not reported yet."""
        self._tally.held[str(veto)] += 1
        self._metrics.vetoes.labels(str(veto)).inc()

    def failed(self, error: Exception) -> None:
        """A sweep raised. Repetitions of the same error are only counted."""
        self._metrics.sweep_failures.inc()
        self._tally.failed += 1
        self._failed += 1
        if (words := repr(error)) != self._failing:
            self._failing = words
            self._log.event("sweep.failed", exc_info=error)

    def failed_at(self, agent: Agent, error: Exception) -> None:
        """One agent could not be judged: reported once for it."""
        if agent.reported.first("sweep.failed"):
            self._log.event("sweep.failed", exc_info=error, agent_id=agent.agent_id, name=agent.reg.name)

    def scanned(self, error: OSError | None) -> None:
        """Whether /proc could be read."""
        if error is not None and not self._blind:
            self._log.event("sweep.scan_failed", error=str(error))
        self._blind = error is not None

    def unreadable(self, hung: Mapping[int, Hung]) -> None:
        """The processes that cannot be read now: each is reported when that begins and when it ends."""
        for pid in self._hung.keys() - hung.keys():
            uid = self._hung.pop(pid).uid
            with logger.caused_by(uid):
                self._log.event("process.readable", pid=pid, uid=uid)
        new = [hung[pid] for pid in sorted(hung.keys() - self._hung.keys())]
        for one in new[:LINES]:  # the rest with the next sweeps: a user can make any number of them
            self._hung[one.pid] = one
            with logger.caused_by(one.uid):
                self._log.event("process.unreadable", pid=one.pid, file=f"/proc/{one.pid}/{one.file}", uid=one.uid)
        self.hung = hung
        self._metrics.unreadable.set(len(hung))

    def recorded(self, written: bool) -> None:
        """Whether the registry was written."""
        self._metrics.registry_up.set(written)
        if written:
            self._metrics.registry_written.set(self._clock.now().wall.timestamp())

    def swept(self, began: Instant, interval: float) -> None:
        """A sweep succeeded; `interval` in seconds."""
        took = self._clock.mono() - began.mono
        self.last_sweep = began
        self._metrics.last_sweep.set(began.wall.timestamp())
        self._metrics.sweep_seconds.observe(took)
        self._metrics.unkillable.set(self._unkillable())
        if self._failing:
            self._log.event("sweep.recovered", failed=self._failed)
            self._failing, self._failed = "", 0
        self._tally.sweeps += 1
        self._tally.slowest = max(self._tally.slowest, took)
        self._log.event("sweep.finished", agents=len(self._fleet), ms=round(took * 1000, 1))
        late = took > interval
        self._tally.overrun += late
        if late and not self._overrunning:
            self._log.event("sweep.overrun", took=span(timedelta(seconds=took)))
        self._overrunning = late
        if began.mono - self._summary_at >= SUMMARY_EVERY:
            self._summary_at = began.mono
            self._summarize()

    def _summarize(self) -> None:
        tally, self._tally = self._tally, _Interval()
        self._log.event(
            "sweep.summary",
            sweeps=tally.sweeps,
            failed=tally.failed,
            overrun=tally.overrun,
            agents=len(self._fleet),
            verdicts=dict(Counter(str(agent.judged.verdict) for agent in self._fleet)),
            unkillable=self._unkillable(),
            requested=tally.requested,
            held=dict(tally.held),
            slowest_ms=round(tally.slowest * 1000, 1),
        )

    def _unkillable(self) -> int:
        return sum(agent.status is Status.UNKILLABLE for agent in self._fleet)
