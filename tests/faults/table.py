"""One row is one fault: how it is injected, the end state that is expected, and how many runs prove it.

The same rows are the tests (test_table.py) and the table that is printed at the end of a run.
"""

import os
import random
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.faults import rows as files_with_rows
from tests.tables import FULL, NEEDS_ROOT, NEEDS_USER, aligned, modules_of, page, picked, reports, skipped_for

RESULTS = Path(__file__).parent / "RESULTS.md"
COLUMNS = ("fault", "how injected", "expected end state", "runs", "result")
SHARE = 20  # without FULL=1 a row does one run in so many
OF_ALIKE = 10  # and of many rows that are alike, SEED picks one in so many
OF_OTHERS = 3  # of the others likewise


@dataclass
class Run:
    """What a row's function gets: how often to do it this time, and what chance it may use."""

    times: int
    random: random.Random  # the same for the same SEED
    fixture: Callable[[str], Any]  # a pytest fixture by its name, e.g. what is too dear to be made for each row
    notes: list[str] = field(default_factory=list)

    def note(self, figure: str) -> None:
        """A figure for the table's last column."""
        self.notes.append(figure)

    def within(self, took: float, limit: float, what: str) -> None:
        """A time in seconds, and its limit on a machine without other work, for FULL=1; else it is only told.

        Beside other work it says more of that: what must end at all has the limit of the daemon, the client or the row.
        """
        self.note(f"{took:.2f} s {what}")
        assert took <= limit or not FULL, f"{took:.2f} s {what}, of {limit:g} s"


@dataclass(frozen=True)
class Row:
    """One fault. `survive` does it `Run.times` times, and fails when one ended otherwise than `end` says.

    `runs`: how many are done with FULL=1, else one in `share` of them and at `least` so many. `alike`: one of many of a
    kind, of which CI does a smaller part. `root`: True where it needs root, False where root has no such fault.
    `limit`: so many seconds may all its runs take.
    """

    fault: str
    how: str
    end: str
    survive: Callable[[Run], None]
    runs: int = 1
    least: int = 1
    share: int = SHARE
    alike: bool = False
    root: bool | None = None
    limit: float = 240

    @property
    def times(self) -> int:
        """How many runs it does this time."""
        return self.runs if FULL else min(self.runs, max(self.least, self.runs // self.share))

    def skip(self) -> None:
        """Leave it out for the uid that it is nothing for."""
        if self.root is not None and self.root != (os.geteuid() == 0):
            pytest.skip(NEEDS_ROOT if self.root else NEEDS_USER)


def all_rows() -> list[Row]:
    """Of all files in `rows/`, in the order of their names."""
    found = [row for module in modules_of(files_with_rows) for row in module.ROWS]
    assert len({row.fault for row in found}) == len(found), "two rows have one name"
    return found


def share(rows: Sequence[Row]) -> list[Row]:
    """All, or what $SEED picks."""
    chosen = picked([row.fault for row in rows if row.alike], OF_ALIKE)
    chosen |= picked([row.fault for row in rows if not row.alike], OF_OTHERS)
    return [row for row in rows if row.fault in chosen]


# -- what came of them


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    fault: str
    how: str
    end: str
    runs: str
    result: str
    outcome: str  # passed, failed, skipped

    @property
    def cells(self) -> tuple[str, ...]:
        return self.fault, self.how, self.end, self.runs, self.result


def results(stats: dict[str, list[Any]]) -> list[Result]:
    """What pytest knows of the rows that it ran, in the table's order; the facts came with the reports."""
    found: dict[str, Result] = {}
    for outcome, report, facts in reports(stats, "fault"):
        text = "LOST: see above"
        if outcome != "failed":
            text = skipped_for(report) if outcome == "skipped" else facts.get("figures") or "survived"
        found[facts["fault"]] = Result(facts["fault"], facts["how"], facts["end"], facts["runs"], text, outcome)
    return sorted(found.values(), key=lambda one: one.fault)


def told(lines: Iterable[Result]) -> list[str]:
    """The table for a terminal, and its sum."""
    lines = list(lines)
    done = [one for one in lines if one.outcome != "skipped"]
    survived = sum(one.outcome == "passed" for one in done)
    skipped = f" ({len(lines) - len(done)} skipped)" if len(lines) > len(done) else ""
    return [*aligned([COLUMNS, *(one.cells for one in lines)]), f"faults survived {survived} of {len(done)}{skipped}"]


def written(lines: Iterable[Result]) -> str:
    """The same as a page. All rows take over an hour: those that were not run keep what they came to when they were."""
    at = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    rows = {one.fault: (*one.cells, at) for one in lines if one.outcome != "skipped"}
    known = {row.fault for row in all_rows()}
    if RESULTS.exists():
        former = (line[2:-2].split(" | ") for line in RESULTS.read_text().splitlines() if line.startswith("| "))
        rows = {fault: (fault, *rest) for fault, *rest in former if fault in known} | rows
    survived = sum(not row[4].startswith("LOST") for row in rows.values())
    by = "Written by `FULL=1 make faults`, whole or in parts; each row is a test of `tests/faults/rows`."
    total = f"faults survived {survived} of {len(rows)}"
    return page("Faults survived", by, total, [(*COLUMNS, "commit"), *(rows[fault] for fault in sorted(rows))])
