"""What holds for all tests: skips, and the sum of the faults of the registry.

Where everything is installed, a skipped test is a failure: `STRICT_SKIPS=1`, set by `.ci/run`.

A test may be skipped there only for what no package can mend: the uid that it runs as, and the kernel.
"""

import os
from collections.abc import Iterator
from typing import cast

import pytest

STRICT = os.environ.get("STRICT_SKIPS") == "1"
KERNEL = ("this kernel ", "no thread of the kernel ")
MENDED_ELSEWHERE = (
    ("root may ",) if os.geteuid() == 0 else ("needs root", "only root ", "mounts and foreign uids need root")
)


def forgiven(reason: str) -> bool:
    """Whether a test may be skipped for that reason even in CI; the run as the other uid does not skip it."""
    return reason.startswith(KERNEL + MENDED_ELSEWHERE)


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not (STRICT and report.skipped) or hasattr(report, "wasxfail"):
        return
    reason = cast("tuple[str, int, str]", report.longrepr)[2].removeprefix("Skipped: ")
    if not forgiven(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be missing: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """A test, or a fixture, that skips."""
    report = yield
    _refuse(cast("pytest.TestReport", report))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    """A whole module that skips (importorskip)."""
    report = yield
    _refuse(cast("pytest.CollectReport", report))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line on the registry's faults, for all workers together; it is here as only this file is loaded there."""
    found = {
        outcome: {r.nodeid for r in terminalreporter.stats.get(outcome, []) if "/registry_faults/" in r.nodeid}
        for outcome in ("passed", "failed", "error")
    }
    lost = found["failed"] | found["error"]
    survived = found["passed"] - lost
    if survived or lost:
        terminalreporter.write_line(f"registry faults survived {len(survived)} of {len(survived | lost)}")
