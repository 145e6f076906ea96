"""Reads a process's state from its vendor's session file. Read-only."""

import contextlib
import os
import stat
from typing import Any

from watchdog.core.session_states import turn_over
from watchdog.owner import parsing
from watchdog.owner.conversations import MOST, start_of
from watchdog.owner.session_dirs import claude_directory
from watchdog.owner.sources import claude

# Bytes: the record at the end of a turn contains the last answer, and some of Gemini CLI's the whole session.
TAIL = 1 << 22


def session_state(processes: list[list[int]]) -> dict[str, object] | None:
    """State, and since when (epoch seconds), of the first process (pid and start ticks) if Claude Code lists it, else
    of the only other one that it lists; None: no such process is listed, or its state is not."""
    found = []
    for number, (pid, ticks) in enumerate(processes[:MOST]):
        with contextlib.suppress(OSError):  # gone, or unreadable
            told = _told(pid, ticks)
            if told is not None and number == 0:
                return told
            found += [told] if told is not None else []
    return found[0] if len(found) == 1 else None


def turn_state(vendor: str, path: str) -> dict[str, object] | None:
    """The same for the session of that file (Codex' rollout, Gemini CLI's chat): `idle` since its last turn ended;
    None: it works, or its file does not say."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        return None
    since: Any = parsing.parsed(lambda: turn_over(vendor, _last_lines(path)), [], [os.path.dirname(path)])
    return None if since is None else {"state": "idle", "since": since}


def _last_lines(path: str) -> list[str]:
    """The last lines of a file, only complete ones."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        start = max(0, os.fstat(file.fileno()).st_size - TAIL)
        lines = os.pread(file.fileno(), TAIL, start).decode("utf-8", "replace").split("\n")
    return lines[1:] if start else lines


def _told(pid: int, ticks: int) -> dict[str, object] | None:
    directory = claude_directory(pid)
    if not os.path.exists(os.path.join(directory, "sessions", f"{pid}.json")) or start_of(pid) != ticks:
        return None
    told: Any = parsing.parsed(lambda: _listed(directory, pid, ticks), [directory])
    return None if told is None else {"state": told[0], "since": told[1]}


def _listed(directory: str, pid: int, ticks: int) -> tuple[str, float | None] | None:
    entry = claude.told_of(directory, pid)
    if entry is None or entry.ticks != ticks or entry.state is None:
        return None
    return entry.state, entry.state_since
