"""The owner of an agent: a state machine with one transition.

    root -> the one user that the agent's process drops to (gosu, setpriv), when all four of its uids are that user's

The owner is read from the kernel at registration. It never becomes root, never passes from user to user, and never
changes twice: a process that runs a setuid program (sudo, passwd) has other uids for a while but keeps its owner. Uids
that do not match the owner only take rights away: see `Untouchable`.
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
        """The user if all four uids are equal; None if they differ, as in a setuid program."""
        return self.real if self.real == self.effective == self.saved == self.filesystem else None

    def __str__(self) -> str:
        if self.one is not None:
            return f"uid {self.one}"
        return f"real uid {self.real}, effective {self.effective}, saved {self.saved}, file system {self.filesystem}"


class Owned(Enum):
    """The answer when nothing changes."""

    SAME = "same"


@dataclass(frozen=True, slots=True)
class Dropped:
    """The process was root's and has dropped to `uid` for good."""

    uid: int


@dataclass(frozen=True, slots=True)
class Untouchable:
    """The process does not run entirely as its owner at this instant.

    Until it does again, nothing is opened, run or typed as the owner on its behalf.
    """

    why: str


Ownership = Owned | Dropped | Untouchable


def ownership(owner: int, uids: Uids) -> Ownership:
    """What the uids of an agent's main process mean for its current owner."""
    if uids.one == owner:
        return Owned.SAME
    if uids.one is None or owner != ROOT:
        return Untouchable(f"its process runs with {uids}, its owner is uid {owner}")
    return Dropped(uids.one)
