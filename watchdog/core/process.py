"""One process: who it is, whether it is there, where foreign registries list it, and its place in a tree."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, never to be confused with a later one of the same pid.

    `start_ticks` is field 22 of /proc/PID/stat (clock ticks since boot, proc(5)); `pidfd_inode` is the inode of its
    pidfd where pidfs gives each process its own (kernel >= 6.9), else None.
    """

    host: str
    boot_id: str
    pid: int
    start_ticks: int
    pidfd_inode: int | None = None

    def same_process(self, other: "Identity") -> bool:
        """True only when nothing that both know differs."""
        if (self.host, self.boot_id, self.pid, self.start_ticks) != (
            other.host,
            other.boot_id,
            other.pid,
            other.start_ticks,
        ):
            return False
        return self.pidfd_inode is None or other.pidfd_inode is None or self.pidfd_inode == other.pidfd_inode


@dataclass(frozen=True, slots=True)
class Listed:
    """Where a foreign registry tells of an agent, and what its program says of ending it (`owner.sources.base.Entry`).

    `proved`: the entry names this very process, by its start; else it is only reported. `also`: further processes of
    the agent, the end of any of which is its end; of a session (`core.sessions`) the shared services that work for it,
    no part of it. `promises`: the agent came another way, and is held to the beats here.
    """

    kind: str
    path: str
    key: str
    token: str
    proved: bool = True
    also: tuple[Identity, ...] = ()
    conversation: str | None = None
    resume: str | None = None
    stop: tuple[str, ...] | None = None
    pane: dict[str, str] | None = None
    temp: tuple[str, ...] = ()
    promises: bool = False


class Presence(StrEnum):
    """What the kernel says of the main process."""

    ALIVE = "alive"
    ABSENT = "absent"  # proved: pidfd readable, no such process, another process, another boot, a zombie with no thread
    UNKNOWN = "unknown"  # the look failed; never means dead
    NO_PID = "no_pid"  # no pid was registered yet


def cgroup_names(agent_id: str) -> tuple[str, str]:
    """What an agent's own cgroup may be called: a scope of systemd, or a leaf that we make. An id is never reused."""
    return f"agent-{agent_id}.scope", f"agent-{agent_id}"


@dataclass(frozen=True, slots=True)
class TreeMember:
    """A process of an agent's tree and how we know it.

    main, cgroup, marker, session, group, descent, vendor, remembered; conversation: below a service that is shared.
    """

    identity: Identity
    parent_pid: int
    uid: int
    name: str  # comm, at most 15 characters
    state: str  # proc(5): R S D T t Z X I
    via: str
    cpu_seconds: float = 0.0
    rss_bytes: int = 0
    reaped_seconds: float = 0.0  # CPU of its children that have ended and were waited for, and of theirs
