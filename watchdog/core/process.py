"""One process: its identity, its presence, its entries in foreign registries, and its place in a tree."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, distinguished from a later one with the same pid.

    `start_ticks` is field 22 of /proc/PID/stat (clock ticks since boot, proc(5)); `pidfd_inode` is the inode of its
    pidfd where pidfs gives each process its own (kernel >= 6.9), else None.
    """

    host: str
    boot_id: str
    pid: int
    start_ticks: int
    pidfd_inode: int | None = None

    def same_process(self, other: "Identity") -> bool:
        """Whether no field that both know differs."""
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
    """An agent's entry in a foreign registry, and how its program ends it (`core.source_entries.Entry`).

    `proved`: the entry identifies this very process by its start; otherwise the agent is only reported. `also`: further
    processes of the agent, any of whose exits is its end; for a session (`core.sessions`) the shared services that work
    for it, which are not part of it. `promises`: the agent was registered another way, and the beats here bind it.
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
    """Whether the main process is there, according to the kernel."""

    ALIVE = "alive"
    ABSENT = "absent"  # proved: pidfd readable, no such process, another process or boot, a zombie without threads
    UNKNOWN = "unknown"  # the check failed; never means dead
    NO_PID = "no_pid"  # no pid was registered yet


def cgroup_names(agent_id: str) -> tuple[str, str]:
    """The possible names of an agent's own cgroup: a systemd scope, or a leaf that we make. An id is never reused."""
    return f"agent-{agent_id}.scope", f"agent-{agent_id}"


@dataclass(frozen=True, slots=True)
class TreeMember:
    """A process of an agent's tree. `via` is the evidence, one of:

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
    reaped_seconds: float = 0.0  # CPU time of its reaped children and theirs
