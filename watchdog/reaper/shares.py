"""Each user's share of the registry: beyond it that user's oldest history is deleted early.

Other users' rows and rows that others depend on are not deleted, and intents and outcomes are always written. While a
user stays over its share although all that may be deleted is gone, its new agents and holds are refused, and events of
its agents that no status depends on are counted instead of written.

Tests: tests/registry/test_share_queries.py.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta

from watchdog.clock import Clock
from watchdog.config.settings import Settings
from watchdog.errors import RegistryUnavailable
from watchdog.reaper.retention import BATCH, PAUSE
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.retention_queries import RetentionKind
from watchdog.registry.share_queries import total
from watchdog.telemetry.logger import EventLogger

EVERY = timedelta(seconds=2)  # between two checks of the number of pages; usage is counted only when it has grown
GREW = 1 << 20  # growth in bytes after which usage is counted per user; less with a small share
COUNTED = 600.0  # seconds after which usage is counted in any case
KEPT = 0.8  # fraction of its share to which a user is trimmed, so that not each check deletes a few rows


class Shares:
    """The shares of all users except root and the daemon's own, whose disk it is."""

    def __init__(
        self,
        registry: AsyncRegistry,
        clock: Clock,
        log: EventLogger,
        *,
        most: int,
        user_of: Callable[[int], int] = lambda uid: uid,
    ) -> None:
        """`most`: bytes per user. `user_of` gives the user that a uid counts for."""
        self._registry = registry
        self._clock = clock
        self._log = log
        self.most = most
        self.user_of = user_of
        self._counted, self._size = float("-inf"), 0
        self._users: dict[int, int] = {}  # users over their share, and their bytes

    def apply(self, settings: Settings) -> None:
        """Use the share of these settings from now on."""
        self.most = settings.bytes_per_user

    def over(self, uid: int) -> bool:
        """Whether the user has used up its share."""
        return self.user_of(uid) in self._users

    def facts(self) -> dict[str, int]:
        """For `status`: users over their share, and their bytes."""
        return {str(user): used for user, used in self._users.items()}

    async def round(self) -> None:
        """Check whether the registry has grown, and trim the users that are over their share."""
        registry = self._registry
        if registry.sync.shared:
            return
        try:
            size = await registry.read(registry.shares.bytes_in_use)
            grew = min(GREW, (1 - KEPT) * self.most)  # a trimmed user is over again after this growth
            if size - self._size < grew and self._clock.mono() - self._counted < COUNTED and not self._users:
                return
            await self._count()
            self._size = await registry.read(registry.shares.bytes_in_use)
        except RegistryUnavailable:
            pass  # the next sweep reports it, the next round continues

    async def _count(self) -> None:
        uses = await self._registry.read(self._registry.shares.uses)
        self._counted = self._clock.mono()
        uids: dict[int, list[int]] = {}
        for uid in uses:
            uids.setdefault(self.user_of(uid), []).append(uid)
        self._users = {
            user: used
            for user, its in uids.items()
            if user not in (0, os.geteuid()) and (used := total(uses, its).total()) > self.most
        }
        self._registry.history.over = frozenset(uid for user in self._users for uid in uids[user])
        for user, used in list(self._users.items()):
            left = await self._bring_down(user, uids[user], total(uses, uids[user]))
            if left <= self.most:
                del self._users[user]
            else:
                self._users[user] = left
            unwritten = sum(self._registry.history.unwritten.pop(uid, 0) for uid in uids[user])
            facts = {"bytes": used, "left": left, "most": self.most, "unwritten": unwritten}
            self._log.event("registry.share_trimmed", exc_info=None, uid=user, **facts)
        self._registry.history.over = frozenset(uid for user in self._users for uid in uids[user])

    async def _bring_down(self, user: int, uids: list[int], uses: Counter[RetentionKind]) -> int:
        """Delete the oldest rows of its largest kind until it is within its share or nothing can go; return the
        bytes.
        """
        used, spent = uses.total(), set[RetentionKind]()
        while used > KEPT * self.most and (
            kinds := [one for one in RetentionKind if uses[one] > 0 and one not in spent]
        ):
            kind = max(kinds, key=lambda one: uses[one])
            keys = await self._registry.read(self._registry.shares.oldest, kind, uids, BATCH[kind])
            going, size = _first(keys, used - KEPT * self.most)
            began = self._clock.mono()
            if not going or not await self._registry.write(self._registry.retention.forget, kind, going):
                spent.add(kind)
                continue
            if kind is RetentionKind.AGENTS:
                await self._registry.write(self._registry.shares.forget_events_of, [str(key) for key in going])
            used, uses[kind] = used - size, uses[kind] - size
            await asyncio.sleep(max(PAUSE, 2 * (self._clock.mono() - began)))
        return used


def _first(keys: Mapping[str | int, int], wanted: float) -> tuple[list[str | int], int]:
    """The first keys that together have `wanted` bytes, or all of them, and the bytes that they have."""
    going: list[str | int] = []
    size = 0
    for key, one in keys.items():
        if size >= wanted:
            break
        going.append(key)
        size += one
    return going, size
