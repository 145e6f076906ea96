"""Cleanup hooks as values: the built-in ones, the input and result of a hook, and the JSON form of both.

A new built-in hook is one line in `BUILT_IN` and one module of its name in owner/hooks/.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any

from watchdog.core import sites
from watchdog.core.agent import ENDED, Status


@dataclass(frozen=True, slots=True)
class HookSpec:
    """One configured cleanup hook. Exactly one of `run` (built in) and `command` (argv) is set."""

    name: str
    on: frozenset[Status]
    run: str | None = None
    command: tuple[str, ...] | None = None
    timeout: timedelta = timedelta(seconds=60)
    retries: int = 2
    needs: tuple[str, ...] = ()  # earlier hooks; it runs only if each of them was done or had nothing to do


NOT_STOPPED = ENDED - {Status.STOPPED}  # a stopped agent may be resumed later: its directories stay
PATHS = frozenset({"worktree", "temp_dir"})  # the fields of a context that are directories


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """Everything that other modules know of a built-in hook.

    A [[hook]] that sets only `run` gets its `on`, `timeout_seconds`, `retries` and `needs`.
    """

    about: str  # what it does, for documents
    leaves: str  # what stays if the hook is not configured, for `--check`
    place: str | None = None  # the context field that it works on; None: it runs for each agent
    missing: str = ""  # the message if that field is None
    removes: bool = False  # it removes that directory: not while another user's process uses it,
    by_name: bool = False  # or names it in its environment
    on: frozenset[Status] = ENDED
    timeout_seconds: int = 60
    retries: int = 2
    needs: tuple[str, ...] = ()

    def directory(self, context: "HookContext") -> str | None:
        """The agent's directory that it works on; None: it works on none."""
        if self.place not in PATHS:
            return None
        path: str | None = getattr(context, self.place)
        return path


# In the order in which they run if the configuration lists no hooks.
BUILT_IN: Mapping[str, BuiltIn] = {
    "pane": BuiltIn(  # first: a shell that is left in the pane has its cwd in the worktree
        about="closes the pane (tmux, kitty, WezTerm) that was made for the agent",
        leaves="terminal panes",
        place="pane",
        missing="no pane of it is known",
        on=NOT_STOPPED,
        timeout_seconds=20,
        retries=0,
    ),
    "git_locks": BuiltIn(  # before `worktree`, which keeps a tree whose index is locked
        about="moves lock files aside that a killed git left in its checkout",
        leaves="locks of a dead git",
        place="worktree",
        missing="no worktree was registered",
    ),
    "worktree": BuiltIn(
        about="moves its git worktree to the trash if nothing is lost by that",
        leaves="worktrees",
        place="worktree",
        missing="no worktree was registered",
        removes=True,
        on=NOT_STOPPED,
    ),
    "temp_dir": BuiltIn(
        about="removes its temp dir",
        leaves="temp dirs",
        place="temp_dir",
        missing="no temp dir was registered",
        removes=True,
        by_name=True,
    ),
    "registry_entry": BuiltIn(  # last: a program that finds it closed may assume that all is cleaned up
        about="of an agent that came from a [[source]]: closes its entry there",
        leaves="entries of a [[source]] (later they are closed as lost)",
        place="registry_entry",
        missing="no other program's registry listed it",
    ),
}


@dataclass(frozen=True, slots=True)
class HookContext:
    """The input of a hook, as JSON on stdin. `outcome` is how the agent ended; paths are the registered ones."""

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
    in_use: tuple[tuple[str, str], ...] = ()  # worktrees and temp dirs of other living agents, each with its agent
    registry_entry: tuple[dict[str, Any], ...] | None = None  # its foreign entries: kind, path, key, token, temp
    why: str = ""  # its end: the reason as text,
    by: str = "daemon"  # the actor,
    ended_at: float = 0.0  # and the time, in epoch seconds
    task_status: str | None = None  # the new status of its task
    resumable: bool = True
    conversation: str | None = None  # the id of its last conversation
    with_messages: bool = False
    sites: dict[str, Any] | None = None  # by `worktree` and `temp_dir`: `core.sites.KnownSite`, as JSON
    used_by: str | None = None  # another uid's process that uses the directory, as root's daemon saw it
    seen: str | None = None  # the state in which an earlier run kept it because it was in use, as that run described it


class HookOutcome(StrEnum):
    """How one hook's run ended. `kept`: it left something on purpose; nothing to retry."""

    DONE = "done"
    NOTHING = "nothing"
    KEPT = "kept"
    FAILED = "failed"  # retried until `retries` is used up
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class HookResult:
    """The result of a hook, as one JSON object on stdout."""

    outcome: HookOutcome
    message: str = ""
    details: dict[str, object] = field(default_factory=dict)


MESSAGE_LIMIT = 2000  # characters; the message goes into a log line and a row


@dataclass(frozen=True, slots=True)
class CleanupSettings:
    """What the built-in hooks need of `[cleanup]`. Temp dirs lie strictly below one of `roots`."""

    roots: tuple[str, ...] = ("/tmp", "/var/tmp")  # noqa: S108 the documented default; nothing is created there by name
    trash_retention_hours: float = 72.0
    dirty_worktree: str = "keep"  # or "rescue"
    merged_branch: str = "keep"  # or "delete"
    rebuildable: tuple[str, ...] = ()  # further names of ignored files and directories that can be rebuilt
    tasks: tuple[tuple[str, str], ...] = ()  # user and path of each `fleet_tasks` source; "": the usual path
    stepped_seconds: float = 0.0  # the wall clock was set forward by this: everything looks that much older
    protected: tuple[str, ...] = ()  # never removed, nor a parent of one: the daemon's own directories


def done(message: str, **details: object) -> HookResult:
    """Something was cleaned up."""
    return HookResult(HookOutcome.DONE, message, dict(details))


def nothing(message: str, **details: object) -> HookResult:
    """There was nothing to do."""
    return HookResult(HookOutcome.NOTHING, message, dict(details))


def kept(message: str, **details: object) -> HookResult:
    """Something was left on purpose; the message says why."""
    return HookResult(HookOutcome.KEPT, message, dict(details))


def failed(message: str, **details: object) -> HookResult:
    """It could not be done just now."""
    return HookResult(HookOutcome.FAILED, message, dict(details))


def printable(text: str) -> str:
    """The text without lone surrogates (from names that are not UTF-8), which neither log nor database accepts."""
    return text.encode("utf-8", "backslashreplace").decode()


def context_json(context: HookContext) -> dict[str, object]:
    """The context as a hook reads it on stdin."""
    return {f.name: getattr(context, f.name) for f in fields(context)}


def context_of(data: dict[str, Any]) -> HookContext:
    """The context from its JSON. Raises KeyError, TypeError or ValueError for anything else."""
    in_use = tuple((str(path), str(who)) for path, who in data.get("in_use", ()))
    places = data.get("registry_entry")
    changed = {"in_use": in_use, "registry_entry": None if places is None else tuple(places)}
    return HookContext(**{**data, "outcome": Status(data["outcome"]), **changed})


def known_site(context: HookContext, place: str) -> sites.KnownSite:
    """What is known of the agent's `place`, `worktree` or `temp_dir`. Raises KeyError, TypeError, ValueError."""
    return sites.known_of((context.sites or {}).get(place))


def settings_json(settings: CleanupSettings) -> dict[str, object]:
    """The settings for the helper's `hook` call."""
    return {f.name: getattr(settings, f.name) for f in fields(settings)}


def settings_of(data: dict[str, Any]) -> CleanupSettings:
    """The settings from their JSON."""
    tasks = tuple((str(user), str(path)) for user, path in data.get("tasks", ()))
    lists = {"roots": tuple(data["roots"]), "protected": tuple(data.get("protected", ())), "tasks": tasks}
    lists["rebuildable"] = tuple(data.get("rebuildable", ()))
    return CleanupSettings(**{**data, **lists})


def result_json(result: HookResult) -> dict[str, object]:
    """A result as a hook writes it on stdout."""
    return {"outcome": result.outcome, "message": result.message, "details": result.details}


def result_of(data: object) -> HookResult:
    """A result from its JSON, cut to size. Raises ValueError for anything else: another program wrote it."""
    if not isinstance(data, dict):
        raise ValueError("a hook answers with one JSON object")
    outcome, message, details = data.get("outcome"), data.get("message", ""), data.get("details", {})
    if not isinstance(outcome, str) or not isinstance(message, str) or not isinstance(details, dict):
        raise ValueError("a hook answers with outcome, message and details")
    return HookResult(
        HookOutcome(outcome), printable(message)[:MESSAGE_LIMIT], {str(key): value for key, value in details.items()}
    )
