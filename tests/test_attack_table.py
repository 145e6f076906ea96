"""The table of attacks and the page on security name tests; each of these exists, and each row has one."""

import ast
import re
from pathlib import Path

import pytest

from tests.attacks.table import HELD, HELD_LATER, LATER, WORKED

ROWS = WORKED | LATER | HELD | HELD_LATER
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "config/doc/security.md"
# Of the security review: two critical rows, five high ones, five middling ones, five low ones.
IDS = ("C1", "C2", "H1", "H2", "H3", "H3b", "H4", "M1", "M2", "M3", "M4", "M5", "L1", "L2", "L3", "L4", "L5")


def missing(name: str) -> str | None:
    """What is not there of `FILE` or `FILE::test`."""
    file, _, test = name.partition("::")
    path = ROOT / file
    if not path.is_file():
        return f"there is no {file}"
    functions = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
    if test:
        return None if test in functions else f"{file} has no {test}"
    return None if any(name.startswith("test_") for name in functions) else f"{file} has no test"


def test_each_row_of_the_review_is_there() -> None:
    assert [row.split()[0] for row in WORKED] == list(IDS)
    assert len(HELD) == 17


@pytest.mark.parametrize("row", [*ROWS])
def test_each_row_has_tests_that_exist(row: str) -> None:
    names = ROWS[row]
    assert names
    assert [words for name in names if (words := missing(name)) is not None] == []


def test_each_suite_of_attacks_plays_a_row() -> None:
    """A new file in tests/attacks has its place in the table."""
    named = {name.partition("::")[0] for names in ROWS.values() for name in names}
    there = {f"tests/attacks/{path.name}" for path in (ROOT / "tests/attacks").glob("test_*.py")}
    assert there <= named


def test_each_promise_of_the_page_names_tests_that_exist() -> None:
    """A line of the page that promises something ends with its tests in brackets."""
    text = PAGE.read_text()
    promised = text.partition("## What is promised")[2].partition("\n## ")[0]
    items = [item for item in re.split(r"\n(?=- )", promised) if item.startswith("- ")]
    assert len(items) >= 10
    for item in items:
        names = re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", item)
        assert names, f"no test is named: {item}"
        assert [words for name in names if (words := missing(name)) is not None] == []
    assert len(text.splitlines()) <= 120


def test_the_page_tells_how_to_report_without_an_address() -> None:
    text = PAGE.read_text()
    assert "private security advisor" in text
    assert re.search(r"[\w.+-]+@[\w-]+\.\w+|https?://", text) is None
