"""One row is one agent in its situation and what is right: it lives, or is ended for that reason.

The same rows are the tests (test_table.py) and the table with its confusion matrix, printed at the end of a run.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.tables import NEEDS_ROOT, aligned, modules_of, page, picked, reports, skipped_for
from tests.verdicts import scenes as files_with_scenes

LIVES = "lives"
STALLED, EXPIRED, LINGERING, NEVER_STARTED = "stalled", "expired", "lingering", "failed_to_start"
RESULTS = Path(__file__).parent / "RESULTS.md"
COLUMNS = ("scene", "situation", "right", "came")
ROUNDED = 0.01  # seconds: differences of clocks that are floats, and sums of steps that are whole microseconds
OF_ALIKE = 7  # of scenes that are alike, SEED picks one in so many


@dataclass(frozen=True, kw_only=True)
class Row:
    """One agent. `right`: LIVES, or the reason of the kill request that ends it.

    `earliest`, `latest`: seconds from its first word (or from its registration, where it never speaks) to that request.
    `told`: how often each of these events is told of it. `root`: the situation needs root.
    """

    name: str
    situation: str
    right: str = LIVES
    earliest: float = 0.0
    latest: float = float("inf")
    told: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Came:
    """What came of one row: LIVES or the reason of its end; `wrong` says what else was not as it should be."""

    what: str
    wrong: str = ""


@dataclass(frozen=True)
class Scene:
    """One daemon and a story; `play` gives what came of each row, by name.

    `alike`: one of many of a kind, of which CI plays a part. `root`: it needs root. `limit`: seconds it may take.
    """

    name: str
    rows: Sequence[Row]
    play: Callable[[Sequence[Row]], Mapping[str, Came]]
    alike: bool = True
    root: bool = False
    limit: float = 240

    def skip(self) -> None:
        """Leave it out for the uid that it is nothing for."""
        if self.root and os.geteuid() != 0:
            pytest.skip(NEEDS_ROOT)


def all_scenes() -> list[Scene]:
    """Of all files in `scenes/`, in the order of their names."""
    found = [scene for module in modules_of(files_with_scenes) for scene in module.SCENES]
    assert len({scene.name for scene in found}) == len(found), "two scenes have one name"
    for scene in found:
        assert len({row.name for row in scene.rows}) == len(scene.rows), f"{scene.name}: two rows have one name"
    return found


def share(scenes: Sequence[Scene]) -> list[Scene]:
    """All, or of those that are alike what $SEED picks."""
    chosen = picked([scene.name for scene in scenes if scene.alike], OF_ALIKE)
    return [scene for scene in scenes if not scene.alike or scene.name in chosen]


def judged(row: Row, reason: str | None, seconds: float | None, told: Callable[[str], int]) -> Came:
    """What came of a row: the reason of its kill request and when that came, and what was told of it."""
    wrong = []
    if reason is not None and seconds is not None and not row.earliest - ROUNDED <= seconds <= row.latest + ROUNDED:
        wrong.append(f"after {seconds:.1f} s, not within {row.earliest:g} to {row.latest:g} s")
    for event, times in (row.told or {}).items():
        if told(event) != times:
            wrong.append(f"{event} told {told(event)} times, not {times}")
    return Came(reason or LIVES, "; ".join(wrong))


def together(ends: Sequence[Came]) -> Came:
    """What came of many of the same kind: of one that ended otherwise the row is told."""
    odd = [one for one in ends if one.what != ends[0].what or one.wrong]
    if not odd:
        return ends[0]
    kinds = sorted({one.what for one in ends})
    count = ", ".join(f"{sum(one.what == kind for one in ends)} {kind}" for kind in kinds)
    return Came(max(kinds, key=lambda kind: sum(one.what == kind for one in odd)), f"{count}; {odd[0].wrong}")


# -- what came of them


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    scene: str
    situation: str
    right: str
    came: str
    wrong: str

    @property
    def as_it_should(self) -> bool:
        return self.right == self.came and not self.wrong

    @property
    def cells(self) -> tuple[str, ...]:
        came = self.came if self.as_it_should else f"WRONG: {self.came} {self.wrong}".rstrip()
        return self.scene, self.situation, self.right, came


def facts_of(scene: Scene, came: Mapping[str, Came]) -> list[tuple[str, ...]]:
    """The lines of a scene as they travel with pytest's report."""
    ends = {row.name: came.get(row.name, Came("nothing", "it was not played")) for row in scene.rows}
    return [(scene.name, r.situation, r.right, ends[r.name].what, ends[r.name].wrong) for r in scene.rows]


def results(stats: dict[str, list[Any]]) -> list[Result]:
    """What pytest knows of the scenes that it played, in their order; what was skipped or broke is told as such."""
    found: dict[str, list[Result]] = {}
    for outcome, report, facts in reports(stats, "scene"):
        lines = [Result(*line) for line in facts.get("came", [])]
        if outcome == "skipped":
            lines = [Result(facts["scene"], f"{facts['rows']} rows", "", "", skipped_for(report))]
        elif not lines:
            lines = [Result(facts["scene"], f"{facts['rows']} rows", "", "", "the scene broke: see above")]
        found[facts["scene"]] = lines
    return [line for name in sorted(found) for line in found[name]]


def matrix(lines: Iterable[Result]) -> list[str]:
    """Should die, should live; died, lived. And in words what the two wrong cells are."""
    count = {(should, did): 0 for should in (True, False) for did in (True, False)}
    other = 0
    for line in lines:
        if not line.right:
            continue
        count[line.right != LIVES, line.came != LIVES] += 1
        other += not line.as_it_should and (line.right != LIVES) == (line.came != LIVES)
    dies, lives = count[True, True] + count[True, False], count[False, True] + count[False, False]
    return [
        f"{'':12}   died  lived",
        f"{'should die':12} {count[True, True]:6} {count[True, False]:6}",
        f"{'should live':12} {count[False, True]:6} {count[False, False]:6}",
        f"{dies + lives} rows: {count[False, True]} false kills, {count[True, False]} missed stalls"
        f", {other} right but late, early or told wrongly",
    ]


def told(lines: Iterable[Result]) -> list[str]:
    """The table for a terminal, and the matrix."""
    lines = list(lines)
    return [*aligned([COLUMNS, *(line.cells for line in lines)]), "", *matrix(lines)]


def written(lines: Iterable[Result]) -> str:
    """The same as a page."""
    lines = list(lines)
    by = "Written by `FULL=1 make verdicts`; each row is an agent of `tests/verdicts/scenes`."
    square = "\n".join(["```", *matrix(lines)[:3], "```", ""])
    return page("Verdicts", f"{by}\n\n{square}", matrix(lines)[-1], [COLUMNS, *(line.cells for line in lines)])
