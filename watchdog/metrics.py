"""Figures for Prometheus, in a registry of our own. Whoever does a thing counts it here; nothing is decided by them."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from watchdog.core.model import Verdict

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All figures. Labels have few values: never an agent's name."""

    def __init__(self, verdicts: Callable[[], Mapping[str, int]], holds: Callable[[], Mapping[str, int]]) -> None:
        """How many living agents by verdict (`none`: not looked at yet) and holds by kind; asked at each scrape."""
        self.registry = CollectorRegistry()
        self.kills = Counter("agent_watchdog_kills", "Kills that ended", ["reason", "outcome"], registry=self.registry)
        self.vetoes = Counter(
            "agent_watchdog_vetoes",
            "Kills that were not begun, by what stopped them",
            ["reason"],
            registry=self.registry,
        )
        self.cleanup_failures = Counter(
            "agent_watchdog_cleanup_failures", "Cleanup hooks that failed for good", ["hook"], registry=self.registry
        )
        self.denied = Counter(
            "agent_watchdog_denied", "Requests refused for want of permission", ["route"], registry=self.registry
        )
        self.unkillable = Gauge(
            "agent_watchdog_unkillable", "Agents of which something could not be ended", registry=self.registry
        )
        self.last_sweep = Gauge(
            "agent_watchdog_last_sweep_timestamp_seconds",
            "When the last sweep ended, Unix time",
            registry=self.registry,
        )
        self.sweep_seconds = Histogram(
            "agent_watchdog_sweep_seconds",
            "How long sweeps took",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.registry.register(_Now(verdicts, holds))

    def text(self) -> bytes:
        """The exposition format (prometheus.io/docs/instrumenting/exposition_formats, 0.0.4)."""
        return generate_latest(self.registry)


class _Now(Collector):
    """What is counted at the moment of the scrape."""

    def __init__(self, verdicts: Callable[[], Mapping[str, int]], holds: Callable[[], Mapping[str, int]]) -> None:
        self._verdicts = verdicts
        self._holds = holds

    def collect(self) -> Iterator[Metric]:
        tally = self._verdicts()
        agents = GaugeMetricFamily("agent_watchdog_agents", "Living agents by verdict", labels=["verdict"])
        for verdict in [*Verdict, "none"]:
            agents.add_metric([str(verdict)], tally.get(str(verdict), 0))
        yield agents
        holds = GaugeMetricFamily("agent_watchdog_holds", "Holds that are on", labels=["reason"])
        for reason, count in self._holds().items():
            holds.add_metric([reason], count)
        yield holds
