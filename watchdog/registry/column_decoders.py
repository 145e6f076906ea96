"""One column of a stored row -> its value, or `BadRow` with the column and what is wrong with it."""

import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from watchdog.errors import Conflict
from watchdog.registry.rows import Json

Raw = Mapping[str, object]
E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")
_LONGEST_SECONDS = 1e9  # 31 years; timedelta itself overflows at 8.6e13


class BadRow(Conflict):
    """A stored row that cannot be understood: names the column and the value."""


def optional(raw: Raw, key: str, decode: Callable[[Raw, str], T]) -> T | None:
    """None for NULL."""
    return None if raw[key] is None else decode(raw, key)


def text(raw: Raw, key: str) -> str:
    """A string."""
    value = raw[key]
    if not isinstance(value, str):
        raise BadRow(f"{key}: {value!r} is not text")
    return value


def whole(raw: Raw, key: str, least: int = -(2**63), most: int = 2**63 - 1) -> int:
    """A whole number within these bounds."""
    value = raw[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRow(f"{key}: {value!r} is not a whole number")
    if not least <= value <= most:
        raise BadRow(f"{key}: {value} is not between {least} and {most}")
    return value


def number(raw: Raw, key: str) -> float:
    """A finite number."""
    value = raw[key]
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise BadRow(f"{key}: {value!r} is not a number")
    return float(value)


def seconds(raw: Raw, key: str) -> float:
    """Seconds from 0 to 31 years."""
    value = number(raw, key)
    if not 0 <= value <= _LONGEST_SECONDS:
        raise BadRow(f"{key}: {value} is not between 0 and {_LONGEST_SECONDS:.0f} seconds")
    return value


def duration(raw: Raw, key: str) -> timedelta:
    """Seconds as a `timedelta`."""
    return timedelta(seconds=seconds(raw, key))


def moment(raw: Raw, key: str) -> datetime:
    """A time, as the column's type has read it."""
    value = raw[key]
    if not isinstance(value, datetime):
        raise BadRow(f"{key}: {value!r} is not a time")
    return value


def word(raw: Raw, key: str, kind: type[E]) -> E:
    """A member of an enumeration."""
    try:
        return kind(text(raw, key))
    except ValueError:
        raise BadRow(f"{key}: {raw[key]!r} must be one of {', '.join(kind)}") from None


def mapping(raw: Raw, key: str) -> Json:
    """A JSON object as text."""
    value = _json(raw, key)
    if not isinstance(value, dict):
        raise BadRow(f"{key}: a JSON object is expected")
    return value


def inner(stored: Json, key: str) -> Json:
    """An object within a JSON object."""
    value = stored[key]
    if not isinstance(value, dict):
        raise BadRow(f"{key}: {value!r} is not a JSON object")
    return value


def listing(raw: Raw, key: str, kind: type[T]) -> tuple[T, ...]:
    """A JSON list of values of that type, as text."""
    value = _json(raw, key)
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise BadRow(f"{key}: a JSON list of {kind.__name__} is expected")
    return tuple(value)


def _json(raw: Raw, key: str) -> object:
    try:
        value: object = json.loads(text(raw, key))
    except (ValueError, RecursionError) as error:
        raise BadRow(f"{key}: no JSON ({error})") from None
    return value
