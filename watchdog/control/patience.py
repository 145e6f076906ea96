"""How long one answer waits for what comes after the proof that an agent is dead: its cleanup, done as its owner.

Whoever owns the agent can have that take as long as its deadlines let it (a helper that is stopped, a disk that hangs).
In an answer to another user it is a few seconds, and none for those that are killed after one that took them all. The
cleanup goes on all the same.
"""

from dataclasses import dataclass, field

from watchdog.control.context import Json
from watchdog.core.peer import Peer

OWN = 30.0  # seconds for one's own agents
OTHERS = 5.0  # and for those of others


@dataclass
class Patience:
    """Of one request."""

    peer: Peer
    spent: set[bool] = field(default_factory=set)  # of one's own agents (True), of others'

    def for_cleanup(self, owner_uid: int) -> float:
        """Seconds for that of an agent of this owner."""
        own = owner_uid == self.peer.uid
        return 0.0 if own in self.spent else OWN if own else OTHERS

    def heard(self, results: list[Json]) -> None:
        """What came of those that were waited for side by side."""
        self.spent |= {one.get("owner_uid") == self.peer.uid for one in results if goes_on(one)}


def goes_on(outcome: Json) -> bool:
    """Whether the agent is dead and its cleanup has not ended."""
    return "cleanup_left" in outcome


def what_goes_on(outcome: Json, name: str) -> str:
    """The end of a sentence on such an agent: what is left, and where to look."""
    left = outcome.get("cleanup_left")
    names = f" ({', '.join(map(str, left))})" if isinstance(left, list) and left else ""
    return f"its cleanup goes on{names}: agent-watchdog why {name}"
