"""Results and cost of sweeps: a lasting trouble is reported when it begins and when it ends, the rest is counted."""

import os
from typing import cast

from tests.clocks import Later
from tests.control.office import Recorder
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.core.agent import Policy, Registration, Status, Verdict
from watchdog.core.decision import Veto
from watchdog.processes.bounded import Hung
from watchdog.sweep.stats import LINES, SUMMARY_EVERY, SweepStats
from watchdog.telemetry.metrics import Metrics


class Scene:
    """The statistics of a fleet of two, with its own clock."""

    def __init__(self) -> None:
        self.clock, self.log, self.fleet = Later(), Recorder(), Fleet()
        for name, status in (("a", Status.RUNNING), ("b", Status.UNKILLABLE)):
            agent = Agent(Registration(name * 32, name, os.geteuid(), "host", "boot"), Policy(), status)
            agent.judged.verdict = Verdict.HEALTHY
            self.fleet.add(agent)
        self.stats = SweepStats(self.fleet, self.clock, Metrics(), self.log)

    def sweep(self, took: float = 0.0, after: float = 10.0) -> None:
        self.clock.at += after
        began = self.clock.now()
        self.clock.at += took
        self.stats.swept(began, 10.0)

    def told(self, *but: str) -> list[str]:
        """Events since the last call, without those of each sweep."""
        events = [cast("str", one["event"]) for one in self.log.events if one["event"] not in ("sweep.finished", *but)]
        self.log.events.clear()
        return events


def test_a_failure_is_reported_once_until_another_comes_or_sweeps_work_again() -> None:
    """With the number of failures."""
    scene = Scene()
    for error in (OSError("x"), OSError("x"), OSError("y")):
        scene.stats.failed(error)
    assert scene.told() == ["sweep.failed", "sweep.failed"]
    scene.sweep()
    assert scene.log.events[0] == {"event": "sweep.recovered", "failed": 3}
    assert scene.told() == ["sweep.recovered"]
    scene.sweep()
    assert scene.told() == []


def test_late_sweeps_are_reported_once() -> None:
    """And again when they were on time in between."""
    scene = Scene()
    for took in (11.0, 12.0, 10.0, 11.0):
        scene.sweep(took)
    assert scene.told() == ["sweep.overrun", "sweep.overrun"]


def test_an_unreadable_proc_is_reported_once() -> None:
    """Until a scan worked."""
    scene = Scene()
    for error in (OSError("x"), OSError("y"), None, OSError("x")):
        scene.stats.scanned(error)
    assert scene.told() == ["sweep.scan_failed", "sweep.scan_failed"]


def test_processes_that_hang_are_reported_a_few_at_a_time_and_when_they_answer() -> None:
    """Their user can make any number; each is reported all the same."""
    scene = Scene()
    hung = {pid: Hung(pid, "cmdline", 1000, 0.0) for pid in range(100, 100 + LINES + 5)}
    scene.stats.unreadable(hung)
    assert scene.told() == ["process.unreadable"] * LINES
    scene.stats.unreadable(hung)
    assert scene.told() == ["process.unreadable"] * 5
    assert scene.stats.hung == hung
    scene.stats.unreadable({100: hung[100]})
    assert scene.told() == ["process.readable"] * (LINES + 4)


def test_the_summary_counts_its_interval_and_starts_again() -> None:
    """One line every ten minutes."""
    scene = Scene()
    scene.stats.requested()
    scene.stats.held(Veto.BUDGET)
    scene.stats.held(Veto.BUDGET)
    scene.stats.failed(OSError("x"))
    scene.sweep(11.0)
    scene.sweep(1.5, after=SUMMARY_EVERY)
    (summary,) = [one for one in scene.log.events if one["event"] == "sweep.summary"]
    expected = {"sweeps": 2, "failed": 1, "overrun": 1, "agents": 2, "unkillable": 1, "requested": 1}
    assert {key: summary[key] for key in expected} == expected
    assert summary["held"] == {"budget": 2}
    assert summary["verdicts"] == {"healthy": 2}
    assert summary["slowest_ms"] == 11_000.0
    scene.log.events.clear()
    scene.sweep(after=SUMMARY_EVERY)
    (summary,) = [one for one in scene.log.events if one["event"] == "sweep.summary"]
    assert (summary["sweeps"], summary["failed"], summary["held"]) == (1, 0, {})


def test_the_last_sweep_is_the_last_successful_one() -> None:
    """`status` and the scheduler's watchdog read it."""
    scene = Scene()
    before = scene.stats.last_sweep
    scene.sweep()
    last = scene.stats.last_sweep
    assert before is None
    assert last is not None
    scene.stats.failed(OSError("x"))
    assert scene.stats.last_sweep is last
    assert last.mono == scene.clock.at
