"""How much of what all users share one of them may take, and what a request costs. Pure: times are given in seconds.

A share binds only when others want some, too: a lone user may have `LONE` times its share. What is taken stays taken.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

LONE = 4  # shares: as long as all users together have less than that, one may have more than its own
FIRST = 8  # one part in so many of a total is kept for users that have nothing yet


class LimitKind(StrEnum):
    """What a user can be limited in."""

    REQUESTS = "requests"
    BEATS = "beats"
    CONNECTIONS = "connections"
    FOLLOWERS = "followers"
    AGENTS = "agents"
    DATAGRAMS = "datagrams"


class Rate(NamedTuple):
    """Tokens a second, and how many can be saved up; users that want some share both alike."""

    tokens: float
    burst: float

    def each(self, users: int) -> float:
        """Tokens a second of one of so many users."""
        return self.tokens / max(1, users)

    def saved(self, users: int) -> float:
        """Tokens that one of so many users can save up: those of the same seconds, however many want some."""
        return self.burst / max(1, users)


# One `list` of few agents costs a token. Estimated, for a third of one core in all: a registration keeps the event loop
# busy for some 8 ms (1,000 of them took 7.5 s), a heartbeat over HTTP for 0.5 ms, and a helper process is 60 to 100 ms
# of CPU. Connections: more than all requests and heartbeats that are served need; one without a word takes 0.2 ms.
RATES = {
    LimitKind.REQUESTS: Rate(100.0, 400.0),
    LimitKind.BEATS: Rate(400.0, 800.0),
    LimitKind.CONNECTIONS: Rate(800.0, 1600.0),
}
WAIT = (
    1.0  # seconds that a request waits for its tokens; a refusal waits as long, so repeating it at once gains nothing
)
DEBT = 10.0  # seconds of its rate that a user may owe after one request with many targets

_COSTS = {
    ("POST", "agents"): 4.0,
    ("POST", "remove"): 4.0,
    ("POST", "kill"): 2.0,
    ("POST", "stop"): 2.0,
    ("POST", "cancel"): 2.0,
    ("POST", "hold"): 2.0,
    ("POST", "unhold"): 2.0,
    ("GET", "restore"): 20.0,
    ("POST", "restore"): 20.0,
    ("POST", "purge"): 20.0,
    ("POST", "reap"): 20.0,
    ("POST", "reload"): 20.0,
    ("GET", "events"): 2.0,
}
# Bytes of an answer that cost one more: JSON of half a megabyte, the story of an agent of 2,000 processes, is 35 ms.
PER_TOKEN = 32_768
SCAN = 18.0  # of a look at every tree that a dry run asks for: with its request as much as `reap`, which looks likewise
# Of further targets of one request, and of each word that has to be looked up in the fleet and the registry: 0.7 ms
# with few agents.
PER_TARGET = {"kill": 1.0, "remove": 2.0, "hold": 0.5, "unhold": 0.5, "named": 0.5}


def cost_of(method: str, target: str) -> tuple[LimitKind, float]:
    """What a request of that method and target (path and query) costs, in tokens."""
    path, _, query = target.partition("?")
    parts = path.strip("/").split("/")
    if parts[:1] == ["v1"]:
        parts = parts[1:]
    if method == "POST" and len(parts) == 3 and (parts[0], parts[2]) == ("agents", "beat"):
        return LimitKind.BEATS, 1.0
    if method == "POST" and parts == ["sessions", "beat"]:
        return LimitKind.BEATS, 2.0  # which service it is asks for two looks at /proc
    if len(parts) == 1:
        wide = 3.0 if method == "GET" and query.startswith("all") else 0.0
        return LimitKind.REQUESTS, _COSTS.get((method, parts[0]), 1.0) + wide
    return LimitKind.REQUESTS, 2.0  # one agent's whole story, its pid, its end


@dataclass(slots=True)
class Bucket:
    """The tokens of one user, as they were at `at`."""

    tokens: float
    at: float

    def fill(self, now: float, rate: float, burst: float) -> None:
        """Add what has come since."""
        self.tokens = min(burst, self.tokens + max(0.0, now - self.at) * rate)
        self.at = now

    def wait(self, cost: float, rate: float) -> float:
        """Seconds until it holds `cost`; 0: now."""
        return max(0.0, (cost - self.tokens) / rate)

    def spend(self, cost: float, rate: float) -> None:
        """Take so much, which may leave a debt."""
        self.tokens = max(-DEBT * rate, self.tokens - cost)


def may_take(mine: int, everyone: int, share: int, total: int) -> bool:
    """Whether a user that has `mine` of a thing may take one more, when all users have `everyone` of it.

    `total` is the most of all; the last part of it is for users that have none.
    """
    if everyone >= total:
        return False
    if mine == 0:
        return True
    if everyone >= total - total // FIRST:
        return False
    return mine < share or everyone < LONE * share
