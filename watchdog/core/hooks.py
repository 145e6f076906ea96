"""Cleanup hooks as values: which are built in, what one gets, what it answers, and the JSON form of both.

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
    """One cleanup hook of the configuration. Exactly one of `run` (built in) and `command` (argv) is set."""

    name: str
    on: frozenset[Status]
    run: str | None = None
    command: tuple[str, ...] | None = None
    timeout: timedelta = timedelta(seconds=60)
    retries: int = 2
    needs: tuple[str, ...] = ()  # hooks before it; it runs only when each of them was done or had nothing to do


NOT_STOPPED = ENDED - {Status.STOPPED}  # an agent that was stopped is to go on later: its place stays
PATHS = frozenset({"worktree", "temp_dir"})  # the fields of a context that are directories


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """All that anything but its own module knows of a built-in hook.

    A [[hook]] that says `run` alone has its `on`, `timeout_seconds`, `retries` and `needs`.
    """

    about: str  # what it does, for documents
    leaves: str  # what stays where it is left out, for `--check`
    place: str | None = None  # the field of the context that it is about; None: it has something to do for each agent
    missing: str = ""  # what is said where that is None
    removes: bool = False  # it takes that directory away: not while another user's process uses it,
    by_name: bool = False  # or names it in its environment
    on: frozenset[Status] = ENDED
    timeout_seconds: int = 60
    retries: int = 2
    needs: tuple[str, ...] = ()

    def directory(self, context: "HookContext") -> str | None:
        """The directory of that agent's that it works in."""
        if self.place not in PATHS:
            return None
        path: str | None = getattr(context, self.place)
        return path


# In the order in which they run where the configuration lists none.
BUILT_IN: Mapping[str, BuiltIn] = {
    "pane": BuiltIn(  # first: a shell that is left there sits in the worktree
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
    """What a hook gets, as JSON on stdin. `outcome` is how the agent ended; paths are those that were registered."""

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


MESSAGE_LIMIT = 2000  # characters; a hook's words go into a log line and a row


@dataclass(frozen=True, slots=True)
class CleanupSettings:
    """What the built-in hooks need of `[cleanup]`. Temp dirs lie strictly below one of `roots`."""

    roots: tuple[str, ...] = ("/tmp", "/var/tmp")  # noqa: S108 the documented default; nothing is created there by name
    trash_retention_hours: float = 72.0
    dirty_worktree: str = "keep"  # or "rescue"
    merged_branch: str = "keep"  # or "delete"
    rebuildable: tuple[str, ...] = ()  # further names of ignored files and directories that can be made again
    tasks: tuple[tuple[str, str], ...] = ()  # user and path of each `fleet_tasks` source; "" where it usually lies
    stepped_seconds: float = 0.0  # by which the wall clock was set forward, so that all looks so much older than it is
    protected: tuple[str, ...] = ()  # never removed, nor a parent of one: the daemon's own directories


def done(message: str, **details: object) -> HookResult:
    """Something was put in order."""
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
    """The text without lone surrogates (names that are no UTF-8 have them): neither log nor database takes those."""
    return text.encode("utf-8", "backslashreplace").decode()


def context_json(context: HookContext) -> dict[str, object]:
    """The context as a hook reads it on stdin."""
    return {f.name: getattr(context, f.name) for f in fields(context)}


def context_of(data: dict[str, Any]) -> HookContext:
    """The context from its JSON. Raises KeyError, TypeError or ValueError when that is not one."""
    in_use = tuple((str(path), str(who)) for path, who in data.get("in_use", ()))
    places = data.get("registry_entry")
    changed = {"in_use": in_use, "registry_entry": None if places is None else tuple(places)}
    return HookContext(**{**data, "outcome": Status(data["outcome"]), **changed})


def known_site(context: HookContext, place: str) -> sites.KnownSite:
    """What is known of that place of the agent's, `worktree` or `temp_dir`. Raises KeyError, TypeError, ValueError."""
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
    """A result from its JSON, cut to size. Raises ValueError when it is not one: another program wrote it."""
    if not isinstance(data, dict):
        raise ValueError("a hook answers with one JSON object")
    outcome, message, details = data.get("outcome"), data.get("message", ""), data.get("details", {})
    if not isinstance(outcome, str) or not isinstance(message, str) or not isinstance(details, dict):
        raise ValueError("a hook answers with outcome, message and details")
    return HookResult(
        HookOutcome(outcome), printable(message)[:MESSAGE_LIMIT], {str(key): value for key, value in details.items()}
    )
