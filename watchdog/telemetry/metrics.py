"""Metrics for Prometheus, in a registry of our own. The part that does a thing counts it here; nothing depends on them.

`FIGURES` is the source of the table in config/doc/events.md, and the alert rules in config/ are checked against it.

Tests: tests/control/routes/test_status.py, tests/sweep/test_stats.py, tests/test_documents.py.
"""

import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from watchdog.concurrency import threads
from watchdog.core.admission import LimitKind
from watchdog.core.agent import Verdict
from watchdog.core.decision import Veto
from watchdog.telemetry.queue_handler import LogHealth

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "agent_watchdog_"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: its meaning, its labels (of few values, never an agent's name), and what to do about bad values."""

    text: str
    labels: tuple[str, ...] = ()
    act: str = ""


FIGURES: dict[str, MetricSpec] = {
    "agents": MetricSpec(
        "living agents by verdict; `none`: not looked at yet",
        ("verdict",),
        "`unknown` for long: `agent-watchdog why AGENT` says which look fails",
    ),
    "needs_person": MetricSpec(
        "agents that wait for a person: they say so, or their tmux pane shows a prompt; not those that are only idle",
        act="`agent-watchdog events` shows since when (`agent.needs_human`); answer the prompt",
    ),
    "kills_total": MetricSpec(
        "kill requests that were completed; `gone` and `lost` agents ended by themselves",
        ("reason", "outcome"),
        "many at once: `agent-watchdog hold`, then look at what the agents have in common (network, provider, disk)",
    ),
    "vetoes_total": MetricSpec("kills for a verdict that were held back, by reason", ("reason",)),
    "holds": MetricSpec(
        "holds in force",
        ("reason",),
        "`mass_stall`: look at network and provider; `operator`: `agent-watchdog status`, then `unhold`",
    ),
    "mass_stall": MetricSpec(
        "1: that user's agents fell silent together, so their kills for silence are held back; `all`: those"
        " of all agents",
        ("uid",),
    ),
    "unkillable": MetricSpec(
        "agents of which a process could not be killed",
        act="`agent-watchdog why AGENT` names the processes: D state (disk, NFS), frozen, or not ours",
    ),
    "unreadable_processes": MetricSpec(
        "processes that cannot be read now, since a read of their files below /proc hangs",
        act="`agent-watchdog doctor` names them and their users: kill them, or repair the file system they wait for",
    ),
    "last_sweep_timestamp_seconds": MetricSpec(
        "when the last sweep ended, Unix time",
        act="No agent is watched: `agent-watchdog doctor` says why and how to restart it; agents keep running",
    ),
    "sweep_seconds": MetricSpec(
        "how long sweeps took", act="above the interval: the host is overloaded, or /proc is slow"
    ),
    "sweep_failures_total": MetricSpec(
        "sweeps that raised an error; no agent was judged by them", act="look for `sweep.failed`"
    ),
    "cleanup_failures_total": MetricSpec(
        "cleanup hooks that failed on their last try",
        ("hook",),
        "`agent-watchdog why AGENT` has the hook's output; the place was left as it is",
    ),
    "registry_up": MetricSpec(
        "1: the last sweep could write the registry, 0: not, and no agent is killed",
        act="is the database there, its disk full or read-only? The daemon continues by itself",
    ),
    "registry_last_write_timestamp_seconds": MetricSpec("when a sweep last wrote the registry, Unix time"),
    "log_up": MetricSpec(
        "1: the log is written, 0: not", act="`agent-watchdog status` says where and why; free its disk"
    ),
    "log_lost_lines_total": MetricSpec(
        "log lines that were never written", act="the log is full, broken or too slow; the history has what matters"
    ),
    "history_lost_events_total": MetricSpec(
        "events that are only in the log, as the registry was unavailable or too slow", act="as for `registry_up`"
    ),
    "stuck_calls": MetricSpec(
        "calls of the daemon that have not returned for 5 s (NSS, a directory, the registry's disk)",
        act="`agent-watchdog status` names them; everything else works meanwhile",
    ),
    "denied_total": MetricSpec(
        "requests refused for lack of permission", ("route",), "`control.denied` has uid and pid of the caller"
    ),
    "refused_total": MetricSpec(
        "requests, connections, agents and followers refused, heartbeats and datagrams read late, because a"
        " user exceeded its share",
        ("kind",),
        "`agent-watchdog status` names the users; all others are served as usual",
    ),
    "build_info": MetricSpec("always 1", ("version",)),
}


class Counts(Protocol):
    """Present counts, by the parts that own them."""

    def verdicts(self) -> Mapping[str, int]:
        """Living agents by verdict (`none`: not judged yet)."""

    def hold_counts(self) -> Mapping[str, int]:
        """Holds in force, by kind."""

    def mass_stalled(self) -> Iterable[str]:
        """The uids whose agents fell silent together."""

    def needs_person(self) -> int:
        """Agents that wait for a person."""

    def log_health(self) -> LogHealth:
        """The state of the log."""

    def history_lost(self) -> int:
        """Events that only the log has."""


class NoCounts:
    """All counts are zero."""

    def verdicts(self) -> Mapping[str, int]:
        return {}

    def hold_counts(self) -> Mapping[str, int]:
        return {}

    def mass_stalled(self) -> Iterable[str]:
        return ()

    def needs_person(self) -> int:
        return 0

    def log_health(self) -> LogHealth:
        return LogHealth("", 0, None)

    def history_lost(self) -> int:
        return 0


class Metrics:
    """All metrics."""

    def __init__(self, hooks: Iterable[str] = ()) -> None:
        """`hooks`: see `expect`."""
        self.registry = CollectorRegistry()
        self.kills = self._counter("kills_total")
        self.vetoes = self._counter("vetoes_total")
        for veto in Veto:
            self.vetoes.labels(str(veto))
        self.cleanup_failures = self._counter("cleanup_failures_total")
        self.expect(hooks)
        self.denied = self._counter("denied_total")
        self.refused = self._counter("refused_total")
        for kind in LimitKind:
            self.refused.labels(str(kind))
        self.sweep_failures = self._counter("sweep_failures_total")
        self.unkillable = self._gauge("unkillable")
        self.unreadable = self._gauge("unreadable_processes")
        self.last_sweep = self._gauge("last_sweep_timestamp_seconds")
        self.registry_up = self._gauge("registry_up")
        self.registry_written = self._gauge("registry_last_write_timestamp_seconds")
        self._gauge("build_info").labels(importlib.metadata.version("agent-watchdogd")).set(1)
        self.sweep_seconds = Histogram(
            PREFIX + "sweep_seconds",
            FIGURES["sweep_seconds"].text,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self._now = _Now()
        self.registry.register(self._now)

    def count(self, counts: Counts) -> None:
        """Set the source of the counts for each scrape."""
        self._now.counts = counts

    def expect(self, hooks: Iterable[str]) -> None:
        """Hooks that may fail: start their counters at 0, so that an increase can be seen."""
        for hook in hooks:
            self.cleanup_failures.labels(hook)

    def text(self) -> bytes:
        """The exposition format (prometheus.io/docs/instrumenting/exposition_formats, 0.0.4)."""
        return generate_latest(self.registry)

    def _counter(self, name: str) -> Counter:
        figure = FIGURES[name]
        return Counter(PREFIX + name, figure.text, figure.labels, registry=self.registry)

    def _gauge(self, name: str) -> Gauge:
        figure = FIGURES[name]
        return Gauge(PREFIX + name, figure.text, figure.labels, registry=self.registry)


class _Now(Collector):
    """Metrics that are counted at the time of the scrape."""

    def __init__(self) -> None:
        self.counts: Counts = NoCounts()

    def collect(self) -> Iterator[Metric]:
        tally = self.counts.verdicts()
        yield _gauges("agents", {str(verdict): tally.get(str(verdict), 0) for verdict in [*Verdict, "none"]})
        waits = self.counts.needs_person()
        yield GaugeMetricFamily(PREFIX + "needs_person", FIGURES["needs_person"].text, value=waits)
        yield _gauges("holds", self.counts.hold_counts())
        yield _gauges("mass_stall", {"all": 0} | dict.fromkeys(self.counts.mass_stalled(), 1))
        health = self.counts.log_health()
        up = GaugeMetricFamily(PREFIX + "log_up", FIGURES["log_up"].text, value=int(health.error is None))
        yield up
        stuck = len(threads.overdue())
        yield GaugeMetricFamily(PREFIX + "stuck_calls", FIGURES["stuck_calls"].text, value=stuck)
        for name, count in (
            ("log_lost_lines_total", health.lost),
            ("history_lost_events_total", self.counts.history_lost()),
        ):
            yield CounterMetricFamily(PREFIX + name, FIGURES[name].text, value=count)


def _gauges(name: str, values: Mapping[str, int]) -> Metric:
    figure = FIGURES[name]
    family = GaugeMetricFamily(PREFIX + name, figure.text, labels=figure.labels)
    for label, value in values.items():
        family.add_metric([label], value)
    return family
