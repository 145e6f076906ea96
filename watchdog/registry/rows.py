"""What the registry returns and takes, as frozen values.

Rows are the boundary to the database: durations are plain seconds here, and their names say so.

Tests: tests/registry/test_row_codec.py, tests/registry/test_agent_queries.py.
"""

from dataclasses import dataclass, field
from datetime import datetime

from watchdog.core.agent import Registration, State, Status, Verdict
from watchdog.core.kill import Reason, Step
from watchdog.core.process import Identity

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Problem:
    """A row that cannot be read, and why; the other rows are still returned."""

    agent_id: str
    message: str


@dataclass(frozen=True, slots=True)
class AgentRow:
    """One agent as stored. What beats and sweeps change lives in memory; stored, it is at most one sweep old."""

    registration: Registration
    status: Status
    version: int  # grows with every change of status, not with a sweep
    created_at: datetime
    state: State | None = None
    state_seconds: float = 0.0  # how long it has been watched in this state
    finished: bool = False  # the agent reported that its work is done
    rests_on: tuple[str, ...] = ()  # as in `Speaker`
    verdict: Verdict | None = None
    notify_socket: str | None = None
    promised: bool = False
    beats: int = 0
    silence_seconds: float = 0.0  # counted while the daemon watched, never computed from timestamps
    watched_seconds: float = 0.0  # the same since registration
    last_heartbeat: datetime | None = None  # for people
    last_progress: float | None = None
    progress_silence_seconds: float = 0.0
    lease_left_seconds: float | None = None
    tool: str | None = None
    tool_left_seconds: float | None = None
    note: str | None = None
    speaker_pid: int | None = None
    hears: bool = False
    rung: Step | None = None
    home_cgroup: str | None = None
    members: tuple[Identity, ...] = ()  # of its tree, as the last scan found them
    started_at: datetime | None = None
    completed_at: datetime | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    error_message: str | None = None
    retry_count: int = 0

    @property
    def agent_id(self) -> str:
        """The id of its registration."""
        return self.registration.agent_id

    @property
    def identity(self) -> Identity | None:
        """The main process; None until its pid is known."""
        return self.registration.identity


@dataclass(frozen=True, slots=True)
class SweepRow:
    """What one sweep saves of one agent."""

    agent_id: str
    silence_seconds: float
    watched_seconds: float
    beats: int
    promised: bool
    stall_after_seconds: float | None = None  # the agent itself may have changed it
    last_heartbeat: datetime | None = None
    state: State | None = None
    state_seconds: float = 0.0
    finished: bool = False
    rests_on: tuple[str, ...] = ()
    verdict: Verdict | None = None
    note: str | None = None
    speaker_pid: int | None = None
    last_progress: float | None = None
    progress_silence_seconds: float = 0.0
    lease_left_seconds: float | None = None
    tool: str | None = None
    tool_left_seconds: float | None = None
    hears: bool = False
    rung: Step | None = None


@dataclass(frozen=True, slots=True)
class TreeRow:
    """The processes that a scan found in an agent's tree, and the cgroup of its main process."""

    agent_id: str
    home_cgroup: str | None
    members: tuple[Identity, ...]


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One kill request. `step` is what was last *intended*; it may or may not have been done."""

    request_id: str
    agent_id: str
    reason: Reason
    by: str  # "daemon", "uid 1000"
    status: str  # open, claimed, done, withdrawn, unkillable
    created_at: datetime
    by_uid: int | None = None
    options: Json = field(default_factory=dict)
    identity: Identity | None = None  # its host is the agent's; the pidfd's inode is not stored
    step: str | None = None
    members: tuple[Json, ...] = ()
    evidence: Json = field(default_factory=dict)
    outcome: Json = field(default_factory=dict)
    claimed_by: str | None = None
    claimed_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """How to close an agent that is proved dead, with its request and its task."""

    request_id: str
    holders: tuple[str, str | None]  # the daemons whose claim counts, as in `save_step`
    status: Status
    watched: SweepRow  # what was last observed of it
    by: str  # who requested the kill
    outcome: Json
    error: str | None  # why the agent did not succeed
    task: tuple[str, str, str | None] | None  # id, new status, error message
    say: bool  # also write `kill.finished`, where no `Proof` did before the hooks
    unsaved: Json  # members and evidence that the request's row lacks
    cancelled: bool = False  # its task was cancelled: write that event


@dataclass(frozen=True, slots=True)
class Proof:
    """Who proved an agent dead, when and how, for its history."""

    agent_id: str
    owner_uid: int
    who: str
    why: str
    at: datetime


@dataclass(frozen=True, slots=True)
class RunRow:
    """One hook's run for one agent. `attempts` counts every start, including one that the daemon did not survive."""

    run_id: str
    agent_id: str
    hook: str
    status: str  # running, done, nothing, kept, failed, timeout
    attempts: int
    started_at: datetime
    request_id: str | None = None
    message: str = ""
    details: Json = field(default_factory=dict)
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task of an orchestrator."""

    task_id: str
    status: str
    created_at: datetime
    assigned_agent: str | None = None
    error_message: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    updated_at: datetime | None = None
    retry_count: int = 0
    priority: int | None = None
    spec_id: str | None = None


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event; `/events?after=` takes its `id`."""

    id: int
    at: datetime
    event: str
    who: str
    why: str
    agent_id: str | None = None
    from_status: str | None = None
    to_status: str | None = None
    evidence: Json = field(default_factory=dict)
    owner_uid: int | None = None
    name: str | None = None  # the agent's, while its row exists


@dataclass(frozen=True, slots=True)
class HoldRow:
    """An operator's hold, for one agent or (None) for all."""

    id: int
    agent_id: str | None
    reason: str
    by_uid: int | None
    created_at: datetime
    until_at: datetime | None = None
    ended_at: datetime | None = None
