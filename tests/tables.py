"""What tests that are a table share: which rows run this time, what came of each, and how it is told."""

import os
import platform
import random
from collections.abc import Iterator, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

FULL = os.environ.get("FULL") == "1"
SEED = os.environ.get("SEED")
NEEDS_ROOT, NEEDS_USER = (
    "needs root: namespaces, mounts, foreign uids",
    "root may do anything, so there is no such fault",
)


def modules_of(package: ModuleType) -> list[ModuleType]:
    """The files of a folder, in the order of their names: a new one is found by itself."""
    names = sorted(module.name for module in iter_modules(package.__path__))
    return [import_module(f"{package.__name__}.{name}") for name in names]


def picked(names: Sequence[str], of: int) -> set[str]:
    """All of those names, or one `of` so many by $SEED: CI has not the time for all, and picks by its commit."""
    if SEED is None or FULL:
        return set(names)
    return set(random.Random(SEED).sample(names, -(-len(names) // of)))


def reports(stats: dict[str, list[Any]], key: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """What pytest knows of tests that told such a fact: outcome, report, facts. A later outcome outweighs."""
    for outcome in ("passed", "skipped", "failed", "error"):
        for report in stats.get(outcome, []):
            facts = dict(getattr(report, "user_properties", ()))
            if key in facts:
                yield ("failed" if outcome == "error" else outcome), report, facts


def skipped_for(report: Any) -> str:
    """The reason, as the table says it."""
    return "skipped: " + str(report.longrepr[2]).removeprefix("Skipped: ")


def aligned(cells: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines for a terminal; the last column is not filled up."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]) - 1)]
    return [" | ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]) for row in cells]


def page(title: str, by: str, total: str, cells: Sequence[tuple[str, ...]]) -> str:
    """The table as a page; `by` says who wrote it."""
    head, *rows = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in cells]
    return "\n".join(
        [
            f"# {title}",
            "",
            by,
            "",
            f"**{total}** on Linux {platform.release()}, {os.cpu_count()} cores.",
            "",
            f"| {head} |",
            f"|{' --- |' * len(cells[0])}",
            *(f"| {row} |" for row in rows),
            "",
        ]
    )
