"""Which daemon owns an agent when two daemons know its process: one agent, one daemon.

An agent stays with the daemon that registered it. Each daemon decides on its own, from what the other one claims to
hold, and both reach the same answer:

- A claim counts only from a living daemon that runs as root or as the agent's owner. Another user's claim is ignored.
- A daemon that does not hold the agent leaves it to one that does; but no claim overrides an order of root or an admin.
- If both hold it (one was away, and the other took over), root's daemon keeps it, so that users cannot protect an agent
  from root's daemon by starting a daemon of their own; of two daemons of one uid the one that was started first.
"""

from dataclasses import dataclass
from enum import Enum

from watchdog.core.ownership import ROOT


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """One daemon's process, according to the kernel."""

    uid: int
    pid: int
    start_ticks: int

    @property
    def rank(self) -> tuple[bool, int, int]:
        """The lower rank wins: root's daemon, then the one that was started first."""
        return self.uid != ROOT, self.start_ticks, self.pid


@dataclass(frozen=True, slots=True)
class Holder:
    """A living daemon that claims to hold an agent, and the agent's name there."""

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
    """Which daemon owns an agent of `owner`. `held`: ours holds it too. `ordered`: root or an admin ordered ours to."""
    if theirs.uid not in (ROOT, owner) or theirs == ours or ordered:
        return Custody.OURS
    if not held:
        return Custody.THEIRS
    return Custody.THEIRS if theirs.rank < ours.rank else Custody.OURS
