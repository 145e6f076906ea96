"""What an owner's helper reports of foreign registries: their kinds, one entry, the end of one, and their JSON.

A new kind is one line in `KINDS` and one module of its name in owner/sources/.
"""

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, get_args, get_type_hints

from watchdog.core.sd_notify import printable

MOST_ENTRIES = 256  # per read: as many as one uid may have agents
MOST_TOLD = MOST_ENTRIES + 1  # the last one reports that there are more
LONGEST = 1e13  # seconds: anything longer, infinite or NaN is not a time (`timedelta` ends at 8.6e13)
WORDS_LIMIT = 4096  # characters of one text in an entry: the longest path


@dataclass(frozen=True, slots=True)
class Kind:
    """Where registries of one kind are, and how documents describe them.

    The owner's helper sees only `path` and `reads`, and in `removes` what it may remove there; "~" is the owner's home.
    """

    path: str  # the default; "": it has none
    place: str  # what a `path` names, for the configuration file
    registry: str  # what the registry is and what is done to an entry in it,
    beat: str  # and what is a beat there, for the table in agents.md
    variable: str = ""  # in the owner's environment, naming another path
    reads: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    written: str = ""  # the file below `path` that beats are written to; "": `path` itself
    told_of: bool = False  # its agents are only reported; only a person's order kills them


KINDS = {
    "orchestrator_db": Kind(
        "",
        place="SQLite with agent_lifecycle, and agent_status/*.json beside it",
        registry="SQLite file with `agent_lifecycle` (and `orchestrator_task`), `agent_status/*.json` beside it",
        beat="a change of `last_heartbeat`; 120 s of silence are too long (`after_seconds`)",
    ),
    "hcom": Kind(
        "~/.hcom",
        place="its directory",
        registry="`hcom.db` and the list of launched pids in `~/.hcom`, or $HCOM_DIR; a stopped agent can be resumed"
        " by `hcom r NAME`",
        beat="a new time or status in its row; 120 s of silence are too long while it listens, 300 while it works,"
        " 660 in a tool",
        variable="HCOM_DIR",
        written="hcom.db",
    ),
    "agent_relay": Kind(
        "~/.agent-relay",
        place="a data directory of its, or ~/.agent-relay with all of them",
        registry="a data directory of agent-relay, or `~/.agent-relay` with all of them: an ended agent is removed from"
        " its lists",
        beat="none",
        removes=("/tmp", "/tmp/relay-outbox"),  # noqa: S108
    ),
    "agent_sessions": Kind(
        "",
        place="the agent-sessions.yaml of tmux-agent-orchestrate, or its workspace",
        registry="tmux-agent-orchestrate's (multi-agent-mux's) `.mam/` or `.hermes/agent-sessions.yaml` and `.db`, both"
        " or neither: a row becomes `stopped` or `terminated`, its job is notified; if it and tmux disagree, `list`"
        " says how",
        beat="none",
        variable="AGENT_SESSIONS_YAML",
    ),
    "fleet_tasks": Kind(
        "~/.fleet-tasks",
        place="apra-fleet's, ~/.fleet-tasks",
        registry="apra-fleet's tasks, `~/.fleet-tasks/task-*/`: `status.json` becomes `cancelled` or `failed`,"
        " `task.pid` is removed; members on other devices are shown",
        beat="a touch of `activity`; 660 s of silence are too long: the wrapper touches it every 300 s, also while its"
        " command hangs",
        reads=("~/.apra-fleet/data",),
    ),
    "claude": Kind(
        "~/.claude",
        place="Claude Code's `sessions/` in its directory",
        registry="`~/.claude/sessions/`: reported, never closed",
        beat="none",
        variable="CLAUDE_CONFIG_DIR",
        told_of=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One agent as a foreign registry lists it now. Times are epoch seconds; None and "" mean "not said"."""

    key: str  # identifies the entry within its registry (a row's id, a file's name)
    token: str  # changes when the entry means another run, never with a beat
    name: str
    uid: int  # the owner of the file: the entry counts only for processes of that uid
    pid: int | None = None  # None also if the number there is not a pid (a thread id, beyond pid_max)
    ticks: int | None = None  # its start ticks (field 22 of /proc/PID/stat), if the program records them,
    boot_id: str | None = None  # and the boot they belong to
    since: float | None = None  # when that pid was written: a process that began later is another
    since_local: float | None = None  # the same text read in the process's zone, if it names no zone
    started: float | None = None  # when it began, according to its registry: an older process is another
    started_local: float | None = None
    since_ahead: float | None = None  # those two if they are in the future: another zone, or the clock was set
    started_ahead: float | None = None
    also: tuple[int, ...] = ()  # further processes of the same agent; the exit of any is its end
    living: bool = True  # False: its registry lists it as ended
    gone: str = ""  # why it has no process although its program gives no pid: its entry is to be closed
    drift: str = ""  # how the entry disagrees with what runs: only reported and shown
    remote: bool = False  # it runs on another device: shown, never judged or killed
    type: str = ""
    tags: tuple[str, ...] = ()
    task: str | None = None
    cwd: str | None = None
    worktree: str | None = None
    parent: str | None = None  # the name of another entry
    beat: str | None = None  # its last heartbeat as written there: a change is a new beat
    beat_at: float | None = None  # when that was, if it can be parsed: one from before its process began does not count
    promise: float | None = None  # seconds of silence that the program's own interval allows; None: not counted
    holders: tuple[int, ...] = ()  # not an agent: the registry is unreadable, as this process, below these, is stopped
    unheard: str = ""  # why no beat can be written or read now (a lock, a full disk, damage), if so
    unread: str = ""  # not an agent: why that entry (a key ending in "/" or ":": all below it) cannot be read
    state: str | None = None  # as `core.agent.State`,
    state_since: float | None = None  # and since when
    note: str = ""
    transcript: str | None = None
    log: str | None = None
    conversation: str | None = None
    resume: str | None = None  # the command that resumes its conversation
    pane: dict[str, str] | None = None  # terminal (tmux, kitty, wezterm), server (-L name or socket), pane, session, …
    stop: tuple[str, ...] | None = None  # the program's own command that stops it, run as its owner
    temp: tuple[str, ...] = ()  # files (sockets, launch scripts) that belong only to this entry and outlive it


@dataclass(frozen=True, slots=True)
class EntryEnd:
    """How an agent ended: what `forget` records."""

    status: str  # killed, stopped, failed, completed, lost
    reason: str  # as text: "stalled: silent for 2m05s"
    by: str
    ended_at: float  # epoch seconds
    exit_code: int | None = None
    signal: str | None = None  # "SIGKILL"
    task_status: str | None = None  # failed, ready_for_retry, cancelled
    resumable: bool = True
    conversation: str | None = None  # the id captured before its end
    with_messages: bool = False  # its messages are to be deleted too
    temp: tuple[str, ...] = ()  # `Entry.temp` while it lived


class Became(StrEnum):
    """The result of `forget` for an entry."""

    DONE = "done"
    GONE = "gone"  # it does not exist
    CHANGED = "changed"  # it now means another run, and is left alone


def unread_entry(key: str, why: str, uid: int) -> Entry:
    """The placeholder for an entry (key `a/` or `a:`: all entries below) of that uid while it cannot be read."""
    return Entry(key or "/", "unread", printable(key) or "/", uid, unread=printable(why))


def entry_json(entry: Entry) -> dict[str, object]:
    """An entry as the helper's JSON: only the fields that were said."""
    defaults = {field.name: field.default for field in fields(Entry)}
    return {key: value for key, value in asdict(entry).items() if value != defaults[key]}


def entry_of(data: object) -> Entry:
    """An entry from its JSON. Raises ValueError for anything else: another uid wrote it."""
    entry: Entry = _made(Entry, data)
    if not entry.key or not entry.token or not entry.name:
        raise ValueError("an entry has a key, a token and a name")
    return entry


def end_json(end: EntryEnd) -> dict[str, object]:
    """An end as JSON for the helper."""
    return asdict(end)


def end_of(data: object) -> EntryEnd:
    """An end from its JSON. Raises ValueError for anything else."""
    end: EntryEnd = _made(EntryEnd, data)
    return end


def _made(kind: type[Any], data: object) -> Any:
    """An instance of that dataclass, each field checked against its type. Raises ValueError."""
    if not isinstance(data, dict):
        raise ValueError(f"{kind.__name__}: one JSON object")
    hints = get_type_hints(kind)
    known = {field.name for field in fields(kind)}
    try:
        return kind(**{key: _typed(key, value, hints[key]) for key, value in data.items() if key in known})
    except TypeError as error:
        raise ValueError(str(error)) from None


def _typed(key: str, value: object, hint: Any) -> object:
    """The value if it is of the type; lists become tuples, which JSON lacks. Raises ValueError."""
    kinds = get_args(hint) if type(None) in get_args(hint) else (hint,)
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        items = get_args(kind)
        if items and isinstance(value, dict) and len(items) == 2 and items[1] is str:
            if all(isinstance(one, str) and len(one) <= WORDS_LIMIT for pair in value.items() for one in pair):
                return value
        elif items and isinstance(value, list | tuple) and items[-1] is Ellipsis:
            if len(value) <= MOST_ENTRIES and all(type(one) is items[0] for one in value):
                return tuple(value)
        elif kind is float:
            if type(value) in (int, float) and abs(value) < LONGEST:  # type: ignore[arg-type]
                return float(value)  # type: ignore[arg-type]
        elif type(value) is kind and (not isinstance(value, str) or len(value) <= WORDS_LIMIT):
            return value
    raise ValueError(f"{key}: {str(value)[:80]!r} is not what it may be")
