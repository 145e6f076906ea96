"""What other programs know of agents: other daemons of this host, foreign registries, and reports of `run`.

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
    """The parts that ask them; none waits for another."""

    forwarder: Forwarder
    custodians: Custodians
    stale: StaleEntries
    sources: SourceImporter
    run_reports: RunReportImporter
