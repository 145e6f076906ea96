"""What others depend on is as it was recorded, whatever became of the code behind it."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wire import lists, record

ADVICE = """
Each line: where, what was recorded, what is there now. Others depend on it: programs, dashboards, scripts, old rows.
Not meant? Correct the code. Meant, and in CHANGELOG.md? `python -m tests.wire` records it; commit the difference."""


@pytest.mark.parametrize("part", record.PARTS, ids=lambda part: part.__name__)
def test_it_is_as_it_was_recorded(part: Callable[[], record.Json]) -> None:
    """Routes, verbs, events, tables, figures, keys; and a registry and a trash that a former version wrote."""
    lines = record.changes(part())

    assert not lines, "\n".join([*lines[:100], *([f"and {len(lines) - 100} more"] if len(lines) > 100 else []), ADVICE])


def test_each_route_is_asked() -> None:
    """One that is not in the story would be recorded by its name alone."""
    asked, there = set(record.load("routes")), set(lists.routes())

    missing = sorted(there - asked)

    assert not missing, f"{missing}: give each a good and a bad request in tests/wire/story.py, then record again"


def test_each_route_has_a_good_and_a_bad_request() -> None:
    """All but those that take nothing that could be wrong."""
    takes_nothing = {"GET /agents", "GET /status", "GET /custody", "GET /metrics", "POST /reload"}
    statuses = {route: {case.get("status", 200) // 100 for case in cases.values()} for route, cases in
                record.load("routes").items()}  # fmt: skip

    wrong = {
        route for route in lists.routes() if not statuses[route] >= ({2} if route in takes_nothing else {2, 4})
    }  # a service that sessions share is a vendor's program: tests/control/test_sessions.py
    assert wrong <= {"POST /sessions/beat", "POST /purge"}, wrong


def test_each_verb_is_used() -> None:
    """`mcp` and `doctor` are left out: the one speaks a protocol of its own, the other tells of the machine."""
    used, there = set(record.load("verbs")), set(lists.options()["(before the verb)"])

    missing = {verb for verb in there - used if not verb.startswith("-")}

    assert missing == {"mcp", "doctor"}, "use it in tests/wire/story.py, then record again"


def test_nothing_of_the_package_is_imported() -> None:
    """Its modules change their names; what is held here must not know them."""
    for file in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            ours = [name for name in names if name.startswith(("watchdog", "tests")) and name[:10] != "tests.wire"]
            assert not ours, f"{file.name} imports {ours}"
