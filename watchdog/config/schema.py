"""The keys of the configuration file: the sections, their keys and the defaults.

The comment above a key explains it; the comment at the top of a list's class explains the whole list. `make events`
writes both, with the defaults, into config/agent-watchdog.toml and the manual; placeholders in braces are filled in
from other tables (tests/config_file.py).

Tests: tests/config/test_settings.py, tests/config/test_messages.py, tests/test_config_hostile.py.
"""

import os
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from watchdog.config.fields import (
    Account,
    Address,
    AgentName,
    BuiltInHook,
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
from watchdog.core.hooks import BUILT_IN
from watchdog.core.kill import Polite, Step
from watchdog.core.source_entries import KINDS
from watchdog.core.vendors import EXIT_KEYS


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)


class DaemonSection(_Section):
    """`[daemon]`"""

    # "observe" decides and logs as usual, but kills and cleans up nothing: to try limits on real agents first.
    mode: Literal["enforce", "observe"] = "enforce"
    # The name of this host in the registry. Empty: /etc/machine-id, which survives a new host name.
    host: Host = ""
    # Where registry.db lies. Empty: /var/lib/agent-watchdog for root, $XDG_STATE_HOME/agent-watchdog (~/.local/state)
    # else.
    state_dir: Path = ""
    # Where the sockets lie; at most 67 bytes, as a socket's path holds 107. Empty: /run/agent-watchdog for root, else
    # $XDG_RUNTIME_DIR/agent-watchdog, or /tmp/agent-watchdog-UID where there is none.
    runtime_dir: Path = ""


class RegistrySection(_Section):
    """`[registry]`"""

    # Empty: SQLite in state_dir. Hosts that belong together share postgresql://user@host/name.
    url: Database = ""
    # How long ended agents and their history are kept: a month is enough for most questions about what happened.
    retention_days: Annotated[float, Field(strict=True, gt=0, le=36_500)] = 30
    # What the agents of one user (but root) may take of a SQLite registry: a month of some hundred agents a day.
    # Beyond it that user's oldest history is deleted early, and while that is not enough its new agents and holds are
    # refused.
    megabytes_per_user: Count = 64


class SweepSection(_Section):
    """`[sweep]`"""

    # How often every agent is judged. Exits and beats are seen at once in any case; this is how late a stall is
    # noticed.
    interval_seconds: Annotated[float, Field(strict=True, ge=0.05, le=300)] = 10


class StallSection(_Section):
    """`[stall]`"""

    # Silence that is too long, for agents that promised to beat. At least two intervals; two minutes is what most
    # orchestrators use. An agent's own `--stall-after` takes precedence.
    after_seconds: Seconds = 120
    # How many sweeps in a row must find an agent silent before it counts as stalled: a single look may be unlucky.
    confirm_sweeps: Count = 2
    # An agent without a pid, or without the first beat that it promised, has failed to start after that time. Cold
    # starts of big agents take minutes.
    start_limit_seconds: Seconds = 300
    # For how long activity seen from outside (CPU, IO, child agents) may delay a verdict: an hour of compiling is
    # plausible. It counts from when the agent is too silent (after_seconds) or has not started (start_limit_seconds).
    busy_limit_seconds: SecondsOrZero = 3600
    # Maximum of leases, tool limits and rate-limit waits: longer than any provider's five-hour window. Also how long
    # an agent may be silent that is idle while its subagents work.
    wait_limit_seconds: Seconds = 21_600
    # Waiting for a human for that long is reported once. An agent is never killed for it.
    prompt_limit_seconds: Seconds = 300
    # Where an agent reports its progress, it must move within that time: beating is not working.
    progress_limit_seconds: Seconds = 1800
    # An agent that said `done` and still runs after that time is killed. 0: it is only reported.
    linger_seconds: SecondsOrZero = 60


class KillSection(_Section):
    """`[kill]`"""

    # From TERM to KILL. Ten seconds is also what `docker stop` gives; agents save their session in one or two.
    grace_seconds: SecondsOrZero = 10
    # After KILL a tree that is not gone in that time is `unkillable`: reported, tried again, and not cleaned up before
    # it is gone.
    verify_seconds: Seconds = 60
    # Kills at the same time; at most a quarter of the daemon's file descriptors. Kills mostly wait, so this is a bound
    # and no tuning: with fewer, trees that ignore TERM wait for each other's grace.
    parallel: Count = 1000
    # Budget of the daemon's own kills of living agents; operators have none. More than this at once is rarely right.
    max_per_minute: Count = 10
    # Steps in this order, of "warn" (reported), "nudge" (a line into its tmux pane, or a command), "stop" (asked to
    # exit, then its exit keys) and "kill". Each step has its pause; a beat ends the ladder, and the next one begins
    # again with "warn".
    ladder: Ladder = (Step.KILL,)
    warn_pause_seconds: SecondsOrZero = 60
    nudge_pause_seconds: SecondsOrZero = 60
    # How long an agent that beats over HTTP has to exit by itself, after its present tool call; also for the verb
    # `stop`.
    stop_pause_seconds: SecondsOrZero = 60
    # What a nudge types, followed by Enter: only into the agent's own pane, while the agent runs in its foreground;
    # never before it has started, over a dialog, or behind a draft in its prompt.
    nudge_text: Line = "Are you still at work? Go on with your task, or say what you wait for."
    # A program to run instead, as the agent's owner, with the agent and the reason as JSON on stdin.
    nudge_command: Command = ()
    # Words and keys (as tmux(1) names them) that make the agent exit, for step `stop` and the verb. Shipped: the
    # vendors'. A draft in the prompt of a vendor's program is cleared first; if it stays, nothing is typed.
    exit_keys: Keys = ()
    # "main_first": the main process gets TERM first, its children at half of the grace: it can save what they hold.
    # "all": all processes at once. Each has one whole grace from its own TERM, so a tree that ignores TERM takes one
    # and a half, and two at most if it starts others meanwhile.
    polite: Polite = Polite.MAIN_FIRST
    # Programs (comm, at most 15 characters) that are spared with all that they started: they serve others, too.
    # A list of yours replaces this one: keep what is in it.
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
    # What a task gets when its agent was killed: "failed", or "ready_for_retry" where an orchestrator starts it again.
    task_status: Literal["failed", "ready_for_retry"] = "failed"


class HoldSection(_Section):
    """`[hold]`"""

    # If that many agents, and that share of all, stall at once, the cause is rather the network or the daemon: no
    # agent is killed for silence.
    mass_stall_count: Count = 3
    mass_stall_fraction: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.5
    # Share of time in which tasks waited for a CPU (PSI some, avg10): from it on, with a load of two a core, silence
    # says little (without PSI: a load of four a core). 100: never.
    cpu_pressure_percent: Annotated[float, Field(strict=True, gt=0, le=100)] = 90
    # The daemon's own holds delay no agent's kill for longer: an agent that is really stalled must not stay forever.
    max_seconds: Seconds = 900


class CleanupSection(_Section):
    """`[cleanup]`"""

    # Temp dirs are removed only below these, or with our own mark in them.
    roots: tuple[Annotated[Path, Field(min_length=1)], ...] = ("/tmp", "/var/tmp")  # noqa: S108 where temp dirs may be removed, nothing is made there
    # How long a worktree in the trash can be restored: over a weekend.
    trash_retention_hours: Annotated[float, Field(strict=True, ge=0, le=87_600)] = 72
    # A worktree with work that nothing else holds: "keep" leaves it where it is; "rescue" saves commits and files to
    # refs below refs/agent-watchdog/rescue/, compares them, and then moves tree and entry to the trash.
    dirty_worktree: Literal["keep", "rescue"] = "keep"
    # The branch of a worktree that went to the trash: "delete" removes it when another branch or a tag holds its tip.
    merged_branch: Literal["keep", "delete"] = "keep"
    # More names of ignored files and directories that can be made again, such as "*.log" or "tmp". All that git
    # ignores and that is neither these nor known as such (node_modules, .venv, build output, caches: cleanup.md) is
    # work: in the trash it is kept without limit.
    rebuildable: tuple[Annotated[str, Field(pattern=r"^[^/]{1,255}$")], ...] = ()


class HookSection(_Section):
    """One `[[hook]]`"""

    # Cleanup hooks, in this order, each as the agent's owner, with a deadline. [[hook]] in your file replaces these.
    # If you list one of these by name and `run` alone, its other keys are as here.
    # `on`: of completed, failed, stopped, killed, lost. `run`: built in ({hooks}); or your own program, which other
    # users must not be able to change, and which gets JSON on stdin:
    #   command = ["/usr/local/bin/notify-board", "agent-ended"]
    # `needs = ["worktree"]`: run only when that hook, which must be listed before it, was done or had nothing to do.
    # The pane that was made for an agent goes first: a shell that is left there may sit in the worktree. It stays if a
    # person works in it, or if the agent was started there by hand. Then git's dead locks: a worktree whose index is
    # locked stays. Pane and worktree of a stopped agent, which is to be resumed later, stay too.

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    on: Annotated[tuple[Status, ...], Field(min_length=1)] = tuple(sorted(ENDED))
    needs: tuple[str, ...] = ()
    run: BuiltInHook | None = None
    command: Command | None = None
    timeout_seconds: Seconds = 60
    retries: Annotated[int, Field(strict=True, ge=0, le=100)] = 2

    @model_validator(mode="before")
    @classmethod
    def _as_shipped(cls, given: object) -> object:
        """Add a built-in hook's shipped keys: with the defaults of `on`, `stop` would remove the worktree too."""
        run = given.get("run") if isinstance(given, dict) else None
        if not isinstance(given, dict) or not isinstance(run, str) or run not in BUILT_IN:
            return given
        shipped = BUILT_IN[run]
        own = {"on": tuple(sorted(shipped.on)), "timeout_seconds": shipped.timeout_seconds, "retries": shipped.retries}
        return {**own, "needs": shipped.needs, **given}

    @model_validator(mode="after")
    def _check(self) -> "HookSection":
        if (self.run is None) == (not self.command):
            raise ValueError(f"needs either run (one of {', '.join(BUILT_IN)}) or command (a list of words)")
        if living := set(self.on) - ENDED:
            raise ValueError(f"on: {', '.join(sorted(living))}: hooks run after the end: {', '.join(sorted(ENDED))}")
        return self


class PolicyMatch(_Section):
    """`match` of a `[[policy]]`: all given keys must match."""

    type: Type | None = None
    name: AgentName | None = None
    tag: Tag | None = None

    @model_validator(mode="after")
    def _check(self) -> "PolicyMatch":
        if self.type is None and self.name is None and self.tag is None:
            raise ValueError('needs at least one of type, name, tag, as in { type = "claude" }')
        return self


class PolicyEntry(_Section):
    """One `[[policy]]`: any stall or kill key that can be set per agent."""

    # Other limits for some agents: any key of [stall], and of [kill] all but parallel and max_per_minute. `match`
    # takes type, name and tag as whole words (no patterns), and all that are given must match. Matching entries are
    # merged, the last one wins; these always come first. A turn of these programs often takes minutes without a sign,
    # and their hooks are silent while a tool runs: two minutes would kill healthy ones.

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
        """Whether this policy applies to such an agent."""
        match = self.match
        return (
            match.type in (None, agent_type) and match.name in (None, name) and (match.tag is None or match.tag in tags)
        )


class SourceSection(_Section):
    """One `[[source]]`: another program's registry of its agents."""

    # Other programs' registries: agents listed there are watched like any other, and their entry there is closed when
    # they have ended. Kinds: {kinds}. Agents of these are only reported, and never killed: {told_of}. `path`: its file
    # or directory; empty: where that program keeps it ({places}). `user`: its owner; it is read and written as that
    # user, and counts for that user's processes alone; empty: the daemon's own uid. `after_seconds = 300`: the silence
    # that is too long, where that program sends beats; without it the program's own interval counts. A user's daemon
    # has the one below by itself (`source = []` at the top of the file switches it off), root's has none.

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
        """The path of the source, starting with `~USER` for a named user: the homes of two users are two places."""
        kind = KINDS[self.kind]
        path = self.path or ("" if self.user else os.environ.get(kind.variable, "")) or kind.path
        return f"~{self.user}{path[1:]}" if path == "~" or path.startswith("~/") else path


class ControlSection(_Section):
    """`[control]`"""

    # Members may act on all users' agents, like root. Empty: root only.
    admin_group: Group = ""


class LogSection(_Section):
    """`[log]`"""

    # "debug", "info", "warning", "error". Single sweeps and beats are debug.
    level: Literal["debug", "info", "warning", "error"] = "info"
    # "auto": fields in the journal, columns on a terminal, JSON elsewhere. Or "json", "text".
    format: Literal["auto", "json", "text"] = "auto"
    # A file instead of stderr; opened again after a rename or deletion, without a signal. Empty: stderr.
    file: LogFile = ""


class MetricsSection(_Section):
    """`[metrics]`"""

    # HOST:PORT (an IP address, [::1] for IPv6, or localhost) for Prometheus over TCP, without a password: GET /metrics
    # alone is reachable there. Empty: only on the control socket.
    listen: Address = ""


class NotifySection(_Section):
    """`[notify]`"""

    # Events (names as in the log) that start the command, with the event as JSON on stdin. Both or neither. It runs as
    # the daemon's uid in a process of its own, for one event after another: 10 s each, 30 a minute, and 300 may wait.
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
DEFAULT_HOOKS = tuple(HookSection(name=name, run=name) for name in BUILT_IN)
