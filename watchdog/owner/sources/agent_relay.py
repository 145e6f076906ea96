"""agent-relay: `~/.agent-relay/<12 hex>` (1.x), `<project>/.agent-relay` (2.x), `<project>/.agentworkforce/relay` (9).

Connected agents (`team/connected-agents.json`), those ever registered (`team/agents.json`) and spawned ones
(`team/workers.json`, `state-<name>.json`) are separate lists, and none shows a death: the first is written only when a
connection opens or closes, and a wrapper keeps its connection when the wrapped program has died (seen in 1.6.0). So the
processes count: `relay-pty`, whose command line names agent and directory, the program that it wraps, and
`create-agent` around it. None of these files is a heartbeat, so silence does not count.

At its end the agent is removed from the lists of living agents, its session is closed and its presence set to offline.
It stays in the list of registered agents, as agent-relay itself keeps it there for a day, unless its messages are to be
deleted too.
"""

import contextlib
import os
import re
import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from watchdog.core.sd_notify import printable
from watchdog.core.source_entries import MOST_TOLD, Became, Entry, EntryEnd, unread_entry
from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import files, kernel, relay_runs
from watchdog.owner.sources.base import Forgotten, living_first

MOST_PROJECTS = 64
_PROJECT = re.compile(r"[0-9a-f]{12}")
_STATE = re.compile(r"state-[\w.-]{1,128}\.json")
_INTERNAL = frozenset({"cli", "Dashboard"})  # agent-relay's own names; also names that begin with two underscores
CONNECTED, AGENTS, WORKERS = "team/connected-agents.json", "team/agents.json", "team/workers.json"
# Tables with rows per name: deleted together with its messages.
BY_NAME = ("sessions", "presence", "agent_summaries", "read_state")


@dataclass(slots=True)
class _Lists:
    """The lists of one data directory. `session`: the last session of each name; a new one means another run."""

    data: str
    root: str = ""
    connected: list[str] = field(default_factory=list)
    registered: dict[str, dict[str, Any]] = field(default_factory=dict)
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)  # kept by a broker across restarts
    session: dict[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        """All names, each once."""
        everybody = dict.fromkeys([*self.connected, *self.workers, *self.kept, *self.registered])
        return [name for name in everybody if name.isprintable() and 0 < len(name) <= 128 and not _internal(name)]

    def token(self, name: str) -> str:
        """Changes when the name means another run."""
        worker, kept = self.workers.get(name, {}), self.kept.get(name, {})
        said = (self.session.get(name), worker.get("spawnedAt"), kept.get("started_at"), kept.get("pid"))
        return " ".join("-" if one is None else str(one) for one in said)

    def is_run(self, name: str, token: str) -> bool:
        """Whether the name means that run, or what is left of it after an interrupted `forget`."""
        was, now = token.split(" "), self.token(name).split(" ")
        return len(was) == len(now) and all(one in (former, "-") for former, one in zip(was, now, strict=True))


def discover(path: str) -> list[Entry]:
    """All agents of all data directories there. Raises OSError, OwnerCallFailed when none could be read."""
    found: list[Entry] = []
    failed: list[Exception] = []
    projects = _projects(path)
    running = relay_runs.running() if projects else []
    for data in projects:
        try:
            found += _entries(path, data, running)
        except (OSError, OwnerCallFailed) as error:
            failed.append(error)
            if data != path:
                found.append(unread_entry(f"{os.path.basename(data)}/", str(error), os.geteuid()))
    if failed and all(entry.unread for entry in found):
        raise failed[0]
    return living_first(found)


def forget(path: str, key: str, token: str, end: EntryEnd) -> Forgotten:
    """Remove one agent from the lists of living agents, and close its session. Raises OSError, OwnerCallFailed."""
    project, _, name = key.rpartition("/")
    data = os.path.join(path, project) if project else path
    if data not in _projects(path):
        return Forgotten(Became.GONE, f"{data} is not there")
    store = os.path.join(data, "messages.sqlite")
    closed = list[str]()
    with files.database(store, write=True) if os.path.lexists(store) else contextlib.nullcontext() as database:
        lists = _read(data, database)
        if name not in lists.names():
            return Forgotten(Became.GONE, f"agent-relay has no {name} any more")
        if not lists.is_run(name, token) or (lists.token(name) != token and _runs(lists, name)):
            return Forgotten(Became.CHANGED, f"{name} is another run by now")
        if database is not None:
            closed = _close(database, name, lists.session.get(name), end)
    # Committed. If this is interrupted from here on, the agent is still in a list, and is found and handled again.
    where = [word for word, done in _cut(data, name, end.with_messages) if done] + closed
    words = f"{name} taken from agent-relay's {', '.join(where) or 'lists already'}"
    return Forgotten(Became.DONE, "; removed ".join((words, *relay_runs.clear(name, end.temp))))


def _runs(lists: _Lists, name: str) -> bool:
    """Whether an agent of that name runs there: a new run may look like the rest of an interrupted `forget`."""
    return any(run.name == name and run.belongs_to(lists.data, lists.root) for run in relay_runs.running())


def _cut(data: str, name: str, everywhere: bool) -> Iterable[tuple[str, bool]]:
    """Remove the name from each list; yields the list and whether the name was there."""
    yield "connected agents", files.change(os.path.join(data, CONNECTED), lambda text: _disconnected(text, name))
    yield "workers", files.change(os.path.join(data, WORKERS), lambda text: _without(text, "workers", name))
    for state in _states(data):
        yield os.path.basename(state), files.change(state, lambda text: _without(text, "agents", name))
    if everywhere:
        yield "registered agents", files.change(os.path.join(data, AGENTS), lambda text: _without(text, "agents", name))


def _disconnected(text: str, name: str) -> str | None:
    """The text without the name, and with a new `updatedAt` (milliseconds): its commands trust the list for 30 s."""
    cut = _without(text, "agents", name)
    if cut is not None and "updatedAt" in _mapping(files.parsed(CONNECTED, text)):
        cut = files.with_value(cut, int(time.time() * 1000), "updatedAt")
    return cut


def _without(text: str, member: str, name: str) -> str | None:
    """The text without the name in that list (of names, of objects with a name, or by name); None: it is not there."""
    listed = _mapping(files.parsed(member, text)).get(member)
    if isinstance(listed, dict):
        return files.without(text, member, name) if name in listed else None
    cut = None
    for number, one in reversed(list(enumerate(listed if isinstance(listed, list) else ()))):
        if one == name or (isinstance(one, dict) and one.get("name") == name):
            cut = files.without(text if cut is None else cut, member, number)
    return cut


def _close(database: sqlite3.Connection, name: str, session: str | None, end: EntryEnd) -> list[str]:
    """Close its session and presence, or with its messages delete all its rows. Returns what was done."""
    done = []
    if end.with_messages:
        if {"sender", "recipient"} <= files.columns(database, "messages"):
            gone = database.execute("DELETE FROM messages WHERE sender = ? OR recipient = ?", (name, name)).rowcount
            done.append(f"messages ({gone})")
        for table in BY_NAME:
            if "agent_name" in files.columns(database, table):
                database.execute(f"DELETE FROM {table} WHERE agent_name = ?", (name,))  # noqa: S608 our own words
        return [*done, "storage"]
    if session is not None and {"id", "ended_at", "closed_by"} <= files.columns(database, "sessions"):
        closed = database.execute(
            "UPDATE sessions SET ended_at = ?, closed_by = ? WHERE id = ? AND ended_at IS NULL",
            (int(end.ended_at * 1000), "disconnect" if end.status in ("stopped", "completed") else "error", session),
        )
        done += ["open sessions"] * (closed.rowcount > 0)
    if {"agent_name", "status"} <= files.columns(database, "presence"):
        now = database.execute(
            "UPDATE presence SET status = 'offline' WHERE agent_name = ? AND status != 'offline'", (name,)
        )
        done += ["presence"] * (now.rowcount > 0)
    return done


def _projects(path: str) -> list[str]:
    """The data directories there: the directory itself, or those of 1.x below it."""
    if os.path.isdir(os.path.join(path, "team")) or _states(path):
        return [path]
    try:
        names = sorted(name for name in os.listdir(path) if _PROJECT.fullmatch(name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    below = [os.path.join(path, name) for name in names]
    return [data for data in below if os.path.isdir(os.path.join(data, "team"))][:MOST_PROJECTS]


def _states(data: str) -> list[str]:
    try:
        return [os.path.join(data, name) for name in sorted(os.listdir(data)) if _STATE.fullmatch(name)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(data: str, database: sqlite3.Connection | None) -> _Lists:
    """All lists of one directory. Raises OSError, OwnerCallFailed when one of them is being written."""
    lists = _Lists(data)
    lists.root = str(_json(os.path.join(data, ".project")).get("projectRoot") or "")
    connected = _json(os.path.join(data, CONNECTED)).get("agents")
    lists.connected = [name for name in connected if isinstance(name, str)] if isinstance(connected, list) else []
    lists.registered = _by_name(_json(os.path.join(data, AGENTS)).get("agents"))
    lists.workers = _by_name(_json(os.path.join(data, WORKERS)).get("workers"))
    for state in _states(data):
        lists.kept |= _by_name(_json(state).get("agents"))
    if database is not None and {"id", "agent_name", "started_at"} <= files.columns(database, "sessions"):
        rows = database.execute("SELECT agent_name, id FROM sessions ORDER BY started_at, rowid")
        lists.session = {str(name): str(session) for name, session in rows}
    return lists


def _entries(path: str, data: str, running: list[relay_runs.RelayRun]) -> list[Entry]:
    if os.lstat(data).st_uid != os.geteuid():
        raise OwnerCallFailed("not_ours", f"{data} belongs to another uid")
    store = os.path.join(data, "messages.sqlite")
    if os.path.lexists(store):
        with files.database(store) as database:
            lists = _read(data, database)
    else:
        lists = _read(data, None)
    mine = {run.name: run for run in running if run.belongs_to(data, lists.root)}
    taken = {run.name for run in running}
    server = relay_runs.server(data)
    told = sorted(lists.names(), key=lambda name: name not in mine)[:MOST_TOLD]  # agents without processes come last
    return [_entry(path, lists, name, mine.get(name), name in taken, server) for name in told]


def _entry(
    path: str, lists: _Lists, name: str, run: relay_runs.RelayRun | None, taken: bool, server: relay_runs.RelayServer
) -> Entry:
    worker, kept = lists.workers.get(name, {}), lists.kept.get(name, {})
    registered = lists.registered.get(name, {})
    connected = name in lists.connected
    said = {**registered, **worker, **kept}
    project = "" if lists.data == path else f"{os.path.basename(lists.data)}/"
    pid, ticks, since = None, None, None
    also: tuple[int, ...] = ()
    if run is not None:
        pid, ticks, also = run.main.pid, run.main.ticks, run.also
    elif worker or kept:
        pid = kernel.as_pid(worker.get("pid", kept.get("pid")))
        since = _seconds(worker.get("spawnedAt", kept.get("started_at")))
    elif connected and server.gone:
        pid, since = server.pid, server.since  # the server is gone, so no agent is connected
    return Entry(
        key=f"{project}{name}",
        token=lists.token(name),
        name=name,
        uid=os.geteuid(),
        pid=pid,
        ticks=ticks,
        boot_id=None if ticks is None else kernel.this_boot(),
        since=since,
        also=also,
        living=connected or run is not None or bool(worker or kept),
        type=str(said.get("cli") or said.get("program") or ""),
        cwd=str(registered.get("workingDirectory") or lists.root) or None,
        parent=kept.get("parent") if isinstance(kept.get("parent"), str) else None,
        note=printable(_words(connected, registered, run)),
        log=(run.log if run else None) or (str(worker["logFile"]) if isinstance(worker.get("logFile"), str) else None),
        temp=run.files if run else () if taken else relay_runs.left_by(name),
    )


def _words(connected: bool, registered: Mapping[str, Any], run: relay_runs.RelayRun | None) -> str:
    words = "connected" if connected else "registered, not connected" if registered else "not connected"
    if run is not None and not run.harness:
        words += "; what its wrapper started is gone"
    return words


def _json(path: str) -> dict[str, Any]:
    try:
        return _mapping(files.read_json(path)[0])
    except FileNotFoundError:
        return {}


def _mapping(data: object) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


def _by_name(listed: object) -> dict[str, dict[str, Any]]:
    """Both layouts by name: a list of objects with a name, or objects by name."""
    if isinstance(listed, dict):
        return {str(name): one for name, one in listed.items() if isinstance(one, dict)}
    named = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return {one["name"]: one for one in named if isinstance(one.get("name"), str)}


def _internal(name: str) -> bool:
    return name in _INTERNAL or name.startswith("__")


def _seconds(value: object) -> float | None:
    """Milliseconds in the lists of 1.x, seconds in a broker's."""
    told = files.number(value)
    return told / 1000 if told is not None and told > 1e11 else told
