"""The keys of the configuration file: what each section may hold, and what holds where the file says nothing.

Every key stands in config/agent-watchdog.toml with its default and the reason for it (tests/test_config.py compares).
"""

import os
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from watchdog.config.fields import (
    Account,
    Address,
    AgentName,
    Command,
    Count,
    Database,
    Event,
    Group,
    Host,
    Keys,
    Ladder,
    Line,
    LogFile,
    Path,
    Programs,
    Seconds,
    SecondsOrZero,
    Tag,
    Type,
    suggest,
)
from watchdog.core.agent import ENDED, Status
from watchdog.core.kill import Polite, Step
from watchdog.core.source_entries import KINDS
from watchdog.core.vendors import EXIT_KEYS

BUILT_IN_HOOKS = ("pane", "git_locks", "worktree", "temp_dir", "registry_entry")
_NOT_STOPPED = tuple(sorted(ENDED - {Status.STOPPED}))  # a stopped agent is to go on later: its place stays
# What a built-in hook has where its [[hook]] does not say otherwise. Without this a `stop` would take the worktree of
# whoever lists that hook by its two names alone.
_BUILT_IN: dict[str, dict[str, object]] = {
    "pane": {"on": _NOT_STOPPED, "timeout_seconds": 20, "retries": 0},
    "worktree": {"on": _NOT_STOPPED},
}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)


class DaemonSection(_Section):
    """`[daemon]`"""

    mode: Literal["enforce", "observe"] = "enforce"
    host: Host = ""
    state_dir: Path = ""
    runtime_dir: Path = ""


class RegistrySection(_Section):
    """`[registry]`"""

    url: Database = ""
    retention_days: Annotated[float, Field(strict=True, gt=0, le=36_500)] = 30
    megabytes_per_user: Count = 64


class SweepSection(_Section):
    """`[sweep]`"""

    interval_seconds: Annotated[float, Field(strict=True, ge=0.05, le=300)] = 10


class StallSection(_Section):
    """`[stall]`"""

    after_seconds: Seconds = 120
    confirm_sweeps: Count = 2
    start_limit_seconds: Seconds = 300
    busy_limit_seconds: SecondsOrZero = 3600
    wait_limit_seconds: Seconds = 21_600
    prompt_limit_seconds: Seconds = 300
    progress_limit_seconds: Seconds = 1800
    linger_seconds: SecondsOrZero = 60


class KillSection(_Section):
    """`[kill]`"""

    grace_seconds: SecondsOrZero = 10
    verify_seconds: Seconds = 60
    parallel: Count = 1000
    max_per_minute: Count = 10
    ladder: Ladder = (Step.KILL,)
    warn_pause_seconds: SecondsOrZero = 60
    nudge_pause_seconds: SecondsOrZero = 60
    stop_pause_seconds: SecondsOrZero = 60
    nudge_text: Line = "Are you still at work? Go on with your task, or say what you wait for."
    nudge_command: Command = ()
    exit_keys: Keys = ()
    polite: Polite = Polite.MAIN_FIRST
    spare: Programs = (
        "tmux: server",
        "screen",
        "zellij",
        "ssh-agent",
        "gpg-agent",
        "adb",
        "watchman",
        "sccache",
    )
    task_status: Literal["failed", "ready_for_retry"] = "failed"


class HoldSection(_Section):
    """`[hold]`"""

    mass_stall_count: Count = 3
    mass_stall_fraction: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.5
    cpu_pressure_percent: Annotated[float, Field(strict=True, gt=0, le=100)] = 90
    max_seconds: Seconds = 900


class CleanupSection(_Section):
    """`[cleanup]`"""

    roots: tuple[Annotated[Path, Field(min_length=1)], ...] = ("/tmp", "/var/tmp")  # noqa: S108 where temp dirs may be removed, nothing is made there
    trash_retention_hours: Annotated[float, Field(strict=True, ge=0, le=87_600)] = 72
    dirty_worktree: Literal["keep", "rescue"] = "keep"
    merged_branch: Literal["keep", "delete"] = "keep"
    rebuildable: tuple[Annotated[str, Field(pattern=r"^[^/]{1,255}$")], ...] = ()


class HookSection(_Section):
    """One `[[hook]]`"""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    on: Annotated[tuple[Status, ...], Field(min_length=1)] = tuple(sorted(ENDED))
    needs: tuple[str, ...] = ()
    run: Literal["pane", "git_locks", "worktree", "temp_dir", "registry_entry"] | None = None
    command: Command | None = None
    timeout_seconds: Seconds = 60
    retries: Annotated[int, Field(strict=True, ge=0, le=100)] = 2

    @model_validator(mode="before")
    @classmethod
    def _as_shipped(cls, given: object) -> object:
        run = given.get("run") if isinstance(given, dict) else None
        return {**_BUILT_IN.get(run, {}), **given} if isinstance(given, dict) and isinstance(run, str) else given

    @model_validator(mode="after")
    def _check(self) -> "HookSection":
        if (self.run is None) == (not self.command):
            raise ValueError(f"needs either run (one of {', '.join(BUILT_IN_HOOKS)}) or command (a list of words)")
        if living := set(self.on) - ENDED:
            raise ValueError(f"on: {', '.join(sorted(living))}: hooks run after the end: {', '.join(sorted(ENDED))}")
        return self


class PolicyMatch(_Section):
    """`match` of a `[[policy]]`: all that are given must fit."""

    type: Type | None = None
    name: AgentName | None = None
    tag: Tag | None = None

    @model_validator(mode="after")
    def _check(self) -> "PolicyMatch":
        if self.type is None and self.name is None and self.tag is None:
            raise ValueError('needs at least one of type, name, tag, as in { type = "claude" }')
        return self


class PolicyEntry(_Section):
    """One `[[policy]]`: any stall or kill key that is an agent's own."""

    match: PolicyMatch
    after_seconds: Seconds | None = None
    confirm_sweeps: Count | None = None
    start_limit_seconds: Seconds | None = None
    busy_limit_seconds: SecondsOrZero | None = None
    wait_limit_seconds: Seconds | None = None
    prompt_limit_seconds: Seconds | None = None
    progress_limit_seconds: Seconds | None = None
    linger_seconds: SecondsOrZero | None = None
    grace_seconds: SecondsOrZero | None = None
    verify_seconds: Seconds | None = None
    ladder: Ladder | None = None
    warn_pause_seconds: SecondsOrZero | None = None
    nudge_pause_seconds: SecondsOrZero | None = None
    stop_pause_seconds: SecondsOrZero | None = None
    nudge_text: Line | None = None
    nudge_command: Command | None = None
    exit_keys: Keys | None = None
    polite: Polite | None = None
    spare: Programs | None = None
    task_status: Literal["failed", "ready_for_retry"] | None = None

    def fits(self, agent_type: str, name: str, tags: Iterable[str]) -> bool:
        """Does it hold for such an agent?"""
        match = self.match
        return (
            match.type in (None, agent_type) and match.name in (None, name) and (match.tag is None or match.tag in tags)
        )


class SourceSection(_Section):
    """One `[[source]]`: another program's registry of its agents."""

    kind: str
    path: Path = ""
    user: Account = ""
    after_seconds: Seconds | None = None

    @model_validator(mode="after")
    def _check(self) -> "SourceSection":
        if self.kind not in KINDS:
            raise ValueError(f"kind: {self.kind!r}: this version has no such source{suggest(self.kind, KINDS)}")
        if not self.path and not KINDS[self.kind].path:
            raise ValueError(f"path: is missing; {self.kind} has no default path")
        return self

    def place(self) -> str:
        """Where it lies; the homes of two users are two places."""
        kind = KINDS[self.kind]
        path = self.path or ("" if self.user else os.environ.get(kind.variable, "")) or kind.path
        return f"~{self.user}{path[1:]}" if path == "~" or path.startswith("~/") else path


class ControlSection(_Section):
    """`[control]`"""

    admin_group: Group = ""


class LogSection(_Section):
    """`[log]`"""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"
    file: LogFile = ""


class MetricsSection(_Section):
    """`[metrics]`"""

    listen: Address = ""


class NotifySection(_Section):
    """`[notify]`"""

    on: tuple[Event, ...] = ()
    command: Command = ()

    @model_validator(mode="after")
    def _check(self) -> "NotifySection":
        if bool(self.on) != bool(self.command):
            raise ValueError("needs both on (events) and command (a list of words), or neither")
        return self


class Config(_Section):
    """The whole file."""

    daemon: DaemonSection = DaemonSection()
    registry: RegistrySection = RegistrySection()
    sweep: SweepSection = SweepSection()
    stall: StallSection = StallSection()
    kill: KillSection = KillSection()
    hold: HoldSection = HoldSection()
    cleanup: CleanupSection = CleanupSection()
    hook: tuple[HookSection, ...] | None = None
    policy: tuple[PolicyEntry, ...] = ()
    source: tuple[SourceSection, ...] | None = None
    control: ControlSection = ControlSection()
    log: LogSection = LogSection()
    metrics: MetricsSection = MetricsSection()
    notify: NotifySection = NotifySection()


# A turn of these often takes minutes without a sign, and their hooks are silent while a tool runs.
SHIPPED_POLICIES = tuple(
    PolicyEntry(match=PolicyMatch(type=name), after_seconds=900, exit_keys=keys) for name, keys in EXIT_KEYS.items()
)
# Of a user's daemon: the sessions that run already are in `list` at once. Root's reads no user's files unasked.
USERS_SOURCES = (SourceSection(kind="claude"),)
DEFAULT_HOOKS = (
    HookSection(name="pane", run="pane"),  # first: a shell that is left there sits in the worktree
    HookSection(name="git_locks", run="git_locks"),  # before `worktree`, which keeps a tree whose index is locked
    HookSection(name="worktree", run="worktree"),
    HookSection(name="temp_dir", run="temp_dir"),
    HookSection(
        name="registry_entry", run="registry_entry"
    ),  # last: a program that finds it closed may assume that all is cleaned up
)
