"""Whose an agent is: a state machine with one transition.

    root -> the one user that the agent's process drops to (gosu, setpriv), when all four of its uids are that user's

The owner is set at registration from the kernel. It never becomes root, never passes from user to user, and never
changes twice: a process that runs a setuid program (sudo, passwd) has other uids for a while and is still its first
owner's. Uids that fit no owner take rights away: see `Untouchable`.
"""

from dataclasses import dataclass
from enum import Enum

ROOT = 0


@dataclass(frozen=True, slots=True)
class Uids:
    """The four uids of one process at one instant (credentials(7))."""

    real: int
    effective: int
    saved: int
    filesystem: int

    @property
    def one(self) -> int | None:
        """The one user whose all four are; None where they differ, as in a setuid program."""
        return self.real if self.real == self.effective == self.saved == self.filesystem else None

    def __str__(self) -> str:
        if self.one is not None:
            return f"uid {self.one}"
        return f"real uid {self.real}, effective {self.effective}, saved {self.saved}, file system {self.filesystem}"


class Owned(Enum):
    """The answer where nothing changes."""

    SAME = "same"


@dataclass(frozen=True, slots=True)
class Dropped:
    """The process was root's and is `uid`'s for good."""

    uid: int


@dataclass(frozen=True, slots=True)
class Untouchable:
    """The process is not its owner's at this instant, or not only.

    Nothing is opened, run or typed as the owner on its behalf until it is again.
    """

    why: str


Ownership = Owned | Dropped | Untouchable


def ownership(owner: int, uids: Uids) -> Ownership:
    """What the uids of an agent's main process mean for its present owner."""
    if uids.one == owner:
        return Owned.SAME
    if uids.one is None or owner != ROOT:
        return Untouchable(f"its process runs with {uids}, its owner is uid {owner}")
    return Dropped(uids.one)
