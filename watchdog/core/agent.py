"""The project's terms as types: status, verdict, state, policy, registration, beat.

Everything here is a value. Durations are `timedelta`; wall times are aware UTC `datetime`s, for display only: no
decision is based on a wall time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from watchdog.core.kill import Polite, Step
from watchdog.core.process import Identity, Listed, cgroup_names
from watchdog.core.sessions import SESSION, shared_words
from watchdog.core.sites import Site
from watchdog.core.source_entries import KINDS


class Status(StrEnum):
    """Where an agent stands in its life (`agent_lifecycle.status`)."""

    QUEUED = "queued"  # -> starting when it is started; never judged
    STARTING = "starting"  # no pid yet -> running
    RUNNING = "running"  # -> ending when a kill or a cleanup is claimed
    ENDING = "ending"  # -> one of the ended ones after the last hook, or unkillable
    UNKILLABLE = "unkillable"  # -> ending when its processes go after all
    STOPPED = "stopped"  # it was asked to stop
    KILLED = "killed"  # by the daemon
    COMPLETED = "completed"  # it exited on its own: status 0, or unknown
    FAILED = "failed"  # it exited on its own: another exit status, a signal, or it never started
    LOST = "lost"  # its host was restarted


LIVE = frozenset({Status.QUEUED, Status.STARTING, Status.RUNNING, Status.ENDING, Status.UNKILLABLE})
ENDED = frozenset(Status) - LIVE


class State(StrEnum):
    """What an agent reports about itself in a beat."""

    WORKING = "working"
    IDLE = "idle"
    WAITING = "waiting"  # for a human
    BLOCKED = "blocked"  # waits for something else (a rate limit, a lock); no stall, up to `wait_limit`
    DONE = "done"


class Verdict(StrEnum):
    """What one sweep's observation means; `core.verdict.judge` picks the first that applies, in this order."""

    GONE = "gone"
    UNKNOWN = "unknown"
    STARTING = "starting"
    EXPIRED = "expired"
    LINGERING = "lingering"
    WAITING = "waiting"
    HEALTHY = "healthy"
    LATE = "late"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits for one agent, configuration and `[[policy]]` merged (reasons: config/agent-watchdog.toml)."""

    after: timedelta = timedelta(seconds=120)
    confirm_sweeps: int = 2
    start_limit: timedelta = timedelta(seconds=300)
    busy_limit: timedelta = timedelta(hours=1)
    wait_limit: timedelta = timedelta(hours=6)
    prompt_limit: timedelta = timedelta(minutes=5)
    progress_limit: timedelta = timedelta(minutes=30)
    linger: timedelta = timedelta(seconds=60)
    grace: timedelta = timedelta(seconds=10)
    verify: timedelta = timedelta(seconds=60)
    ladder: tuple[Step, ...] = (Step.KILL,)
    warn_pause: timedelta = timedelta(seconds=60)  # time between this step of the ladder and the next
    nudge_pause: timedelta = timedelta(seconds=60)
    stop_pause: timedelta = timedelta(seconds=60)
    nudge_text: str = "Are you still at work? Go on with your task, or say what you wait for."
    nudge_command: tuple[str, ...] = ()
    exit_keys: tuple[str, ...] = ()
    polite: Polite = Polite.MAIN_FIRST
    spare: tuple[str, ...] = ()
    task_status: str = "failed"


# Sources of agents that were only reported: by a vendor hook, or by a vendor's own list of its sessions. The daemon
# reports on them and kills nothing of theirs, unless a `[[policy]]` specifies more.
TOLD_OF = frozenset({"hook", *(kind for kind, registry in KINDS.items() if registry.told_of)})


@dataclass(frozen=True, slots=True)
class Registration:
    """What is known of an agent from its registration. `stall_after` and `ttl` are None where the policy decides."""

    agent_id: str
    name: str
    owner_uid: int
    host: str
    boot_id: str
    agent_type: str = ""
    tags: tuple[str, ...] = ()
    task_id: str | None = None
    parent_id: str | None = None
    identity: Identity | None = None
    stall_after: timedelta | None = None
    interval: timedelta | None = None  # the agent's own interval between beats
    ttl: timedelta | None = None
    worktree: str | None = None
    temp_dir: str | None = None
    worktree_site: Site | None = None  # what was there while the agent lived, if it was seen
    temp_site: Site | None = None
    beat_file: str | None = None
    log: str | None = None  # a file that grows while it works; not a beat
    transcript: str | None = None
    cgroup: str | None = None  # the cgroup v2 that `run` got for it alone, in the notation of /proc/PID/cgroup
    pane: dict[str, object] | None = None  # its terminal pane: `owner.terminals.base.Pane`, or as reported
    source: str = "register"  # "run", "register", "hook", or a foreign registry's name
    command: str | None = None  # the program's name only; never a whole command line
    created_at: datetime | None = None
    entries: tuple[Listed, ...] = ()  # in foreign registries
    dropped: bool = False  # its process was root's at registration and has since dropped to the owner

    @property
    def its_pane(self) -> dict[str, object] | None:
        """The pane in which it was found, else the one that its entry in a foreign registry names."""
        told: list[dict[str, object]] = [{**one.pane} for one in self.entries if one.pane]
        return self.pane or next(iter(told), None)

    @property
    def own_cgroup(self) -> str | None:
        """Its own cgroup v2, in the notation of /proc/PID/cgroup; only `run` makes one of that name."""
        path = self.cgroup
        return path if path is not None and path.rpartition("/")[2] in cgroup_names(self.agent_id) else None

    @property
    def conversations(self) -> frozenset[str]:
        """Ids of its sessions that a shared service works for."""
        return frozenset([one.key for one in self.entries if one.kind == SESSION])

    @property
    def served(self) -> frozenset[tuple[str, Identity]]:
        """The same ids, each with its service: below another service the same id is another session."""
        return frozenset([(one.key, it) for one in self.entries if one.kind == SESSION for it in one.also])

    @property
    def served_by(self) -> frozenset[int]:
        """Pids of the shared services that work for its sessions."""
        return frozenset([one.pid for entry in self.entries if entry.kind == SESSION for one in entry.also])

    def shared(self, perhaps: Iterable[str]) -> str:
        """Which of its work a shared service does, as text. `perhaps`: names of agents for sessions that may be its
        own.
        """
        sessions = [one for one in self.entries if one.kind == SESSION]
        services = [f"{one.path}[{service.pid}]" for one in sessions for service in one.also]
        return shared_words(services, perhaps)

    @property
    def unproved(self) -> bool:
        """Whether the entry that it came from may mean another process: then only a person's order kills it."""
        return any(one.kind == self.source and not one.proved for one in self.entries)

    @property
    def told_of(self) -> bool:
        """Whether the daemon only reports on it."""
        return self.source in TOLD_OF or self.unproved


@dataclass(frozen=True, slots=True)
class Beat:
    """One beat of an agent. None means "not said", which is not the same as zero or empty.

    `promises` is False for sd_notify messages that reset the silence but promise nothing (READY=1, STATUS=): many
    programs send them once at start and never again.
    """

    state: State | None = None
    progress: float | None = None
    silent_for: timedelta | None = None
    tool: str | None = None
    tool_limit: timedelta | None = None
    note: str | None = None
    after: timedelta | None = None  # WATCHDOG_USEC=: the agent sets its own limit
    transcript: str | None = None  # the path of its transcript from now on
    agent_type: str | None = None  # for an agent that was registered without a type
    session: str | None = None  # which session of its process beats or has ended, if there may be several
    session_ended: str | None = None
    asks: str | None = (
        None  # the question to a human; needed as a subagent may be answered while the main thread says nothing
    )
    answered: str | None = None
    thread: str | None = None  # the subagent that beats; None: the main thread, or a program without threads
    goes_on: bool | None = None  # whether what that thread started continues; for the main thread also while idle
    promises: bool = True

    @property
    def bare(self) -> bool:
        """Whether it has nothing that changes a limit: no progress, lease, tool or `after`."""
        return self.progress is None and self.silent_for is None and self.tool is None and self.after is None
