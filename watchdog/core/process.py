"""Who one process is, and where foreign registries tell of it: values that `model` hands on."""

from dataclasses import dataclass


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

    `proved`: the entry names this very process, by its start; else it is only told of. `also`: further processes of the
    agent, the end of any of which is its end; of a session (`core.sessions`) the shared services that work for it, no
    part of it. `promises`: the agent came another way, and is held to the beats here.
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
