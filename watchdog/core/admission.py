"""How much of a shared resource one user may take, and what a request costs. Pure; times are seconds.

A share binds only when other users compete for it: a lone user may have `LONE` times its share. What a user has taken
is never taken back.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

LONE = 4  # shares: while all users together have less, one user may exceed its own
FIRST = 8  # 1/FIRST of a total is reserved for users that have nothing yet


class LimitKind(StrEnum):
    """What a user can be limited in."""

    REQUESTS = "requests"
    BEATS = "beats"
    CONNECTIONS = "connections"
    FOLLOWERS = "followers"
    AGENTS = "agents"
    DATAGRAMS = "datagrams"


class Rate(NamedTuple):
    """Tokens per second, and how many can be saved up; competing users share both equally."""

    tokens: float
    burst: float

    def each(self, users: int) -> float:
        """Tokens per second for one of `users` users."""
        return self.tokens / max(1, users)

    def saved(self, users: int) -> float:
        """Tokens that one of `users` users can save up: always those of the same number of seconds."""
        return self.burst / max(1, users)


# One `list` of few agents costs a token. Estimated for a third of one core in all: a registration keeps the event loop
# busy for about 8 ms (1,000 of them took 7.5 s), a heartbeat over HTTP for 0.5 ms, and a helper process is 60 to 100 ms
# of CPU. Connections: more than the served requests and heartbeats need; one without a request takes 0.2 ms.
RATES = {
    LimitKind.REQUESTS: Rate(100.0, 400.0),
    LimitKind.BEATS: Rate(400.0, 800.0),
    LimitKind.CONNECTIONS: Rate(800.0, 1600.0),
}
WAIT = (
    1.0  # seconds that a request waits for its tokens; a refusal waits as long, so repeating it at once gains nothing
)
DEBT = 10.0  # how many seconds of its rate a user may owe after one request with many targets

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
# Each this many bytes of a response cost one more token: half a megabyte of JSON, the story of an agent of 2,000
# processes, takes 35 ms.
PER_TOKEN = 32_768
SCAN = 18.0  # tokens for a dry run's scan of every tree: together with its request as much as `reap`, which scans too
# Tokens for each further target of one request, and for each name to be looked up in the fleet and the registry: 0.7 ms
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
        return LimitKind.BEATS, 2.0  # identifying the service takes two reads of /proc
    if len(parts) == 1:
        wide = 3.0 if method == "GET" and query.startswith("all") else 0.0
        return LimitKind.REQUESTS, _COSTS.get((method, parts[0]), 1.0) + wide
    return LimitKind.REQUESTS, 2.0  # one agent's full story, its pid or its exit


@dataclass(slots=True)
class Bucket:
    """The tokens of one user, as they were at `at`."""

    tokens: float
    at: float

    def fill(self, now: float, rate: float, burst: float) -> None:
        """Add the tokens of the time since."""
        self.tokens = min(burst, self.tokens + max(0.0, now - self.at) * rate)
        self.at = now

    def wait(self, cost: float, rate: float) -> float:
        """Seconds until it holds `cost` tokens; 0: it does now."""
        return max(0.0, (cost - self.tokens) / rate)

    def spend(self, cost: float, rate: float) -> None:
        """Take `cost` tokens, which may leave a debt."""
        self.tokens = max(-DEBT * rate, self.tokens - cost)


def may_take(mine: int, everyone: int, share: int, total: int) -> bool:
    """Whether a user that holds `mine` of a resource may take one more, when all users together hold `everyone`.

    `total` is the limit for all users; its last part is for users that hold none.
    """
    if everyone >= total:
        return False
    if mine == 0:
        return True
    if everyone >= total - total // FIRST:
        return False
    return mine < share or everyone < LONE * share
