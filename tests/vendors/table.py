"""One row is one step of one program: what happens, and what is right; each version plays them all.

The same rows are the tests (test_table.py) and the table that is printed at the end of a run.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.tables import aligned, modules_of, page
from tests.vendors import rows as files_with_rows
from tests.vendors.programs import PROGRAMS, Version
from tests.vendors.stage import Stage

RESULTS = Path(__file__).parent / "RESULTS.md"
DAY = "## A day in the life\n"
COLUMNS = ("program", "version", "step", "right", "what the daemon did", "result")
SHARE = os.environ.get("SHARE") == "1"


@dataclass(frozen=True)
class Row:
    """One step of the program that its file is called by.

    `play` tells its story and returns what the daemon did; it raises Wrong where that was not `right`.

    `gap`: why it is not, and stays so for now, strictly: who corrects that takes the words away. `share`: it is one
    of the cheapest that decide, which CI plays. `recorded`: what its hooks were given is kept where RECORD=1, for
    tests/core/test_vendor_payloads.py. `tables`: of the daemon's configuration; `policies`: whole text.
    """

    step: str
    right: str
    play: Callable[[Stage], str]
    gap: str = ""
    _: KW_ONLY
    vendor: str = ""
    share: bool = False
    recorded: bool = False
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    policies: str = ""
    limit: float = 400


def all_rows() -> list[Row]:
    """Of all files in `rows/`; those of one program together."""
    found = [
        replace(row, vendor=module.__name__.rpartition(".")[2])
        for module in modules_of(files_with_rows)
        for row in module.ROWS
    ]
    assert len({(row.vendor, row.step) for row in found}) == len(found), "two rows have one name"
    return [row for row in found if row.share or not SHARE]


# -- what came of them


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    vendor: str
    version: str
    step: str
    right: str
    came: str
    result: str

    @property
    def cells(self) -> tuple[str, ...]:
        return PROGRAMS[self.vendor].title, self.version, self.step, self.right, self.came, self.result


def facts_of(row: Row, version: Version) -> dict[str, str]:
    """What goes with the report to whoever prints the table."""
    return {"vendor": row.vendor, "version": version.told, "step": row.step, "right": row.right, "known": row.gap}


def results(stats: dict[str, list[Any]]) -> list[Result]:
    """What pytest knows of the rows that it ran; those of one program and version together."""
    found: dict[tuple[str, str, str], Result] = {}
    outcomes = {"passed": "right", "xfailed": "", "skipped": "not to be had", "failed": "WRONG", "error": "WRONG"}
    for outcome, said in outcomes.items():
        for report in stats.get(outcome, []):
            facts = dict(getattr(report, "user_properties", ()))
            if "step" not in facts or "vendor" not in facts:
                continue
            result = said or f"known gap: {facts['known']}"
            if outcome == "failed" and facts["known"] and facts.get("holds"):
                result = "right, so the gap is to be taken from the row"
            if result == "WRONG" and "came" not in facts:
                result = "BROKE OFF"  # nothing was seen of the daemon
            came = " ".join(facts.get("came", "the story broke off: see above").split())
            key = facts["vendor"], facts["version"], facts["step"]
            found[key] = Result(*key, facts["right"], came[:160], result)
    order = list(PROGRAMS)
    return sorted(found.values(), key=lambda one: (order.index(one.vendor), one.version))


def total(lines: Iterable[Result]) -> str:
    """In one sentence."""
    lines = list(lines)
    good = sum(line.result == "right" for line in lines)
    known = sum(line.result.startswith("known gap") for line in lines)
    return f"{len(lines)} rows: {good} right, {known} known gaps, {len(lines) - good - known} otherwise"


def told(lines: Iterable[Result]) -> list[str]:
    """The table for a terminal."""
    lines = list(lines)
    return [*aligned([COLUMNS, *(line.cells for line in lines)]), "", total(lines)]


def written(lines: Iterable[Result]) -> str:
    """The same as a page."""
    lines = list(lines)
    by = (
        "Written by `FULL=1 make vendors`; each row is a step of `tests/vendors/rows`, played by the vendor's own\n"
        "program from npm against a model server on loopback. A known gap is a row that is expected to fail, strictly."
    )
    return page("Vendors", by, total(lines), [COLUMNS, *(line.cells for line in lines)]) + _day()


def _day() -> str:
    """What was written below the table by hand, of `make day`."""
    _, heading, after = RESULTS.read_text().partition(DAY)
    return f"\n{heading}{after}" if heading else ""
