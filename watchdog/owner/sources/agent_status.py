"""`agent_status/<type>_status.json` next to an orchestrator's database: each agent's own file, with pid and heartbeat.

The agent rewrites it at least every 30 s, and not by a rename: a half-written file is read again next time, and until
then it is unknown whether the agent beats; so it is with a permanently damaged one. Times are naive local times.

Tests: tests/owner/sources/test_orchestrator_db.py.
"""

import math
import os
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from watchdog.core.source_entries import MOST_ENTRIES, Became, EntryEnd
from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import files, kernel
from watchdog.owner.sources.base import Forgotten

PREFIX = "agent_status/"
ENDING = "_status.json"
MOST_BYTES = 65_536
_STATES = {"idle": "idle", "working": "working", "error": "working"}


@dataclass(frozen=True, slots=True)
class StatusFile:
    """The content of one file."""

    key: str
    kind: str
    uid: int
    pid: int
    beat: str
    state: str | None
    stopped: bool
    since: float | None  # when it was written: then the pid was the agent's

    @property
    def token(self) -> str:
        return str(self.pid)


def read(folder: str) -> tuple[dict[str, StatusFile], dict[str, str]]:
    """The files by agent type, and errors by entry (the folder's key stands for all entries).

    Files without a pid are skipped, and the folder may be missing.
    """
    found: dict[str, StatusFile] = {}
    unread: dict[str, str] = {}
    try:
        names = sorted(os.listdir(folder))[: 2 * MOST_ENTRIES]
    except (FileNotFoundError, NotADirectoryError):
        return found, unread
    except OSError as error:
        return found, {PREFIX: f"{folder}: {error.strerror}"}
    for name in names:
        if name.endswith(ENDING):
            try:
                told = _told(folder, name)
            except FileNotFoundError:
                continue  # just removed
            except (OSError, OwnerCallFailed) as error:
                unread[f"{PREFIX}{name}"] = str(error)
                continue
            if told is not None:
                found[told.kind] = told
    return found, unread


def forget(folder: str, key: str, token: str, end: EntryEnd) -> Forgotten:
    """Set state and health as the agent itself does when it stops; everything else stays."""
    name = key.removeprefix(PREFIX)
    if os.path.basename(name) != name or not name.endswith(ENDING):
        raise OwnerCallFailed("not_understood", f"{key!r} is not a status file")
    became = Became.GONE

    def edit(text: str) -> str | None:
        nonlocal became
        data = files.parsed(name, text)
        if not isinstance(data, dict) or "state" not in data:
            raise OwnerCallFailed("not_understood", f"{name} has no state")
        if str(data.get("pid")) != token:
            became = Became.CHANGED
            return None
        if data["state"] == "stopped":
            return None
        became = Became.DONE
        text = files.with_value(text, "stopped", "state")
        if "health" in data:
            text = files.with_value(text, "stopped", "health")
        stamp = datetime.fromtimestamp(end.ended_at).isoformat()  # noqa: DTZ006 naive local time is its format
        if "stopped_at" in data:
            return files.with_value(text, stamp, "stopped_at")
        return files.with_member(text, "stopped_at", stamp)

    files.change(os.path.join(folder, name), edit)
    words = {
        Became.DONE: "its status file says stopped",
        Became.GONE: "its status file says stopped already, or is not there",
        Became.CHANGED: "its status file is another process's by now",
    }
    return Forgotten(became, words[became])


def epoch(text: str, pid: int | None) -> float | None:
    """A time as these programs write it, in epoch seconds: naive with a T is local, with a space UTC
    (CURRENT_TIMESTAMP).

    Local means the zone of process `pid`, which may have its own TZ. A time in the hour that occurs twice when daylight
    saving ends, or in an unknown zone, is ambiguous: infinite, later than all others. Whole seconds are truncated, not
    rounded: the time was up to a second later.
    """
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None and "T" in text:
            when = when.replace(tzinfo=_zone(pid))
            if when.timestamp() != when.replace(fold=1).timestamp():
                return math.inf
        elif when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return when.timestamp() + (0.0 if "." in text else 1.0)
    except zoneinfo.ZoneInfoNotFoundError:
        return math.inf
    except (ValueError, OverflowError, OSError):
        return None


def _zone(pid: int | None) -> tzinfo | None:
    """The time zone that a process was started with; None: the machine's. Raises ZoneInfoNotFoundError."""
    name = "" if pid is None else kernel.environ(pid).get("TZ", "").removeprefix(":")
    try:
        return zoneinfo.ZoneInfo(name) if name else None
    except (ValueError, OSError):  # a path, or a POSIX rule
        raise zoneinfo.ZoneInfoNotFoundError(name) from None


def _told(folder: str, name: str) -> StatusFile | None:
    text, status = files.read(os.path.join(folder, name), MOST_BYTES)
    data = files.parsed(f"{PREFIX}{name}", text)
    if not isinstance(data, dict):
        raise OwnerCallFailed("not_understood", f"{PREFIX}{name} is not a JSON object")
    if type(data.get("pid")) is not int or data["pid"] <= 1:
        return None
    beat, kind = data.get("last_heartbeat"), data.get("agent_type")
    beat = beat if isinstance(beat, str) and len(beat) <= 64 else ""
    since = epoch(beat, kernel.as_pid(data["pid"]))
    ahead = since is not None and since > datetime.now(UTC).timestamp() + 1
    return StatusFile(
        key=f"{PREFIX}{name}",
        kind=kind if isinstance(kind, str) and kind else name.removesuffix(ENDING),
        uid=status.st_uid,
        pid=data["pid"],
        beat=beat,
        state=_STATES.get(str(data.get("state"))),
        stopped=data.get("state") == "stopped",
        since=None if ahead else since,
    )
