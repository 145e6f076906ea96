"""What holds for all tests: skips, and the tables of faults and of verdicts.

Where everything is installed, a skipped test is a failure: `STRICT_SKIPS=1`, set by `.ci/run`.

A test may be skipped there only for what no package can mend: the uid that it runs as, and the kernel.
"""

import gc
import importlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from tests.faults import table as faults
from tests.nursery import Nursery
from tests.tables import picked
from tests.vendors import table as vendors
from tests.verdicts import draw
from tests.verdicts import table as verdicts
from tests.world import World
from watchdog.host import children
from watchdog.processes import bounded

STRICT = os.environ.get("STRICT_SKIPS") == "1"
OF_ALL = int(os.environ.get("OF", "1"))  # of all tests, SEED picks one in so many
LONGEST = ("tests/verdicts/", "tests/e2e/", "tests/wire/", "")
OF_LONG = 8  # of the long stories that are tests of their own, SEED picks one in so many
KERNEL = ("this kernel ", "no thread of the kernel ")
MENDED_ELSEWHERE = (
    ("root may ",) if os.geteuid() == 0 else ("needs root", "only root ", "mounts and foreign uids need root")
)

# That module has turned vfork(2) off for the daemon. The tests start some ten thousand programs, and a fork(2) of a
# process of 150 MB takes ten times as long.
assert children
setattr(subprocess, "_USE_VFORK", True)  # noqa: B010 - as there


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


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may enter. Each pytest that starts closes pytest's own to other users again."""
    with tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def pytest_configure() -> None:
    """Each worker draws from the seed of the one that started it."""
    draw.plant()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end, half a million objects: looking through them for garbage took 0.3 s a time.

    Half of the collection itself was that, too. The daemon (`service.bootstrap`) does so with what it imported.
    What pytest makes of each file's asserts is kept beside it, also where PYTHONDONTWRITEBYTECODE is set: every worker
    collects all files, and else each would make it anew, 3 s a time. Whoever is behind another finds it made.
    """
    keeps, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    gc.disable()
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = keeps
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """No test leaves a signal ignored or blocked: what a later one starts would inherit it."""
    before = _inherited()
    yield
    after = _inherited()
    assert after == before, f"left ignored or blocked: {after ^ before}"


def _inherited() -> frozenset[int]:
    ignored = {n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN}
    return frozenset(ignored | signal.pthread_sigmask(signal.SIG_BLOCK, ()))


@pytest.fixture(scope="session")
def _nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    forks = Nursery(tmp_path_factory.mktemp("nursery"))
    yield forks
    forks.close()


@pytest.fixture(scope="module")
def nursery(_nursery: Nursery) -> Iterator[None]:
    """Daemons of worlds that are started plainly are forked, unless `NURSERY=0`."""
    World.nursery = None if os.environ.get("NURSERY") == "0" else _nursery
    yield
    World.nursery = None


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


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Of the long stories (marked `faults`, no rows of a table) CI does a part, picked by $SEED; with $OF, of all."""
    heavy = [item.nodeid for item in items if item.get_closest_marker("faults")]
    long = [name for name in heavy if "/test_table.py::" not in name]
    left = set(long) - picked(long, OF_LONG)
    if OF_ALL > 1:
        names = [item.nodeid for item in items]
        left |= set(names) - picked(names, OF_ALL)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
    items[:] = [item for item in items if item.nodeid not in left]
    yield  # what marks and -k leave out is no worker's
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    if (workers := int(worker.get("workercount", 1))) > 1:
        items[:] = _dealt(items, workers)


def _dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """As many equal pieces as workers, each with its share of the longest first: no worker ends alone.

    xdist gives each worker one piece of the list to begin with. In the order of their names one had all stories, which
    wait, and the others what does not: at the end everybody waited, and the processors with them.
    """
    place = {item: next(n for n, place in enumerate(LONGEST) if place in item.nodeid) for item in items}
    long = sorted((item for item in items if place[item] < len(LONGEST) - 1), key=place.__getitem__)
    others = iter(item for item in items if place[item] == len(LONGEST) - 1)
    piles: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for _, of_one_file in itertools.groupby(long, lambda item: item.path):
        min(piles, key=len).extend(of_one_file)
    size = max(len(items) // workers, *map(len, piles), 0)
    return [item for pile in piles for item in (*pile, *itertools.islice(others, size - len(pile)))] + [*others]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The tables, for all workers together; it is here as only this file is loaded there."""
    stats = terminalreporter.stats
    for name, table in (("faults", faults), ("verdicts", verdicts), ("vendors", vendors)):
        lines = table.results(stats)
        if lines:
            terminalreporter.section(name)
            terminalreporter.write_line("\n".join(table.told(lines)))
            if name == "verdicts":
                terminalreporter.write_line(f"drawn from {draw.NAME}={draw.seed()}")
        if name == "verdicts" and (drawn := draw.told(stats)):
            terminalreporter.section("verdicts that were drawn")
            terminalreporter.write_line("\n".join(drawn))
        if os.environ.get("RESULTS") == name:
            table.RESULTS.write_text(table.written(lines))


@pytest.fixture
def patient() -> Iterator[list[str]]:
    """The names of questions to the kernel that a coroutine asked; one for which the loop would wait is an error."""
    asked: list[str] = []

    class Patient:
        hung: Mapping[int, bounded.Hung] = {}

        def ask(self, name: str, args: tuple[object, ...]) -> Any:
            raise AssertionError(f"the event loop waits for {name}{args}")

        async def refresh(self) -> None:
            return

        async def call(self, name: str, args: tuple[object, ...]) -> Any:
            asked.append(name)
            module, _, function = name.partition(".")
            found = getattr(importlib.import_module(f"watchdog.processes.{module}"), function)
            bounded.use(None)  # as the reader, another process
            try:
                return found.__wrapped__(*args)
            finally:
                bounded.use(self)

    bounded.use(Patient())
    yield asked
    bounded.use(None)
