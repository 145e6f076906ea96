"""Admission: how much of the shared resources one user may take now, and a record of refusals.

Root and the daemon's own uid are never limited. Several uids may count as one user (`users`). Nothing that exists is
taken away; refusals are counted, and each spell of refusals is logged when it begins and when it is over.
"""

import math
import os
import resource
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from watchdog.clock import Clock
from watchdog.core.admission import RATES, WAIT, Bucket, LimitKind, may_take
from watchdog.helpers.users import Users
from watchdog.telemetry.logger import EventLogger
from watchdog.telemetry.metrics import Metrics

SPELL = 60.0  # seconds without a refusal after which a spell is over
MOST_SPELLS = 1000  # spells remembered at once; refusals of further users are only counted
AGENTS = 256  # living agents of one user
DATAGRAMS = 512  # shared by all users that exceed their share in a period; each takes 20 us of the loop
PERIOD = 0.2  # seconds; a little less than the time between two reads of the sockets (intake.notify.REST)


@dataclass(slots=True)
class _Spell:
    """Refusals of one kind to one user."""

    since: datetime
    last: float  # monotonic seconds
    refused: int = 0


class Admission:
    """One per daemon; used by the control socket, registration and the notify sockets."""

    def __init__(self, users: Users, clock: Clock, metrics: Metrics, log: EventLogger) -> None:
        self._users = users
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._buckets: dict[LimitKind, dict[int, Bucket]] = {kind: {} for kind in RATES}
        self._spells: dict[tuple[int, LimitKind], _Spell] = {}
        self.descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def user_of(self, uid: int) -> int:
        """The uid of the user that a uid counts for."""
        return self._users.user_of(uid)

    @staticmethod
    def exempt(uid: int) -> bool:
        """Whether this uid itself is never limited: root's and the daemon's; their users' other uids are limited."""
        return uid in (0, os.geteuid())

    def take(self, uid: int, kind: LimitKind, cost: float) -> float:
        """Reserve tokens for a request and return the seconds that it has to wait for them (0: none).

        If the result exceeds `WAIT`, nothing was reserved: refuse the request (or delay a heartbeat) for `WAIT`
        seconds.
        """
        if self.exempt(uid):
            return 0.0
        bucket, rate = self._bucket(uid, kind)
        seconds = bucket.wait(cost, rate)
        if seconds <= WAIT:
            bucket.spend(cost, rate)
        return seconds

    def has(self, uid: int, kind: LimitKind) -> bool:
        """Whether a token is available now; if so, it is taken."""
        if self.exempt(uid):
            return True
        bucket, rate = self._bucket(uid, kind)
        there = bucket.wait(1.0, rate) <= 0
        if there:
            bucket.spend(1.0, rate)
        return there

    def charge(self, uid: int, cost: float) -> float:
        """Take tokens for the cost that a request turned out to have, even more than are available.

        Returns the seconds until its user's debt is paid.
        """
        if self.exempt(uid):
            return 0.0
        bucket, rate = self._bucket(uid, LimitKind.REQUESTS)
        bucket.spend(cost, rate)
        return bucket.wait(0.0, rate)

    def owes(self, uid: int) -> float:
        """Seconds until the debt of its user is paid; 0: no debt."""
        bucket, rate = self._bucket(uid, LimitKind.REQUESTS)
        return bucket.wait(0.0, rate)

    def _bucket(self, uid: int, kind: LimitKind) -> tuple[Bucket, float]:
        """The bucket of its user, filled up to now, and its rate (tokens a second) for the present number of users."""
        buckets, user, now = self._buckets[kind], self.user_of(uid), self._clock.mono()
        bucket = buckets.get(user)
        if bucket is None:
            bucket = buckets[user] = Bucket(RATES[kind].saved(len(buckets) + 1), now)
        rate = RATES[kind].each(len(buckets))
        bucket.fill(now, rate, RATES[kind].saved(len(buckets)))
        return bucket, rate

    def may_register(self, uid: int, owners: Iterable[int]) -> bool:
        """Whether the user of `uid` may have one more living agent; `owners`: the owners of all living agents."""
        held = Counter(owner for owner in owners if not self.exempt(owner))
        user = self.user_of(uid)
        mine = sum(count for owner, count in held.items() if self.user_of(owner) == user)
        return self.exempt(uid) or may_take(mine, held.total(), AGENTS, self.descriptors // 4)

    def refused(self, uid: int, kind: LimitKind, count: int = 1) -> None:
        """Count a refusal; the first of a spell is logged."""
        self._metrics.refused.labels(str(kind)).inc(count)
        user = self.user_of(uid)
        spell = self._spells.get((user, kind))
        if spell is None:
            if len(self._spells) >= MOST_SPELLS:
                return
            spell = self._spells[user, kind] = _Spell(self._clock.now().wall, 0.0)
            self._log.event("user.limited", uid=user, kind=str(kind), why=WHY[kind])
        spell.last = self._clock.mono()
        spell.refused += count

    def look(self) -> None:
        """Once a sweep: end spells that are over, and drop buckets that are full again."""
        now = self._clock.mono()
        for (user, kind), spell in list(self._spells.items()):
            if now - spell.last >= SPELL:
                del self._spells[user, kind]
                self._log.event("user.unlimited", uid=user, kind=str(kind), refused=spell.refused)
        for kind, buckets in self._buckets.items():
            rate, burst = RATES[kind].each(len(buckets)), RATES[kind].saved(len(buckets))
            full = [user for user, one in buckets.items() if one.tokens + (now - one.at) * rate >= burst]
            for user in full:
                del buckets[user]

    def limited(self) -> list[dict[str, object]]:
        """The users that are limited now, and in what; the most refused first."""
        found = sorted(self._spells.items(), key=lambda item: -item[1].refused)
        return [
            {
                "uid": user,
                "kind": str(kind),
                "since": spell.since.isoformat(timespec="seconds"),
                "refused": spell.refused,
                "why": WHY[kind],
            }
            for (user, kind), spell in found
        ]

    @property
    def problems(self) -> list[str]:
        """Errors in /etc/subuid."""
        return self._users.problems


class DatagramBudget:
    """How many datagrams of each user are read per period; the rest stays in that user's sockets."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._clock = Clock()
        self._began = float("-inf")
        self._share = DATAGRAMS
        self._left: dict[int, int] = {}
        self._hungry: set[int] = set()  # users that had more than their share in this period

    def renew(self) -> bool:
        """Begin a new period if it is time. Returns whether any user exceeded its share in the previous one."""
        now = self._clock.mono()
        if now - self._began < PERIOD:
            return bool(self._hungry)
        behind = bool(self._hungry)
        for user in self._hungry:
            self._admission.refused(user, LimitKind.DATAGRAMS)
        self._began, self._share = now, DATAGRAMS // max(1, len(self._hungry))
        self._left.clear()
        self._hungry.clear()
        return behind

    def take(self, owner_uid: int) -> bool:
        """Whether one more datagram may be read from a socket of that owner."""
        if self._admission.exempt(owner_uid):
            return True
        user = self._admission.user_of(owner_uid)
        left = self._left.get(user, self._share)
        if left <= 0:
            self._hungry.add(user)
            return False
        self._left[user] = left - 1
        return True


WHY = {
    LimitKind.REQUESTS: "more requests than its share",
    LimitKind.BEATS: "more heartbeats over HTTP than its share; each was taken a second late",
    LimitKind.CONNECTIONS: "more connections at a time, or in a second, than its share",
    LimitKind.FOLLOWERS: "more followers of the history than its share",
    LimitKind.AGENTS: "more living agents than its share",
    LimitKind.DATAGRAMS: "more datagrams than its share; what is left in its sockets is read later",
}


def retry_after(seconds: float) -> int:
    """Whole seconds for the Retry-After header (RFC 9110, 10.2.3)."""
    return max(1, math.ceil(seconds - WAIT))
