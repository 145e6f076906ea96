"""An orchestrator's own SQLite file: agents that register by INSERT and beat by UPDATE agent_lifecycle.

There are two layouts of `agent_lifecycle`, and a row is read by the columns that it has: the documented one (TEXT ids,
`last_heartbeat`, UTC "YYYY-MM-DD HH:MM:SS") and the one that the code creates (INTEGER ids, `spawned_at` as naive local
ISO time, no heartbeat). Heartbeats of the latter are in `agent_status/<type>_status.json` next to the file. Its `pid`
may be a thread ident, which is larger than any pid: such an agent is shown, and no process is signalled for it.

At an end these are written: status, time, reason and exit status; likewise for its task. Never `last_heartbeat`.
"""

import math
import os
import re
import signal
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime

from watchdog.core.sd_notify import printable
from watchdog.core.source_entries import MOST_TOLD, Became, Entry, EntryEnd, unread_entry
from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import agent_status, files, sqlite_locks
from watchdog.owner.sources.base import Forgotten

AFTER = 120.0  # seconds of silence; agents promise a beat each 60 s, status files one each 30 s
LIVING = ("spawned", "running", "idle")
NEEDED = frozenset({"agent_id", "status", "pid"})
PID_MAX = 4_194_304  # 2^22, the kernel's own limit on 64 bit (proc(5), pid_max)
_WANTED = ("agent_id", "status", "pid", "agent_type", "task_id", "worktree_path", "error_message", "last_heartbeat")
_STARTS = ("started_at", "spawned_at")  # of these: when it began according to the row
_TIMES = ("started_at", "spawned_at", "created_at")  # the pid was there at any of these times
_STATUS = {"killed": "killed", "stopped": "killed", "completed": "completed"}  # all else: failed
_TASK_ENDED = ("completed", "failed", "cancelled")

Row = dict[str, object]


def discover(path: str) -> list[Entry]:
    """The living agents of `agent_lifecycle`, and the status files without a row."""
    blocker = sqlite_locks.holder(path)
    try:
        with files.database(path) as database:
            uid = os.stat(path).st_uid
            rows = _rows(database, _columns(database))
    except OwnerCallFailed as error:
        if error.reason != "busy" or blocker is None:
            raise
        words = f"{error}: process {blocker} holds the lock"
        if not sqlite_locks.stands_still(blocker) or sqlite_locks.holder(path) != blocker:
            raise OwnerCallFailed("busy", words) from None
        above = tuple(sqlite_locks.above(blocker))  # it was stopped during COMMIT: no process can read
        return [Entry("lock", f"{blocker}", "lock", os.geteuid(), holders=above, note=printable(f"{words}, stopped"))]
    beats, unread = agent_status.read(_status_files(path))
    found = [unread_entry(key, why, os.geteuid()) for key, why in unread.items()]
    for row in rows:
        entry = _entry(row, uid, beats)
        if entry is not None and entry.beat is None and unread:  # its beats may be in that file
            entry = replace(entry, unheard=printable(next(iter(unread.values()))))
        if entry is not None:
            found.append(entry)
    known = {entry.pid for entry in found}
    found += [_of_file(told) for told in beats.values() if told.pid not in known]
    if blocker is None:
        return found[:MOST_TOLD]
    nearest = next((pid for pid in sqlite_locks.above(blocker) if pid in known), None)
    return [_unheard(entry, blocker, nearest) for entry in found[:MOST_TOLD]]


def forget(path: str, key: str, token: str, end: EntryEnd) -> Forgotten:
    """Close the agent's row and its task's in one transaction, then its status file."""
    if key.startswith(agent_status.PREFIX):
        return agent_status.forget(_status_files(path), key, token, end)
    with files.database(path, write=True) as database:
        columns = _columns(database)
        rows = _rows(database, columns, key)
        if not rows:
            return Forgotten(Became.GONE, "its row is not there")
        runs = [row for row in rows if _token(row) == token]
        if not runs:
            return Forgotten(Became.CHANGED, "its row is another run's by now")
        row = next((one for one in runs if one["status"] in LIVING), runs[0])
        answer = Forgotten(Became.GONE, f"its row says {row['status']} already")
        if row["status"] in LIVING:
            _close(database, columns, row, end)
            task = _close_task(database, columns, row, end)
            answer = Forgotten(Became.DONE, f"status {_STATUS.get(end.status, 'failed')}{task}")
    beats, _ = agent_status.read(_status_files(path))
    told = beats.get(str(row["agent_type"]))
    if told is not None and told.pid == _pid(row):
        agent_status.forget(_status_files(path), told.key, told.token, end)  # also if a run died right before this
    return answer


def _status_files(path: str) -> str:
    return os.path.join(os.path.dirname(path), "agent_status")


def _columns(database: sqlite3.Connection) -> set[str]:
    columns = files.columns(database, "agent_lifecycle")
    if missing := NEEDED - columns:
        raise OwnerCallFailed("not_understood", f"agent_lifecycle has no column {', '.join(sorted(missing))}")
    return columns


def _rows(database: sqlite3.Connection, columns: set[str], key: str | None = None) -> list[Row]:
    """The living rows, newest first; or those with that id (a restart may keep it), with any status."""
    wanted = [name if name in columns else f"NULL AS {name}" for name in (*_WANTED, *_TIMES)]
    living = ", ".join(f"'{status}'" for status in LIVING)
    where = f"status IN ({living})" if key is None else "CAST(agent_id AS TEXT) = ?"
    query = f"SELECT rowid AS at, {', '.join(wanted)} FROM agent_lifecycle WHERE {where} ORDER BY rowid DESC LIMIT ?"  # noqa: S608 names of ours alone
    bound = (MOST_TOLD,) if key is None else (key, MOST_TOLD)
    return [dict(row) for row in database.execute(query, bound)]


def _entry(row: Row, uid: int, beats: dict[str, agent_status.StatusFile]) -> Entry | None:
    """The entry of one row; None if it is not an agent's."""
    agent_id, kind = row["agent_id"], _text(row["agent_type"])
    if not isinstance(agent_id, int | str) or not str(agent_id).strip():
        return None
    pid = _pid(row)
    beat, state, note = _said(row["last_heartbeat"]), None, ""
    told = beats.get(kind)
    if told is not None and told.pid == pid and not told.stopped:
        beat, state = beat or told.beat, told.state
    when = _epoch(row["last_heartbeat"], pid) if beat and beat == _said(row["last_heartbeat"]) else None
    if pid is None and row["pid"] is not None:
        note = f"its pid column holds {row['pid']!r}, which is not a pid: a thread of another process perhaps"
    since, since_ahead = _split(_since(row, pid))
    started, started_ahead = _split(_started(row, pid))
    return Entry(
        key=str(agent_id),
        token=_token(row),
        name=f"{kind or 'agent'}-{agent_id}" if isinstance(agent_id, int) else printable(agent_id),
        uid=uid,
        pid=pid,
        since=since,
        since_local=_local(row, pid, _TIMES),
        started=started,
        started_local=_local(row, pid, _STARTS),
        since_ahead=since_ahead,
        started_ahead=started_ahead,
        type=kind,
        task=_text(row["task_id"]) or None,
        worktree=_text(row["worktree_path"]) or None,
        beat=beat or None,
        beat_at=None if when == math.inf else when,
        promise=AFTER if beat else None,
        state="idle" if row["status"] == "idle" else state,
        note=printable(note),
    )


def _of_file(told: agent_status.StatusFile) -> Entry:
    return Entry(
        key=told.key,
        token=told.token,
        name=f"{told.kind}-{told.pid}",
        uid=told.uid,
        pid=told.pid,
        since=told.since,
        living=not told.stopped,
        type=told.kind,
        beat=told.beat or None,
        promise=AFTER if told.beat else None,
        state=told.state,
    )


def _unheard(entry: Entry, blocker: int, nearest: int | None) -> Entry:
    """Mark an agent as unable to beat, as only the holder of the lock can write; not if it beats in a file of its own.

    If a child process holds it, its nearest ancestor among the agents counts as the holder; the others are blocked.
    """
    own = entry.key.startswith(agent_status.PREFIX)
    if own or entry.unread or (entry.pid is not None and entry.pid == nearest):
        return entry
    return replace(entry, unheard=f"process {blocker} holds the lock of its registry")


def _token(row: Row) -> str:
    """Identifies the run that a row means; ids are not reused, but rows are edited."""
    return f"{row['pid']} {next((row[name] for name in ('spawned_at', 'created_at', 'started_at') if row[name]), '')}"


def _since(row: Row, pid: int | None) -> float | None:
    """The latest time at which the pid is known to be there."""
    return max((when for name in _TIMES if (when := _epoch(row[name], pid)) is not None), default=None)


def _started(row: Row, pid: int | None) -> float | None:
    """When it began, by the first of its start times; else when the row was created."""
    values = [row[name] for name in (*_STARTS, "created_at") if row[name]]
    return _epoch(values[0], pid) if values else None


def _split(when: float | None) -> tuple[float | None, float | None]:
    """(time, None) if it is past, (None, time) if it is in the future (another clock or zone); both None if unknown."""
    if when is None or when == math.inf:
        return None, None
    return (when, None) if _is_past(when) else (None, when)


def _local(row: Row, pid: int | None, names: tuple[str, ...]) -> float | None:
    """The latest of the times without a zone, read in the process's zone; None if that makes no difference."""
    found = []
    for name in names:
        text = _text(row[name])
        there, here = agent_status.epoch(text, pid), agent_status.epoch(text.replace(" ", "T"), pid)
        if there is not None and here is not None and here != there and _is_past(here):
            found.append(here)
    return max(found, default=None)


def _is_past(when: float) -> bool:
    return when <= datetime.now(UTC).timestamp() + 2


def _epoch(value: object, pid: int | None) -> float | None:
    """A time as text, or as a number of seconds or milliseconds (unixepoch(), Date.now()), in epoch seconds."""
    told = files.number(value)
    if told is None:
        return agent_status.epoch(_text(value), pid)
    told = told / 1000 if told > 1e11 else told + (1.0 if told.is_integer() else 0.0)
    return told if told > 1e9 else None


def _pid(row: Row) -> int | None:
    """Its pid, also from a text column; None if it is not a pid."""
    word = str(row["pid"])
    return int(word) if re.fullmatch("[0-9]{1,7}", word) and 1 < int(word) <= PID_MAX else None


def _said(value: object) -> str:
    """A heartbeat as text: SQLite's columns may also contain numbers and bytes."""
    if isinstance(value, bytes):
        return value[:512].hex()
    return _text(value) if files.number(value) is None else repr(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 4096 else ""


def _close(database: sqlite3.Connection, columns: set[str], row: Row, end: EntryEnd) -> None:
    """Write its status, time, reason and exit status. An existing error message stays."""
    status = _STATUS.get(end.status, "failed")
    values: Row = {"status": status}
    stamp = _stamp(end, local="spawned_at" in columns)
    values |= {name: stamp for name in ("completed_at", "terminated_at") if name in columns}
    if status != "completed" and "error_message" in columns:
        former = f"{row['error_message']}; " if row["error_message"] else ""
        values["error_message"] = f"{former}Agent {end.status}: {end.reason}"
    if "exit_code" in columns:
        values["exit_code"] = -9 if status == "killed" else _exit_code(end)
    sets = ", ".join(f"{name} = :{name}" for name in values)
    known = {"at": row["at"], "former": row["status"], "pid": row["pid"]}
    query = f"UPDATE agent_lifecycle SET {sets} WHERE rowid = :at AND status = :former AND pid IS :pid"  # noqa: S608 names of ours alone
    if database.execute(query, {**values, **known}).rowcount != 1:
        raise OwnerCallFailed("not_understood", "its row could not be updated")


def _close_task(database: sqlite3.Connection, columns: set[str], row: Row, end: EntryEnd) -> str:
    """Close its task, unless it has ended, is another agent's, or another living agent works on it. Returns a text."""
    task, there = row["task_id"], files.columns(database, "orchestrator_task")
    if task is None or end.status == "completed" or end.task_status is None or not {"task_id", "status"} <= there:
        return ""
    living = ", ".join(f"'{status}'" for status in LIVING)
    others = f"SELECT 1 FROM agent_lifecycle WHERE task_id = ? AND rowid <> ? AND status IN ({living})"  # noqa: S608 words of ours alone
    if "task_id" in columns and database.execute(others, (task, row["at"])).fetchone() is not None:
        return f"; another agent works on task {task}"
    stamp = _stamp(end, local="spawned_at" in columns)
    values: Row = {"status": end.task_status, "updated_at": stamp, "updated_by": "agent-watchdog"}
    if end.task_status != "completed":
        values["error_message"] = f"Agent {end.status}: {end.reason}"
    if end.task_status != "ready_for_retry":
        values["completed_at"] = stamp
    values = {name: value for name, value in values.items() if name in there}
    sets = ", ".join(f"{name} = :{name}" for name in values)
    ended = ", ".join(f"'{status}'" for status in _TASK_ENDED)
    his = " AND (assigned_agent IS NULL OR CAST(assigned_agent AS TEXT) = :agent)" if "assigned_agent" in there else ""
    query = f"UPDATE orchestrator_task SET {sets} WHERE task_id = :task AND status NOT IN ({ended}){his}"  # noqa: S608 names of ours alone
    done = database.execute(query, {**values, "task": task, "agent": str(row["agent_id"])}).rowcount
    return f", task {task} {end.task_status}" if done else f"; task {task} stays as it is"


def _exit_code(end: EntryEnd) -> int | None:
    if end.exit_code is not None or end.signal is None:
        return end.exit_code
    return -int(signal.Signals[end.signal]) if end.signal in signal.Signals.__members__ else None


def _stamp(end: EntryEnd, *, local: bool) -> str:
    """The end's time in that layout's format."""
    if local:
        return datetime.fromtimestamp(end.ended_at).isoformat()  # noqa: DTZ006 naive local time is its format
    return datetime.fromtimestamp(end.ended_at, UTC).strftime("%Y-%m-%d %H:%M:%S")
