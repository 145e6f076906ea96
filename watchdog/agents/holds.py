"""Operator holds in memory: a deliberate "do nothing" about one agent, or about all, until lifted or expired.

The registry keeps them; the sweep asks here. A hold ends at a wall time, because people read it as one. When the clock
is set, that time moves along: two hours remain two hours.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from watchdog.registry.rows import HoldRow

REMEMBERED = 10_000  # rows of lifted holds; an agent's beyond that gets a new one


class Holds:
    """The holds in force."""

    def __init__(self, rows: Iterable[HoldRow] = ()) -> None:
        self._holds: dict[int, HoldRow] = {}
        self._moved: set[int] = set()
        self._of: dict[str | None, dict[int, HoldRow]] = {}  # the same by agent, as each sweep asks for every agent
        for row in rows:
            if row.ended_at is None:
                self._take(row)
        self._over: set[int] = set()  # forgotten here, but perhaps still in the registry
        self._rows: dict[str | None, int] = {}  # the row of an agent's last lifted hold, which the next one reuses

    def ids(self) -> frozenset[int]:
        """The ids known here; take them for `sync_with_registry` before the registry is read."""
        return frozenset(self._holds)

    def sync_with_registry(
        self, stored: Collection[HoldRow], known: frozenset[int]
    ) -> tuple[list[HoldRow], list[HoldRow]]:
        """Follow the registry: a host that shares it may hold our agents, and lift their holds.

        Returns (begun, ended). `known` is `ids()` from before the registry was read: a hold that was added since is not
        in `stored`, and stays; one that was lifted since may be in it, and is not restored.
        """
        ids = {row.id for row in stored}
        self._over &= ids
        ended = [self._drop(gone) for gone in sorted(known - ids) if gone in self._holds]
        begun = [row for row in stored if row.id not in self._holds and row.id not in self._over]
        for row in begun:
            self._take(row)
        return begun, ended

    def put(self, row: HoldRow) -> None:
        """Add a hold whose row is committed; it replaces an earlier one on the same target."""
        for other in list(self._of.get(row.agent_id, {}).values()):
            self._forget(other)
        self._over.discard(row.id)
        self._rows.pop(row.agent_id, None)
        self._take(row)

    def of(self, agent_id: str | None, now: datetime) -> HoldRow | None:
        """The hold in force on that agent (None: on all)."""
        return next((row for row in self.current(now) if row.agent_id == agent_id), None)

    def row_for(self, agent_id: str | None) -> int | None:
        """The row in which another hold on that agent is written: endless hold and lift must not fill the disk."""
        held = next(iter(self._of.get(agent_id, {})), None)
        return self._rows.get(agent_id) if held is None else held

    def lift(self, agent_id: str | None) -> list[HoldRow]:
        """Remove the holds on one agent (None: those on all) and return them."""
        lifted = list(self._of.get(agent_id, {}).values())
        for row in lifted:
            self._forget(row)
            self._rows.pop(agent_id, None)
            self._rows[agent_id] = row.id
        while len(self._rows) > REMEMBERED:
            del self._rows[next(iter(self._rows))]
        return lifted

    def expire(self, now: datetime) -> list[HoldRow]:
        """Remove the expired holds and return them, for one event each."""
        over = [row for row in self._holds.values() if not _on(row, now)]
        for row in over:
            self._forget(row)
        return over

    def shift(self, by: timedelta) -> None:
        """The wall clock was set by this much: shift the ends, so that each hold lasts as long as requested."""
        for row in list(self._holds.values()):
            if row.until_at is not None:
                with suppress(OverflowError):
                    moved = replace(row, until_at=row.until_at + by)
                    self._holds[row.id] = self._of[row.agent_id][row.id] = moved
                    self._moved.add(row.id)

    def moved(self) -> list[HoldRow]:
        """The holds whose end must be written again, each once."""
        moved, self._moved = self._moved, set()
        return [self._holds[key] for key in sorted(moved) if key in self._holds]

    def current(self, now: datetime) -> list[HoldRow]:
        """All holds in force, the oldest first."""
        return sorted((row for row in self._holds.values() if _on(row, now)), key=lambda row: row.id)

    def reason_for(self, agent_id: str | None, now: datetime) -> str | None:
        """The hold on that agent (None: on all agents) as text, or None. A hold on all is not reported per agent."""
        for _, row in sorted(self._of.get(agent_id, {}).items()):
            if _on(row, now):
                return f"{row.reason} (by uid {row.by_uid}{_until(row)})"
        return None

    def blocking_reason(self, agent_id: str, now: datetime, *, own: bool) -> str | None:
        """The hold that blocks killing that agent, as text: one on it, or, for the daemon's `own` wish, one on all."""
        held = self.reason_for(agent_id, now)
        return self.reason_for(None, now) if held is None and own else held

    def _take(self, row: HoldRow) -> None:
        self._holds[row.id] = row
        self._of.setdefault(row.agent_id, {})[row.id] = row

    def _drop(self, hold_id: int) -> HoldRow:
        row = self._holds.pop(hold_id)
        its = self._of[row.agent_id]
        del its[hold_id]
        if not its:
            del self._of[row.agent_id]
        return row

    def _forget(self, row: HoldRow) -> None:
        self._drop(row.id)
        self._over.add(row.id)


def _on(row: HoldRow, now: datetime) -> bool:
    return row.until_at is None or row.until_at > now


def _until(row: HoldRow) -> str:
    return "" if row.until_at is None else f", until {row.until_at:%Y-%m-%d %H:%M:%SZ}"
