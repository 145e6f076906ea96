"""The contract of cleanup hooks, built in or not: values in, values out, and their JSON form.

A hook
1. is told of one agent that has ended (`HookContext`) and puts one kind of thing in order;
2. touches only what was registered for that agent, as the owner, without following links or crossing mounts;
3. writes down what it is about to do before it does it, and can be killed between any two steps: the next run with the
   same `run_id` finishes, and a run after that finds nothing to do;
4. leaves alone what it does not understand, and answers `kept` with the reason in words. `failed` is for what a later
   try may mend; a failure never counts as "clean";
5. may raise: whoever runs it turns that into `failed`.

This module must not touch a file: the daemon imports it too.
"""

from dataclasses import dataclass, fields
from typing import Any, Protocol

from watchdog.core import sites
from watchdog.core.agent import Status
from watchdog.core.hooks import HookContext, HookOutcome, HookResult

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


class Hook(Protocol):
    """One built-in hook; see the module's docstring for what it promises."""

    def __call__(self, context: HookContext, settings: CleanupSettings) -> HookResult:
        """Put one thing in order. Idempotent; may raise OSError and WatchdogError, which count as `failed`."""


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


def known_site(context: HookContext, place: str) -> sites.Known:
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
    """A result from its JSON, cut to size. Raises ValueError when that is not one: these are somebody else's words."""
    if not isinstance(data, dict):
        raise ValueError("a hook answers with one JSON object")
    outcome, message, details = data.get("outcome"), data.get("message", ""), data.get("details", {})
    if not isinstance(outcome, str) or not isinstance(message, str) or not isinstance(details, dict):
        raise ValueError("a hook answers with outcome, message and details")
    return HookResult(
        HookOutcome(outcome), printable(message)[:MESSAGE_LIMIT], {str(key): value for key, value in details.items()}
    )
