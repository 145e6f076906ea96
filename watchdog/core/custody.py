"""Whose an agent is when two daemons know its process: one agent, one daemon.

It stays with the daemon that took it in. Each daemon decides by itself, from what the other one says that it holds, and
both come to the same answer:

- A claim counts only from a daemon that lives, and that is root's or the agent's owner's. What another user says of it
  is nothing.
- Whoever does not hold it yet leaves it to a daemon that does; but what root or an admin orders is bound by no claim.
- Where both hold it (one was away, and the other took over), root's keeps it, so that no user can spare an agent that
  root's daemon has taken in by starting a daemon of their own; of two of one uid the one that was started first.
"""

from dataclasses import dataclass
from enum import Enum

from watchdog.core.ownership import ROOT


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """One daemon's process, as the kernel tells it."""

    uid: int
    pid: int
    start_ticks: int

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Less goes first: root's, then whichever was started first."""
        return self.uid != ROOT, self.start_ticks, self.pid


@dataclass(frozen=True, slots=True)
class Holder:
    """A living daemon that says that it holds an agent, and what the agent is called there."""

    daemon: DaemonProcess
    socket: str
    agent_id: str
    name: str

    def __str__(self) -> str:
        whose = "root's daemon" if self.daemon.uid == ROOT else f"the daemon of uid {self.daemon.uid}"
        return f"{whose} (pid {self.daemon.pid}, {self.socket})"


class Custody(Enum):
    """The answer, for the daemon that asks."""

    OURS = "ours"
    THEIRS = "theirs"


def custody(ours: DaemonProcess, theirs: DaemonProcess, owner: int, *, held: bool, ordered: bool = False) -> Custody:
    """Whose an agent of that owner is. `held`: we hold it as well. `ordered`: by root or an admin, of us."""
    if theirs.uid not in (ROOT, owner) or theirs == ours or ordered:
        return Custody.OURS
    if not held:
        return Custody.THEIRS
    return Custody.THEIRS if theirs.rank < ours.rank else Custody.OURS
