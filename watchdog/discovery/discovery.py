"""What others know of agents: other daemons of this host, other programs' registries, and what a `run` wrote down.

Tests: tests/service/test_wiring.py.
"""

from dataclasses import dataclass

from watchdog.discovery.custody import Custodians
from watchdog.discovery.forwarder import Forwarder
from watchdog.discovery.importer import SourceImporter
from watchdog.discovery.run_reports import RunReportImporter
from watchdog.discovery.stale_entries import StaleEntries


@dataclass(frozen=True, slots=True)
class Discovery:
    """The parts that ask them, each by itself: none waits for another."""

    forwarder: Forwarder
    custodians: Custodians
    stale: StaleEntries
    sources: SourceImporter
    run_reports: RunReportImporter
