"""The sessions of tmux-agent-orchestrate (later multi-agent-mux): `agent-sessions.yaml` in `.hermes/` or `.mam/`.

- Next to it is `agent-sessions.db` (SQLite), the source of truth: a table `sessions` (name, status, pane_cwd, data as
  JSON) and everything else in `state.data`; older versions have the whole document there; the oldest only the YAML. The
  YAML is a view that may be outdated. The program writes both in one step: BEGIN IMMEDIATE, then the YAML by a rename,
  with the former one as `.bak`, then COMMIT. We do the same: both, or neither.
- A row is `running`; then `stopped` (can be resumed) or `terminated` (purged, or found without its tmux session), or
  `archived`. Ended rows are not written again, except a stopped one whose conversation is purged.
- `pane.pid` has no identity: the tmux server that the row names decides which process it is. If the server does not
  list that pid, the process counts only if it was started in that server; any other has the pid by chance.

If we are killed before the rename, only a temporary file is left; between the rename and COMMIT a view that is too new,
which the next try, or the program's next write, corrects.
"""

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from watchdog.core.sd_notify import printable
from watchdog.core.source_entries import MOST_TOLD, Became, Entry, EntryEnd
from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import delegated_jobs, files
from watchdog.owner.sources.base import Forgotten
from watchdog.owner.sources.session_rows import (
    ID,
    OWN_ID,
    Asked,
    Row,
    conversation_of,
    entry_of_row,
    refuse_if_alive,
    token_of,
    unlisted,
)

NAMES = (".mam/agent-sessions.yaml", ".hermes/agent-sessions.yaml", "agent-sessions.yaml")
ENDED = ("stopped", "terminated", "archived")


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of one registry, and when it was last written."""

    yaml: str
    uid: int
    mtime: float

    @property
    def database(self) -> str:
        return self.yaml.removesuffix(".yaml").removesuffix(".yml") + ".db"

    @property
    def folder(self) -> str:
        return os.path.dirname(self.yaml)


def discover(path: str) -> list[Entry]:
    """All sessions; none if nothing is there. `path`: the YAML file, or a workspace. Raises OSError,
    OwnerCallFailed.
    """
    place = _place(path)
    if place is None:
        return []
    asked: Asked = {}
    rows = [row for row in _rows(place) if row["status"] in ("running", *ENDED)]
    rows.sort(key=lambda row: row["status"] != "running")
    entries = [entry_of_row(place.uid, place.mtime, row, asked) for row in rows[:MOST_TOLD]]
    return [*entries, *unlisted(place.uid, os.path.dirname(place.folder), rows, asked)][:MOST_TOLD]


def forget(path: str, key: str, token: str, end: EntryEnd) -> Forgotten:
    """Record the row's end in both files, after the events of its job. Raises OSError, OwnerCallFailed."""
    place = _place(path)
    if place is None:
        return Forgotten(Became.GONE, "the registry is not there")
    view = ""
    try:
        with _writing(place) as database:
            found = [row for row in _stored(place, database) if row["name"] == key]
            if not found:
                return Forgotten(Became.GONE, f"{key} is not there")
            if len(found) > 1:
                raise OwnerCallFailed("not_understood", f"{place.yaml} has {len(found)} sessions {key}")
            (row,) = found
            purged = row["status"] == "stopped" and not end.resumable and conversation_of(row) is not None
            if row["status"] in ENDED and not purged:
                return Forgotten(Became.GONE, f"{key} is already {row['status']}")
            if token_of(row) != token:
                return Forgotten(Became.CHANGED, f"{key} is another run by now")
            refuse_if_alive(row)
            members = {**_members(end, purged=purged), **_captured(row, end)}
            text, before = files.read(place.yaml)
            new = _yaml().with_members(text, "tmux_sessions", key, members)
            job = "" if purged else _tell_job(place, row, end)
            if database is not None:
                _store(database, row, members)
            files.remove(place.yaml + ".bak", stat.S_ISREG)
            os.link(place.yaml, place.yaml + ".bak")  # keeps the former content after the rename
            if not files.replaced(place.yaml, new, before):
                raise OwnerCallFailed("busy", f"{place.yaml} is being written by another process")
            view = new
    except OwnerCallFailed:
        if view:  # COMMIT failed, maybe on a full disk: undo the view too
            files.change(place.yaml, lambda now: text if now == view else None)
        raise
    words = f"{key} is {members['status']}"
    return Forgotten(Became.DONE, f"{words}; {job}" if job else words)


def _writing(place: _Place) -> AbstractContextManager[Any]:
    """The program's own lock: a write transaction, or for the oldest version, without a database, a lock file."""
    if os.path.lexists(place.database):
        return files.database(place.database, write=True)
    return delegated_jobs.locked(place.yaml + ".lock")


def _yaml() -> Any:
    try:
        from watchdog.owner.sources import yaml_rows  # lazily: 1.5 MB of memory, also in the daemon; and it is optional
    except ImportError:
        raise OwnerCallFailed(
            "not_installed", "ruamel.yaml is missing: agent_sessions cannot be read without it"
        ) from None
    return yaml_rows


def _place(path: str) -> _Place | None:
    """The registry at that path; None when there is none. Raises OwnerCallFailed for another uid's."""
    if os.path.isdir(path):
        path = next((one for name in NAMES if os.path.lexists(one := os.path.join(path, name))), "")
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if status.st_uid != os.geteuid():
        raise OwnerCallFailed("not_ours", f"{path} belongs to another uid")
    return _Place(path, status.st_uid, status.st_mtime)


def _rows(place: _Place) -> list[Row]:
    if not os.path.lexists(place.database):
        return _sessions(place, _yaml().load_again(files.read(place.yaml)[0]))
    with files.database(place.database) as database:
        return _stored(place, database)


def _stored(place: _Place, database: Any) -> list[Row]:
    """The rows in the source of truth. Raises OwnerCallFailed for an unknown layout."""
    if database is None:
        document = _yaml().load(files.read(place.yaml)[0])
    elif {"name", "status", "data"} <= files.columns(database, "sessions"):
        document = {"tmux_sessions": list(_each(database))}
    elif {"id", "data"} <= files.columns(database, "state"):
        document = _json(database.execute("SELECT data FROM state WHERE id = 1").fetchone()["data"])
    else:
        document = None
    return _sessions(place, document)


def _sessions(place: _Place, document: Any) -> list[Row]:
    listed = document.get("tmux_sessions") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise OwnerCallFailed("not_understood", f"{place.yaml}: its sessions are not understood")
    return [
        row
        for row in listed
        if isinstance(row, dict) and isinstance(row.get("name"), str) and isinstance(row.get("status"), str)
    ]


def _each(database: Any) -> Iterator[Any]:
    """The rows; those that are not JSON are skipped."""
    for one in database.execute("SELECT data FROM sessions"):
        with contextlib.suppress(OwnerCallFailed):
            yield _json(one["data"])


def _json(text: object) -> Any:
    return files.parsed("its database", text if isinstance(text, str) else "")


def _store(database: Any, row: Row, members: dict[str, object]) -> None:
    """Write those members of the row, in either layout of the database."""

    def edit(text: str) -> str:
        for name, value in members.items():
            text = files.with_value(text, value, name) if name in row else files.with_member(text, name, value)
        return text

    name = row["name"]
    if files.columns(database, "sessions"):
        (text,) = database.execute("SELECT data FROM sessions WHERE name = ?", (name,)).fetchone()
        update = "UPDATE sessions SET status = ?, data = ? WHERE name = ?"
        database.execute(update, (members["status"], edit(text), name))
    else:
        (text,) = database.execute("SELECT data FROM state WHERE id = 1").fetchone()
        number = [one.get("name") for one in json.loads(text)["tmux_sessions"]].index(name)
        new = files.within(text, edit, "tmux_sessions", number)
        database.execute("UPDATE state SET data = ? WHERE id = 1", (new,))


def _members(end: EntryEnd, *, purged: bool) -> dict[str, object]:
    """The members that the program's own stop, purge, or monitor would write."""
    at = datetime.fromtimestamp(end.ended_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    note = printable(f"ended by {end.by}: {end.reason}")[:500]
    if end.status not in ("stopped", "killed"):
        status, members = "terminated", {"stop_reason": "(auto-detected)"}
    elif purged:
        status, members = "terminated", {"termination_mode": "purge"}
    else:
        status, members = "stopped", {"stop_reason": printable(end.reason)[:200], "termination_mode": "graceful"}
    return {
        "status": status,
        f"{status}_at": at,
        f"{status}_at_epoch": int(end.ended_at),
        **members,
        "resumable": status == "stopped",
        "last_visible_status": status,
        "last_visible_note": note,
    }


def _captured(row: Row, end: EntryEnd) -> dict[str, object]:
    """The id of its conversation, if it was captured before the end and the row has an empty field for it."""
    empty = [key for key in row if OWN_ID.fullmatch(key) and row[key] is None]
    found = end.conversation
    return {empty[0]: found} if len(empty) == 1 and found is not None and ID.fullmatch(found) else {}


def _tell_job(place: _Place, row: Row, end: EntryEnd) -> str:
    """Write its job's events; a job that cannot be updated does not prevent the row's end."""
    job = row.get("delegate_job_id")
    if not isinstance(job, str) or not job:
        return ""
    event = "error" if end.status in ("failed", "lost") else "completed"
    detail = "the session was stopped" if event == "completed" else "the session ended by itself"
    try:
        return delegated_jobs.tell(place.folder, job, event, detail, end.ended_at)
    except (OSError, OwnerCallFailed) as error:
        return f"its job was not updated: {error}"
