"""hcom: `hcom.db` (SQLite in WAL mode) and `.tmp/launched_pids.json` below `~/.hcom` or $HCOM_DIR.

Seen in 0.7.24 (schema 18) and 0.7.31 (schema 20). Each agent is a row of `instances`; its end is the event `stopped`
with a snapshot, from which `hcom r NAME` resumes it, and the row and its bindings are deleted in the same transaction,
as hcom itself does. The pid file lists processes of stopped agents that still run ("orphans"), and newly launched ones.
A pid there, or in a row without `pid_identity`, may have been reused: the process that carries the HCOM_PROCESS_ID that
hcom gave to the agent is the agent; otherwise the time of the launch decides.

hcom's own timing: a listening agent beats at least every 30 s; a working one does not beat during a tool; `blocked`
waits for a human's approval. hcom calls a listening one stale after 35 s, a working one after 300 s, but kills none.
Our limits are a bit longer, and a tool may take ten minutes.
"""

import contextlib
import json
import os
import shlex
import sqlite3
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from watchdog.core.redaction import hide_secrets
from watchdog.core.sd_notify import printable
from watchdog.core.source_entries import Became, Entry, EntryEnd, unread_entry
from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import files, hcom_runs, kernel
from watchdog.owner.sources.base import Forgotten, living_first

SCHEMAS = range(18, 21)  # `user_version` of the layouts that we may write
LISTENING, WORKING, IN_A_TOOL = 120.0, 300.0, 660.0  # seconds of silence
MOST_DEPTH = 10  # nesting of children, hcom's own limit
# How it ended -> hcom's own term.
REASONS = {"killed": "killed", "stopped": "external", "lost": "process_exit"}
STATES = {"active": "working", "listening": "idle", "blocked": "waiting"}
# What `forget` uses; if a table or a column is missing, the layout is unknown.
NEEDED = {
    "instances": {"name", "created_at", "session_id", "agent_id", "parent_name", "parent_session_id", "pid"},
    "events": {"timestamp", "type", "instance", "data"},
    "process_bindings": {"process_id", "session_id", "instance_name"},
    "session_bindings": {"session_id", "instance_name"},
    "notify_endpoints": {"instance", "kind", "port"},
    "kv": {"key", "value"},
}
# Columns that the snapshot has unchanged,
SNAPSHOT = (
    *("name", "background", "background_log_file", "created_at", "directory", "last_event_id", "last_seen"),
    *("name_announced", "pid", "subagent_timeout", "tool", "transcript_path", "wait_timeout"),
)
# and those that are null when empty.
OR_NULL = (
    "agent_id",
    "hints",
    "launch_args",
    "origin_device_id",
    "parent_name",
    "parent_session_id",
    "session_id",
    "tag",
)
SUBSCRIBED = (
    "key LIKE 'events_sub:%' AND CASE WHEN json_valid(value) THEN json_extract(value, '$.caller') = ?"
    " AND COALESCE(json_extract(value, '$.delivery_only'), 0) != 1 END"
)
Row = dict[str, Any]


def discover(root: str) -> list[Entry]:
    """All rows, and all processes of the pid file that no row has. Raises OSError, OwnerCallFailed."""
    launched, uid, unread = hcom_runs.launched(root)
    try:
        with files.database(os.path.join(root, "hcom.db")) as database:
            if not {"name", "created_at"} <= files.columns(database, "instances"):
                raise OwnerCallFailed("not_understood", f"{root}/hcom.db has no table of instances as we know it")
            rows = [dict(row) for row in database.execute("SELECT * FROM instances ORDER BY created_at, name")]
            bound = _bound(database)
    except FileNotFoundError:
        return []
    scripts = hcom_runs.scripts(root, [created for row in rows if (created := files.number(row.get("created_at")))])
    shown = {_text(row, "name"): _shown(row) for row in rows}
    found = [unread_entry(hcom_runs.LEFTOVERS, unread, os.geteuid())] if unread else []
    for row in rows:
        with contextlib.suppress(ValueError):
            found.append(_entry(root, row, shown, bound, launched, scripts))
    taken = {entry.pid for entry in found}
    found += [_leftover(root, pid, one, uid) for pid, one in launched.items() if pid not in taken and one.get("names")]
    return living_first(found)


def forget(root: str, key: str, token: str, end: EntryEnd) -> Forgotten:
    """Record the end of one agent as hcom does, and remove its pid from the pid file.

    Raises OSError, OwnerCallFailed.
    """
    if hcom_runs.is_leftover(key):
        return hcom_runs.forget_leftover(root, key, token)
    try:
        with files.database(os.path.join(root, "hcom.db"), write=True) as database:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version not in SCHEMAS or any(needed - files.columns(database, name) for name, needed in NEEDED.items()):
                raise OwnerCallFailed("not_understood", f"{root}/hcom.db has the schema {version}: it is left alone")
            row = _row(database, key)
            if row is None:
                return Forgotten(Became.GONE, f"hcom has no agent {key} any more")
            if row.get("origin_device_id"):
                raise OwnerCallFailed("remote", f"{key} lives on another device")
            bound = _bound(database)
            if _token(row, bound) != token:
                return Forgotten(Became.CHANGED, f"{key} is another run by now")
            stopped = _stop(database, row, REASONS.get(end.status, "closed"), end, version)
    except FileNotFoundError:
        return Forgotten(Became.GONE, f"{root}/hcom.db is not there")
    if row["pid"] is not None:
        hcom_runs.drop(root, str(row["pid"]), lambda one: key in one.get("names", ()))
    for script in _of(bound.get(key, []), hcom_runs.scripts(root, [row["created_at"]])):
        files.remove(script, stat.S_ISREG)
    return Forgotten(Became.DONE, f"stopped in hcom: {', '.join(stopped)}; to resume: {_resume(root, key)}")


def _entry(
    root: str,
    row: Row,
    shown: Mapping[str, str],
    bound: Mapping[str, list[str]],
    launched: Mapping[int, Row],
    scripts: Mapping[str, tuple[str, ...]],
) -> Entry:
    """The entry of one row. Raises ValueError if it names no agent."""
    name = _text(row, "name")
    created = files.number(row.get("created_at"))
    if not name or not name.isprintable() or created is None:
        raise ValueError("a row without a name or a time")
    status, context, detail = (_text(row, key) for key in ("status", "status_context", "status_detail"))
    pid, launch = kernel.as_pid(row.get("pid")), _launch_context(row)
    remote = bool(_text(row, "origin_device_id"))
    entry = launched.get(pid or 0, {})
    ticks, boot_id, since = None, None, None
    if pid is not None and not remote:
        noted = _text(launch, "pid_identity")
        since = files.number(entry.get("launched_at")) if name in entry.get("names", ()) else None
        ticks, boot_id, since = hcom_runs.identity(pid, noted, bound.get(name, []), since, created)
    session = _text(row, "session_id")
    return Entry(
        key=name,
        token=_token(row, bound),
        name=shown[name],
        uid=os.geteuid(),
        pid=pid,
        ticks=ticks,
        boot_id=boot_id,
        since=since,
        living=not (status == "inactive" and (context.startswith("exit:") or context == "launch_failed")),
        remote=remote,
        type=_text(row, "tool"),
        tags=(_text(row, "tag"),) if row.get("tag") else (),
        cwd=_text(row, "directory") or None,
        parent=shown.get(_text(row, "parent_name")),
        beat=_beat(row),
        promise=_promise(status, context, row),
        state=STATES.get(status),
        note=hide_secrets(printable(f"{status} {context} {detail}".strip())),
        transcript=_text(row, "transcript_path") or None,
        log=_text(row, "background_log_file") or None,
        conversation=session or None,
        resume=_resume(root, name),
        pane=hcom_runs.pane(pid, launch) if pid is not None and not remote else None,
        stop=None if row.get("background") or remote or not name[0].isalnum() else (*_command(root), "stop", name),
        temp=() if remote else _of(bound.get(name, []), scripts),
    )


def _leftover(root: str, pid: int, one: Row, uid: int) -> Entry:
    """A process of an agent that was stopped but still runs, or whose row was lost: only a person's order kills it."""
    name = next(str(name) for name in one["names"])
    since = files.number(one.get("launched_at"))
    process, tag = _text(one, "process_id"), _text(one, "tag")
    ticks, boot_id, since = hcom_runs.identity(pid, "", [process] if process else [], since, since)
    return Entry(
        key=hcom_runs.leftover_key(pid),
        token=hcom_runs.leftover_token(one),
        name=f"{tag}-{name}" if tag else name,
        uid=uid,
        pid=pid,
        ticks=ticks,
        boot_id=boot_id,
        since=since,
        type=_text(one, "tool"),
        tags=(tag,) if tag else (),
        cwd=_text(one, "directory") or None,
        note="hcom lists it as the leftover process of a stopped agent",
        conversation=_text(one, "session_id") or None,
        resume=_resume(root, name),
        pane=hcom_runs.pane(pid, one),
    )


def _stop(
    database: sqlite3.Connection,
    row: Row,
    reason: str,
    end: EntryEnd | None,
    version: int,
    by: str = "",
    depth: int = 0,
) -> list[str]:
    """Stop the children within it, then itself, each with its event. Returns the names, its own last."""
    name, session = str(row["name"]), row["session_id"] or None
    by = by or (end.by if end else "")
    stopped = []
    if depth < MOST_DEPTH:
        children = database.execute(
            "SELECT name FROM instances WHERE parent_name = ? OR (? IS NOT NULL AND parent_session_id = ?)",
            (name, session, session),
        ).fetchall()
        for (child,) in children:
            below = _row(database, child)
            # A child with its own process may keep running: it is discovered and judged as a separate agent.
            if below and child != name and below["pid"] in (None, row["pid"]) and not below.get("origin_device_id"):
                stopped += _stop(database, below, "parent_stopped", None, version, by, depth + 1)
    data: Row = {"action": "stopped", "by": by, "reason": reason, "snapshot": _snapshot(database, row, version)}
    if end is not None:
        data["detail"] = end.reason
        if end.exit_code is not None:
            data["exit_code"] = end.exit_code
    when = end.ended_at if end else None
    if database.execute("DELETE FROM instances WHERE name = ?", (name,)).rowcount != 1:
        return stopped  # it was its own child's child
    if session is not None:
        database.execute("DELETE FROM session_bindings WHERE session_id = ?", (session,))
        database.execute("DELETE FROM process_bindings WHERE session_id = ?", (session,))
    database.execute("DELETE FROM notify_endpoints WHERE instance = ?", (name,))
    database.execute("DELETE FROM process_bindings WHERE instance_name = ?", (name,))
    database.execute(f"DELETE FROM kv WHERE {SUBSCRIBED}", (name,))  # noqa: S608 our own text
    if files.columns(database, "claude_actor_capabilities") >= {"instance_name", "session_id"}:
        database.execute(
            "DELETE FROM claude_actor_capabilities WHERE instance_name = ? OR session_id = ?", (name, session)
        )
    stamp = (datetime.fromtimestamp(when, UTC) if when else datetime.now(UTC)).isoformat(timespec="microseconds")
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    database.execute(
        "INSERT INTO events (timestamp, type, instance, data) VALUES (?, 'life', ?, ?)", (stamp, name, text)
    )
    return [*stopped, name]


def _snapshot(database: sqlite3.Connection, row: Row, version: int) -> Row:
    snapshot = {key: row[key] for key in SNAPSHOT if key in row}
    snapshot |= {key: row[key] or None for key in OR_NULL if key in row}
    if version > 18:  # since then subscriptions are resumed with the agent
        texts = database.execute(f"SELECT value FROM kv WHERE {SUBSCRIBED} ORDER BY key", (row["name"],))  # noqa: S608
        snapshot["subscriptions"] = [json.loads(text) for (text,) in texts]
    return snapshot


def _of(processes: list[str], scripts: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(path for process in processes for path in scripts.get(process, ()))


def _row(database: sqlite3.Connection, name: str) -> Row | None:
    row = database.execute("SELECT * FROM instances WHERE name = ?", (name,)).fetchone()
    return dict(row) if row else None


def _bound(database: sqlite3.Connection) -> dict[str, list[str]]:
    """The process ids that hcom gave to each agent (HCOM_PROCESS_ID of what it started)."""
    bound: dict[str, list[str]] = {}
    if {"process_id", "instance_name"} <= files.columns(database, "process_bindings"):
        for process, name in database.execute("SELECT process_id, instance_name FROM process_bindings"):
            bound.setdefault(str(name), []).append(str(process))
    if "launch_context" in files.columns(database, "instances"):
        for row in database.execute("SELECT name, launch_context FROM instances"):
            if process := _text(_launch_context(dict(row)), "process_id"):
                bound.setdefault(str(row["name"]), []).append(process)
    return {name: sorted(set(processes)) for name, processes in bound.items()}


def _token(row: Row, bound: Mapping[str, list[str]]) -> str:
    """Changes when the row means another run: its creation, its process, hcom's id of that process."""
    ticks = _text(_launch_context(row), "pid_identity").rpartition(":")[2]
    processes = " ".join(bound.get(str(row["name"]), []))
    return f"{row.get('created_at')} {row.get('pid')} {ticks} {processes}"


def _beat(row: Row) -> str | None:
    """Text that changes with each sign of life; None if all times are 0: none has come yet."""
    times = [row.get(one) or 0 for one in ("last_stop", "status_time", "last_seen")]
    said = _text(row, "status"), _text(row, "status_context")
    return " ".join(map(str, (*times, *said))) if any(times) else None


def _promise(status: str, context: str, row: Row) -> float | None:
    """Allowed seconds of silence; None for one that waits for a human, is being launched, or has not beaten yet."""
    if status == "listening":
        return LISTENING if row.get("last_stop") else None
    if status == "active" and row.get("status_time"):
        return IN_A_TOOL if context.startswith("tool:") else WORKING
    return None


def _launch_context(row: Row) -> Row:
    try:
        data = json.loads(_text(row, "launch_context") or "{}")
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _shown(row: Row) -> str:
    """The name as `hcom list` shows it."""
    tag = _text(row, "tag")
    return f"{tag}-{_text(row, 'name')}" if tag else _text(row, "name")


def _command(root: str) -> tuple[str, ...]:
    """The hcom command for that directory."""
    return ("hcom",) if root == os.path.expanduser("~/.hcom") else ("env", f"HCOM_DIR={root}", "hcom")


def _resume(root: str, name: str) -> str:
    """The resume command for a person, quoted, as a name from a database may contain anything."""
    where = f"HCOM_DIR={shlex.quote(root)} " if len(_command(root)) > 1 else ""
    return f"{where}hcom r {shlex.quote(name)}"


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""
