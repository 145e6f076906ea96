"""Claude Code's own list of its sessions: `sessions/<pid>.json` below its directory, one file per running session.

The format is undocumented and changes (seen in 2.1), so missing fields are tolerated. A file is removed at the end of
its session, but not after a crash, so its pid may have been reused: `procStart` (field 22 of /proc/PID/stat) shows
that; if a file lacks it, the process has to look like Claude Code. Owner and identity of the process are verified by
the daemon with the kernel, not here.

Tests: tests/owner/test_session_states.py, tests/e2e/test_claude_sessions.py.
"""

import contextlib
import json
import os
import re
import stat

from watchdog.core.sd_notify import printable
from watchdog.core.source_entries import LONGEST, MOST_TOLD, Entry, unread_entry
from watchdog.core.vendors import agent_name, runs_as
from watchdog.errors import OwnerCallFailed
from watchdog.owner import proc_files
from watchdog.owner.sources import kernel

MOST_BYTES = 65536  # per file; real ones have 400
_NAME = re.compile(r"(\d{1,9})\.json")
_SESSION = re.compile(r"[A-Za-z0-9-]{1,64}")
_STATES = {"busy": "working", "shell": "working", "idle": "idle", "waiting": "waiting"}


def discover(directory: str) -> list[Entry]:
    """The sessions whose process exists.

    Raises OSError, OwnerCallFailed when the directory is another uid's; a missing one has no sessions.
    """
    folder = os.path.join(directory, "sessions")
    try:
        if os.stat(folder).st_uid != os.geteuid():
            raise OwnerCallFailed("not_ours", f"{folder} belongs to another uid")
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    living = [name for name in names if (pid := _NAME.fullmatch(name)) and os.path.exists(f"/proc/{pid.group(1)}")]
    found = []
    for name in sorted(living)[:MOST_TOLD]:
        try:
            told = _told(directory, folder, name)
        except FileNotFoundError:
            continue  # just removed
        except (OSError, ValueError, RecursionError) as error:  # half-written or damaged
            told = unread_entry(name, f"{name}: {error}", os.geteuid())
        if told is not None:
            found.append(told)
    return found


def told_of(directory: str, pid: int) -> Entry | None:
    """The entry of process `pid` in `directory` now; None if there is none, or it cannot be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return _told(directory, os.path.join(directory, "sessions"), f"{pid}.json")
    return None


def session_of(directory: str, pid: int) -> str | None:
    """The session of process `pid` according to the list in `directory`; None: unknown."""
    try:
        with open(os.path.join(directory, "sessions", f"{pid}.json"), "rb", opener=_opener) as file:
            data = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    session = _text(data, "sessionId") if isinstance(data, dict) else ""
    return session if _SESSION.fullmatch(session) else None


def _opener(path: str, flags: int) -> int:
    """Open without blocking on a FIFO or following a link."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor


def _told(base: str, folder: str, name: str) -> Entry | None:
    descriptor = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            return None
        data = json.loads(os.read(descriptor, MOST_BYTES))
    finally:
        os.close(descriptor)
    pid = int(name.removesuffix(".json"))
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    if data.get("pid", pid) != pid or data.get("kind") == "daemon":
        return None  # its supervisor is not a session
    ticks = _ticks(data.get("procStart"))
    if ticks is None:
        ticks = _claude_now(pid)
    if ticks is None:
        return None
    cwd, session = _text(data, "cwd"), _text(data, "sessionId")
    session = session if _SESSION.fullmatch(session) else ""
    return Entry(
        key=name,
        token=f"{ticks}",
        name=agent_name("claude", cwd, pid),
        uid=status.st_uid,
        pid=pid,
        ticks=ticks,
        type="claude",
        cwd=cwd or None,
        state=_STATES.get(_text(data, "status")),
        state_since=_milliseconds(data.get("statusUpdatedAt") or data.get("updatedAt")),
        note=printable(_text(data, "waitingFor")),
        transcript=_transcript(base, cwd, session),
        conversation=session or None,
        resume=f"claude --resume {session}" if session else None,
    )


def _ticks(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def _milliseconds(value: object) -> float | None:
    """Milliseconds as epoch seconds; None for an invalid time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LONGEST:
        return None
    return value / 1000


def _text(data: dict[str, object], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _transcript(base: str, cwd: str, session: str) -> str | None:
    """`projects/<first directory>/<session>.jsonl`, if it exists: a session that changes directory keeps its file."""
    if not cwd or not session:
        return None
    path = os.path.join(base, "projects", re.sub(r"[^A-Za-z0-9]", "-", cwd), f"{session}.jsonl")
    return path if path.isprintable() and os.path.isfile(path) else None


def _claude_now(pid: int) -> int | None:
    """The start ticks of that process if it is a Claude Code."""
    try:
        ticks = int(proc_files.read(pid, "stat").rpartition(b")")[2].split()[19])
        words = proc_files.read(pid, "cmdline", 4096).decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    executable = kernel.link(pid, "exe")
    if not executable:
        return None
    return ticks if runs_as("claude", [word for word in words if word][:8], executable) is not None else None
