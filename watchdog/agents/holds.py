"""Operator holds in memory: a deliberate "do nothing" about one agent, or about all, until it is lifted or over.

The registry keeps them; the sweep asks here. A hold's end is a wall time because people read it as one. When somebody
sets the clock it moves along: two hours are two hours that passed.
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
        self._of: dict[str | None, dict[int, HoldRow]] = {}  # the same by agent, each sweep asks for every agent
        for row in rows:
            if row.ended_at is None:
                self._take(row)
        self._over: set[int] = set()  # forgotten here, while the registry may not know it yet
        self._rows: dict[str | None, int] = {}  # the row of an agent's last hold that was lifted: the next one takes it

    def ids(self) -> frozenset[int]:
        """What is known here; for `agree`, taken before the registry is read."""
        return frozenset(self._holds)

    def agree(self, stored: Collection[HoldRow], known: frozenset[int]) -> tuple[list[HoldRow], list[HoldRow]]:
        """Follow what the registry has: a host that shares it may hold our agents, and lift their holds.

        Returns (begun, ended). `known` is `ids()` from before the registry was read: what was put since is not in
        `stored`, and stays; what was lifted since may be in it, and does not come back.
        """
        ids = {row.id for row in stored}
        self._over &= ids
        ended = [self._drop(gone) for gone in sorted(known - ids) if gone in self._holds]
        begun = [row for row in stored if row.id not in self._holds and row.id not in self._over]
        for row in begun:
            self._take(row)
        return begun, ended

    def put(self, row: HoldRow) -> None:
        """Take in a hold whose row is committed; an earlier one on the same target no longer counts."""
        for other in list(self._of.get(row.agent_id, {}).values()):
            self._forget(other)
        self._over.discard(row.id)
        self._rows.pop(row.agent_id, None)
        self._take(row)

    def of(self, agent_id: str | None, now: datetime) -> HoldRow | None:
        """The one that is on that agent (None: on all)."""
        return next((row for row in self.current(now) if row.agent_id == agent_id), None)

    def row_for(self, agent_id: str | None) -> int | None:
        """The row in which another hold on that agent is written: who holds and lifts without end fills no disk."""
        held = next(iter(self._of.get(agent_id, {})), None)
        return self._rows.get(agent_id) if held is None else held

    def lift(self, agent_id: str | None) -> list[HoldRow]:
        """Forget the holds on one agent (None: those on all) and give them back."""
        lifted = list(self._of.get(agent_id, {}).values())
        for row in lifted:
            self._forget(row)
            self._rows.pop(agent_id, None)
            self._rows[agent_id] = row.id
        while len(self._rows) > REMEMBERED:
            del self._rows[next(iter(self._rows))]
        return lifted

    def expire(self, now: datetime) -> list[HoldRow]:
        """Forget the holds whose time is over and give them back, for one event each."""
        over = [row for row in self._holds.values() if not _on(row, now)]
        for row in over:
            self._forget(row)
        return over

    def shift(self, by: timedelta) -> None:
        """The wall clock was set by so much: they last as long as they were put for, whatever it shows."""
        for row in list(self._holds.values()):
            if row.until_at is not None:
                with suppress(OverflowError):
                    moved = replace(row, until_at=row.until_at + by)
                    self._holds[row.id] = self._of[row.agent_id][row.id] = moved
                    self._moved.add(row.id)

    def moved(self) -> list[HoldRow]:
        """Those whose end is to be written anew, once."""
        moved, self._moved = self._moved, set()
        return [self._holds[key] for key in sorted(moved) if key in self._holds]

    def current(self, now: datetime) -> list[HoldRow]:
        """All that are on, the oldest first."""
        return sorted((row for row in self._holds.values() if _on(row, now)), key=lambda row: row.id)

    def reason_for(self, agent_id: str | None, now: datetime) -> str | None:
        """Why nothing is done about that agent (None: about anybody), or None. A hold on all is not told per agent."""
        for _, row in sorted(self._of.get(agent_id, {}).items()):
            if _on(row, now):
                return f"{row.reason} (by uid {row.by_uid}{_until(row)})"
        return None

    def against(self, agent_id: str, now: datetime, *, own: bool) -> str | None:
        """What speaks against ending that agent: a hold on it, and where it is the daemon's `own` wish, one on all."""
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
