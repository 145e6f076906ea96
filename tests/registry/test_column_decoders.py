"""One column of a row that may have been edited by hand: its value, or the column's name and what is wrong with it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from watchdog.core.agent import Status
from watchdog.registry import column_decoders as columns
from watchdog.registry.column_decoders import BadRow, Raw

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def status(raw: Raw, key: str) -> Status:
    return columns.word(raw, key, Status)


def texts(raw: Raw, key: str) -> tuple[str, ...]:
    return columns.listing(raw, key, str)


def small(raw: Raw, key: str) -> int:
    return columns.whole(raw, key, 0, 9)


@pytest.mark.parametrize(
    ("decode", "stored", "value"),
    [
        (columns.text, "", ""),
        (columns.whole, -(2**63), -(2**63)),
        (small, 9, 9),
        (columns.number, 3, 3.0),
        (columns.seconds, 0, 0.0),
        (columns.duration, 1.5, timedelta(seconds=1.5)),
        (columns.moment, NOW, NOW),
        (status, "lost", Status.LOST),
        (columns.mapping, '{"a": 1}', {"a": 1}),
        (texts, "[]", ()),
        (texts, '["a", "b"]', ("a", "b")),
    ],
)
def test_a_column_is_read_as_what_it_holds(decode: Callable[[Raw, str], object], stored: object, value: object) -> None:
    """Each at a bound, if it has one."""
    found = decode({"c": stored}, "c")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("decode", "stored"),
    [
        (columns.text, b"x"),
        (columns.text, None),
        (columns.whole, True),
        (columns.whole, "7"),
        (columns.whole, 7.0),
        (columns.whole, 2**63),
        (small, 10),
        (small, -1),
        (columns.number, float("nan")),
        (columns.number, float("inf")),
        (columns.number, "1"),
        (columns.seconds, -0.1),
        (columns.seconds, 1e9 + 1),
        (columns.duration, 1e300),
        (columns.moment, "2026-11-30"),
        (status, "eaten"),
        (status, 7),
        (columns.mapping, "[]"),
        (columns.mapping, "{"),
        (columns.mapping, '{"a":' * 100_000),
        (texts, "{}"),
        (texts, '["a", 1]'),
    ],
    ids=lambda one: None if callable(one) else repr(one)[:20],
)
def test_what_a_column_cannot_hold_is_told_by_its_name(decode: Callable[[Raw, str], object], stored: object) -> None:
    """SQLite stores any type in any column."""
    with pytest.raises(BadRow, match=r"^c: "):
        decode({"c": stored}, "c")


def test_null_is_none_and_nothing_else_is() -> None:
    """An empty string, or zero, is a value."""
    assert columns.optional({"c": None}, "c", columns.text) is None
    assert columns.optional({"c": ""}, "c", columns.text) == ""
    with pytest.raises(BadRow):
        columns.optional({"c": 0}, "c", columns.text)


def test_an_object_within_an_object_is_one() -> None:
    """For a list or a string the error names the key."""
    assert columns.inner({"who": {"pid": 2}}, "who") == {"pid": 2}
    with pytest.raises(BadRow, match=r"^who: "):
        columns.inner({"who": [2]}, "who")
