"""What an owner's helper reports of another program's registry: its kinds, one entry, the end of one, and their JSON.

A new kind is one line in `KINDS` and one module of its name in owner/sources/.
"""

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, get_args, get_type_hints

from watchdog.core.sd_notify import printable

MOST_ENTRIES = 256  # of one look: as many as one uid may have agents
MOST_TOLD = MOST_ENTRIES + 1  # the last one says that there are more
LONGEST = 1e13  # seconds: what is longer, endless or no number is no time (`timedelta` ends at 8.6e13)
WORDS_LIMIT = 4096  # characters of one word of an entry: the longest path


@dataclass(frozen=True, slots=True)
class Kind:
    """Where registries of one kind lie, and what documents say of them.

    The owner's helper sees nothing but `path`, `reads`, and of `removes` as much as it may remove from there; "~" is
    the owner's home.
    """

    path: str  # unless told; "": it has no usual place
    place: str  # what a `path` names, for the configuration file
    registry: str  # what the registry is and what is done to an entry in it,
    beat: str  # and what is a beat there, for the table in agents.md
    variable: str = ""  # of the owner's environment, which names another path
    reads: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    written: str = ""  # the file in there that beats are written to; "": what `path` names
    told_of: bool = False  # its agents are reported, and ended by a person's order alone


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
    """One agent, as a foreign registry tells of it now. Times are epoch seconds; None and "" mean "not said"."""

    key: str  # names the entry within its registry (a row's id, a file's name)
    token: str  # is another when the entry means another run; a beat changes nothing of it
    name: str
    uid: int  # the owner of the file that says so: it counts for processes of that uid alone
    pid: int | None = None  # None as well where the number there is not a pid (thread ids, beyond pid_max)
    ticks: int | None = None  # its start ticks (field 22 of /proc/PID/stat), where the program notes them,
    boot_id: str | None = None  # of this boot
    since: float | None = None  # when that pid was written down: a process that began later is another
    since_local: float | None = None  # the same words read in the process's own zone, where they tell none
    started: float | None = None  # when it began, by its registry's word: a process that is older is another
    started_local: float | None = None
    since_ahead: float | None = None  # those two where they lie ahead: their zone is another, or the clock was
    started_ahead: float | None = None
    also: tuple[int, ...] = ()  # further processes of the same agent; the end of any is its end
    living: bool = True  # False: its registry says that it has ended
    gone: str = ""  # why no process is behind it, where its program gives no pid: its entry is closed
    drift: str = ""  # how it and what runs disagree: reported and shown, and nothing else is done about it
    remote: bool = False  # it lives on another device: shown, never judged or ended
    type: str = ""
    tags: tuple[str, ...] = ()
    task: str | None = None
    cwd: str | None = None
    worktree: str | None = None
    parent: str | None = None  # the name of another entry
    beat: str | None = None  # its last heartbeat as it stands there: other content is a new beat
    beat_at: float | None = None  # when that was, as far as it can be read: one before its process began is none
    promise: float | None = None  # seconds of silence that the program's own rhythm allows; None: none is counted
    holders: tuple[int, ...] = ()  # no agent: this registry cannot be read, as this process, below these, stands still
    unheard: str = ""  # why no beat could be written or read now (another's lock, a full disk, damage), if so
    unread: str = ""  # no agent: why nothing of that entry can be read; with "/" or ":" at its end, of all below
    state: str | None = None  # as `core.model.State`,
    state_since: float | None = None  # and since when
    note: str = ""
    transcript: str | None = None
    log: str | None = None
    conversation: str | None = None
    resume: str | None = None  # the command that takes its conversation up again
    pane: dict[str, str] | None = None  # terminal (tmux, kitty, wezterm), server (-L name, or socket), pane, session, …
    stop: tuple[str, ...] | None = None  # the program's own command that ends it, for its owner
    temp: tuple[str, ...] = ()  # files (sockets, launch scripts) that are this entry's alone and outlive it


@dataclass(frozen=True, slots=True)
class EntryEnd:
    """How an agent ended: what `forget` writes down."""

    status: str  # killed, stopped, failed, completed, lost
    reason: str  # in words, "stalled: silent for 2m05s"
    by: str
    ended_at: float  # epoch seconds
    exit_code: int | None = None
    signal: str | None = None  # "SIGKILL"
    task_status: str | None = None  # failed, ready_for_retry, cancelled
    resumable: bool = True
    conversation: str | None = None  # the id that was captured before its end
    with_messages: bool = False  # its messages are to go with it
    temp: tuple[str, ...] = ()  # `Entry.temp`, as it stood when it lived


class Became(StrEnum):
    """What became of an entry that was to be forgotten."""

    DONE = "done"
    GONE = "gone"  # it is not there
    CHANGED = "changed"  # it means another run by now, and is left alone


def unread_entry(key: str, why: str, uid: int) -> Entry:
    """What stands for an entry of that uid's (`a/`, `a:`: for all below) while it cannot be read."""
    return Entry(key or "/", "unread", printable(key) or "/", uid, unread=printable(why))


def entry_json(entry: Entry) -> dict[str, object]:
    """An entry as the helper answers it: what was said alone."""
    defaults = {field.name: field.default for field in fields(Entry)}
    return {key: value for key, value in asdict(entry).items() if value != defaults[key]}


def entry_of(data: object) -> Entry:
    """An entry from its JSON. Raises ValueError when it is none: these are another uid's words."""
    entry: Entry = _made(Entry, data)
    if not entry.key or not entry.token or not entry.name:
        raise ValueError("an entry has a key, a token and a name")
    return entry


def end_json(end: EntryEnd) -> dict[str, object]:
    """An end, for the helper."""
    return asdict(end)


def end_of(data: object) -> EntryEnd:
    """An end from its JSON. Raises ValueError when it is none."""
    end: EntryEnd = _made(EntryEnd, data)
    return end


def _made(kind: type[Any], data: object) -> Any:
    """The value of that dataclass, each field of the type that it says. Raises ValueError."""
    if not isinstance(data, dict):
        raise ValueError(f"{kind.__name__}: one JSON object")
    hints = get_type_hints(kind)
    known = {field.name for field in fields(kind)}
    try:
        return kind(**{key: _typed(key, value, hints[key]) for key, value in data.items() if key in known})
    except TypeError as error:
        raise ValueError(str(error)) from None


def _typed(key: str, value: object, hint: Any) -> object:
    """The value where it is of the type; lists become tuples, as JSON has none."""
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
