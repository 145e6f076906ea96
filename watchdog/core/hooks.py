"""TODO."""

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from watchdog.core.agent import Status


@dataclass(frozen=True, slots=True)
class HookSpec:
    """One cleanup hook of the configuration. Exactly one of `run` (built in) and `command` (argv) is set."""

    name: str
    on: frozenset[Status]
    run: str | None = None
    command: tuple[str, ...] | None = None
    timeout: timedelta = timedelta(seconds=60)
    retries: int = 2
    needs: tuple[str, ...] = ()  # hooks before it; it runs only when each of them was done or had nothing to do


@dataclass(frozen=True, slots=True)
class HookContext:
    """What a hook is told, as JSON on stdin. `outcome` is how the agent ended; paths are those that were registered."""

    run_id: str  # idempotency key: the same for every try of this hook for this agent
    hook: str
    agent_id: str
    name: str
    owner_uid: int
    outcome: Status
    reason: str
    task_id: str | None
    worktree: str | None
    temp_dir: str | None
    exit_code: int | None = None
    exit_signal: int | None = None
    pane: dict[str, object] | None = None
    in_use: tuple[tuple[str, str], ...] = ()  # worktrees and temp dirs of other living agents, and whose each is
    registry_entry: tuple[dict[str, Any], ...] | None = None  # its entries elsewhere: kind, path, key, token, temp
    why: str = ""  # it ended: in words,
    by: str = "daemon"  # by whom,
    ended_at: float = 0.0  # and when, in epoch seconds
    task_status: str | None = None  # what becomes of its task
    resumable: bool = True
    conversation: str | None = None  # the id of the one that it was in
    with_messages: bool = False
    sites: dict[str, Any] | None = None  # by `worktree` and `temp_dir`: `core.sites.Known`, as JSON
    used_by: str | None = None  # another uid's process that has the place, as root's daemon saw it
    seen: str | None = None  # in what state a former run kept it because it was in use, in that run's own words


class HookOutcome(StrEnum):
    """How one hook's run ended. `kept`: it looked, and left something on purpose; nothing to retry."""

    DONE = "done"
    NOTHING = "nothing"
    KEPT = "kept"
    FAILED = "failed"  # retried until `retries` is used up
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class HookResult:
    """What a hook answers, as one JSON object on stdout."""

    outcome: HookOutcome
    message: str = ""
    details: dict[str, object] = field(default_factory=dict)
