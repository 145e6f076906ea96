"""What the reaper and an owner's helper exchange about leftovers: values, and their JSON form.

This module must not touch a file: the daemon imports it too.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from watchdog.core import hooks
from watchdog.core.hooks import HookResult

PATH_LIMIT = 4096  # characters (PATH_MAX)


@dataclass(frozen=True, slots=True)
class Finding:
    """One leftover. `agent_id` None: its agent is not known."""

    kind: str  # the finder's name in `leftovers.FINDERS`
    path: str
    agent_id: str | None
    why: str  # one sentence: what it is, and the rule by which it is removed or kept
    action: Literal["remove", "keep"]
    bytes: int | None = None  # None: not counted

    def __post_init__(self) -> None:
        if self.action not in ("remove", "keep"):
            raise ValueError(f"a finding's action is remove or keep, not {self.action!r}")


@dataclass(frozen=True, slots=True)
class KnownAgents:
    """What the daemon knows of this owner's agents: only names, it has checked no path."""

    living: frozenset[str] = frozenset()  # ids
    ended: Mapping[str, float] = field(default_factory=dict)  # id -> seconds since its end
    temp_dirs: Mapping[str, str] = field(default_factory=dict)  # id of an ended agent -> the registered path
    worktrees: Mapping[str, str] = field(default_factory=dict)  # likewise
    sockets: Mapping[str, str] = field(default_factory=dict)  # likewise: the notify socket of its `run`
    commons: tuple[str, ...] = ()  # git common dirs that hold our trash, according to earlier hook runs
    in_use: tuple[tuple[str, str], ...] = ()  # as in HookContext: directories of living agents, each with its agent
    sites: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of ended agents' temp dirs: core.sites.Known


@dataclass(frozen=True, slots=True)
class Finder:
    """The two functions of one kind: find and act. Both may raise OSError and WatchdogError."""

    look: Callable[[hooks.CleanupSettings, KnownAgents], Iterable[Finding]]
    act: Callable[[Finding, hooks.CleanupSettings, KnownAgents], HookResult]


def finding_json(finding: Finding) -> dict[str, object]:
    """The finding as JSON for the pipe."""
    return asdict(finding)


def finding_of(data: object) -> Finding:
    """The finding from its JSON, cut to size. Raises ValueError or TypeError for anything else: an owner wrote it."""
    if not isinstance(data, dict):
        raise ValueError("a finding is one JSON object")
    kind, path, agent_id, why = (data.get(key) for key in ("kind", "path", "agent_id", "why"))
    size = data.get("bytes")
    if not (isinstance(kind, str) and isinstance(path, str) and isinstance(why, str)):
        raise ValueError("a finding has kind, path and why")
    if not (agent_id is None or isinstance(agent_id, str)) or not (size is None or type(size) is int):
        raise ValueError("a finding's agent_id is a text, its bytes are a number")
    if len(path) > PATH_LIMIT or len(kind) > 64 or len(agent_id or "") > 64:
        raise ValueError("a finding's kind, path or agent_id is too long")
    return Finding(kind, path, agent_id, why[: hooks.MESSAGE_LIMIT], data.get("action"), size)  # type: ignore[arg-type] # checked there


def known_json(known: KnownAgents) -> dict[str, object]:
    """The known agents as JSON for the pipe."""
    return {
        "living": sorted(known.living),
        "ended": dict(known.ended),
        "temp_dirs": dict(known.temp_dirs),
        "worktrees": dict(known.worktrees),
        "sites": dict(known.sites),
        "sockets": dict(known.sockets),
        "commons": list(known.commons),
        "in_use": [list(pair) for pair in known.in_use],
    }


def known_of(data: dict[str, Any]) -> KnownAgents:
    """The known agents from their JSON."""
    return KnownAgents(
        frozenset(data["living"]),
        {str(key): float(age) for key, age in data["ended"].items()},
        dict(data["temp_dirs"]),
        dict(data["worktrees"]),
        dict(data["sockets"]),
        tuple(data["commons"]),
        tuple((str(path), str(who)) for path, who in data["in_use"]),
        dict(data["sites"]),
    )
