"""What every class of queries needs: decoding rows one by one, and the only function that writes a `lifecycle_event`.

Statements that each kill uses are built once, with bound parameters: building one costs as much as executing it.

Tests: tests/registry/test_faults.py, tests/registry/test_history_queries.py.
"""

from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, insert

from watchdog.core.agent import Status
from watchdog.registry.column_decoders import BadRow, Raw
from watchdog.registry.engines import Engines, in_order
from watchdog.registry.row_codec import dump
from watchdog.registry.rows import Problem
from watchdog.registry.schema import lifecycle_event

T = TypeVar("T")
Key = TypeVar("Key", str, int, str | int)
_EVENT = insert(lifecycle_event)


class Queries:
    """Base of each class of queries on one database."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines

    def _rows(
        self, query: Select[Any], decode: Callable[[Raw], T], **parameters: object
    ) -> tuple[list[T], list[Problem]]:
        """Run a query and decode each row by itself: one that cannot be read does not affect the others.

        Rows are fetched one at a time: a thousand raw rows at once are 5 MB that the process keeps.
        """
        rows: list[T] = []
        problems: list[Problem] = []
        with self.engines.begin(self.engines.reading) as connection:
            for raw in connection.execute(query, parameters).mappings():
                row: Raw = {str(key): value for key, value in raw.items()}
                try:
                    rows.append(decode(row))
                except BadRow as error:
                    problems.append(Problem(str(row.get("agent_id")), str(error)))
        return rows, problems


def padded(keys: Collection[Key]) -> list[Key]:
    """Keys for an `IN (…)`, the last one repeated until their number is a power of two.

    Each length of a list is a statement of its own, which every connection keeps prepared: with lists of 1 to 50 keys
    a daemon grew by 16 MB in ten minutes.
    """
    listed = list(keys)
    return listed + listed[-1:] * ((1 << max(len(listed) - 1, 0).bit_length()) - len(listed))


def values(statuses: Iterable[Status]) -> list[str]:
    """Statuses as strings for SQL, sorted."""
    return sorted(status.value for status in statuses)


def write_event(
    connection: Connection,
    event: str,
    agent_id: str | None,
    who: str,
    why: str,
    now: datetime,
    *,
    from_status: str | None = None,
    to_status: str | None = None,
    evidence: object = None,
    owner_uid: int | None = None,
) -> int:
    """Insert one event in the caller's transaction; returns its id."""
    in_order(connection)
    result = connection.execute(
        _EVENT,
        {
            "at": now,
            "agent_id": agent_id,
            "event": event,
            "from_status": from_status,
            "to_status": to_status,
            "who": who,
            "why": why,
            "evidence": dump({} if evidence is None else evidence),
            "owner_uid": owner_uid,
        },
    )
    key = result.inserted_primary_key
    return int(key[0]) if key is not None else 0


def seconds(duration: timedelta | None) -> float | None:
    """A duration as stored, in seconds."""
    return None if duration is None else duration.total_seconds()
