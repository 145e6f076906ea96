"""Finds the conversation of an agent's processes in its program's own files. Read-only."""

import contextlib
import os
from typing import Any

from watchdog.core.conversations import Conversation, conversation_json, kept_in
from watchdog.owner import parsing, proc_files
from watchdog.owner.session_dirs import claude_directory
from watchdog.owner.sources import claude

MOST = 64  # processes that are checked, the main one first
MOST_FILES = 1024  # open files of each


def conversation(processes: list[list[int]]) -> dict[str, object] | None:
    """The conversation of the first of these processes (pid and start ticks) that has one; None: unknown.

    Claude Code's list names it by pid and start; Codex and Antigravity keep its file open.
    """
    for pid, ticks in processes[:MOST]:
        with contextlib.suppress(OSError):  # gone, or unreadable
            found = _of_claude(pid, ticks) or _by_open_files(pid)
            if found is not None and start_of(pid) == ticks:  # the pid has not been reused
                return conversation_json(found)
    return None


def _of_claude(pid: int, ticks: int) -> Conversation | None:
    directory = claude_directory(pid)
    if not os.path.exists(os.path.join(directory, "sessions", f"{pid}.json")):
        return None
    told: Any = parsing.parsed(lambda: _listed(directory, pid, ticks), [directory])
    return None if told is None else Conversation("claude", told[0], directory, told[1])


def _listed(directory: str, pid: int, ticks: int) -> tuple[str, str | None] | None:
    """The conversation and the cwd in Claude Code's own list for exactly that process."""
    for entry in claude.discover(directory):
        if (entry.pid, entry.ticks) == (pid, ticks) and entry.conversation is not None:
            return entry.conversation, entry.cwd
    return None


def _by_open_files(pid: int) -> Conversation | None:
    for number in sorted(os.listdir(f"/proc/{pid}/fd"))[:MOST_FILES]:
        with contextlib.suppress(OSError):
            found = kept_in(os.readlink(f"/proc/{pid}/fd/{number}"), os.readlink(f"/proc/{pid}/cwd"))
            if found is not None:
                return found
    return None


def start_of(pid: int) -> int:
    """Start ticks of that process (field 22 of /proc/PID/stat). Raises OSError when it is gone."""
    return int(proc_files.read(pid, "stat").rpartition(b")")[2].split()[19])
