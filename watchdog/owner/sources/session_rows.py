"""What a session's row means, according to its tmux server and Claude Code's own list. Nothing is typed or closed.

Besides a row whose tmux session is gone there are three disagreements: the session is alive and no row says so; it is
alive with another process than its row says; its conversation is not in its row yet (`forget` adds it at the end).

Tests: tests/owner/sources/test_agent_sessions.py.
"""

import errno
import os
import re
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from watchdog.core.source_entries import Entry
from watchdog.errors import OwnerCallFailed
from watchdog.owner import parsing
from watchdog.owner.sources import claude, files, kernel
from watchdog.owner.terminals import tmux
from watchdog.owner.terminals.base import ListedPane, reached

SECONDS = 2.0  # for one answer of a server, which normally takes 5 ms
OWN_ID = re.compile(r"(claude|agy|hermes|cline)_(?:session|conversation)_id_own")
ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SESSION = re.compile(r"([^:.\s]+)-creator-(?:claude|agy|hermes|cline)")  # the program's session names
_WRITTEN = ("created_at_epoch", "created_at", "resumed_at_epoch", "resumed_at")
_NOBODY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED})  # errors of connect(2) when no server listens

Row = dict[str, Any]
Asked = dict[str, list[ListedPane] | None]  # each server's answer during this read


def pid_of(row: Row) -> int | None:
    """The pid of its pane according to the row."""
    pane = row.get("pane")
    return kernel.as_pid(pane.get("pid")) if isinstance(pane, dict) else None


def conversation_of(row: Row) -> str | None:
    """The id of the session's own conversation, if known."""
    own = (row[key] for key in row if OWN_ID.fullmatch(key))
    return next((one for one in own if isinstance(one, str) and ID.fullmatch(one)), None)


def token_of(row: Row) -> str:
    """Identifies the run: its pane's process, and when it was started or resumed."""
    return " ".join(str(word) for word in (row.get("tmux_server"), pid_of(row), *(row.get(key) for key in _WRITTEN)))


def _server(row: Row, environment: dict[str, str]) -> str:
    """The server that the row names; its socket path if the process was started in a server of that name."""
    name = row.get("tmux_server")
    name = name if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) else "default"
    socket = environment.get("TMUX", "").partition(",")[0]
    return socket if os.path.basename(socket) == name else name


def refuse_if_alive(row: Row) -> None:
    """Raise OwnerCallFailed `alive` while its session has a living pane."""
    pid = pid_of(row)
    panes = _panes(_server(row, {} if pid is None else kernel.environ(pid)))
    for pane in panes or []:
        if row["name"] in pane.sessions and not pane.dead and kernel.process(pane.pid) is not None:
            raise OwnerCallFailed("alive", f"the session {row['name']} has a living pane: {pane.pane}, pid {pane.pid}")


def unlisted(uid: int, workspace: str, rows: list[Row], asked: Asked) -> list[Entry]:
    """Living sessions, of that workspace and of those that its rows name, that no row lists as running.

    Only on the servers that were queried; sessions of other workspaces' registries have other names.
    """
    places = {row["name"].rpartition("-creator-")[0] for row in rows} | {_place_of(workspace)}
    listed = {row["name"]: row["status"] for row in rows}
    found = {}
    for server, panes in asked.items():
        for pane in panes or []:
            for session in () if pane.dead else pane.sessions:
                match = _SESSION.fullmatch(session)
                if match and match[1] in places and listed.get(session) != "running":
                    found[session] = os.path.basename(server)
    return [
        _drift(uid, name, f"its tmux session lives on the server {server}, and the registry {_says(listed.get(name))}")
        for name, server in sorted(found.items())
    ]


def _place_of(workspace: str) -> str:
    """The program's name for it: the last two parts of its path."""
    return "-".join(os.path.realpath(workspace).split("/")[-2:]).replace("_", "-").lower()


def _says(status: str | None) -> str:
    return "has no such session" if status is None else f"says that it is {status}"


def _drift(uid: int, name: str, why: str) -> Entry:
    """A disagreement, reported under a key of its own, as it is unknown what the row means."""
    return Entry(key=f"drift {name}", token=name, name=name, uid=uid, drift=why)


def entry_of_row(uid: int, mtime: float, row: Row, asked: Asked) -> Entry:
    """The entry of a row; if its session is alive with another process, only that disagreement."""
    pid, running = pid_of(row), row["status"] == "running"
    kind = next((match[1] for key in row if (match := OWN_ID.fullmatch(key))), row["name"].rpartition("-")[2])
    conversation = conversation_of(row)
    pane, ticks, since, note = None, None, _since(row), ""
    if running and pid is not None:
        before, environment = kernel.process(pid), kernel.environ(pid)
        server = _server(row, environment)
        if server not in asked:
            asked[server] = _panes(server)
        mine = [one for one in asked[server] or [] if row["name"] in one.sessions]
        sits = next((one for one in mine if one.pid == pid and not one.dead), None)
        after = kernel.process(pid)
        others = [one.pid for one in mine if not one.dead and kernel.process(one.pid)]
        if sits is None and others:
            said = f"its row says pid {pid}, and its tmux session lives with {', '.join(map(str, others[:4]))}"
            return _drift(uid, row["name"], said)
        if sits is not None and before is not None and after is not None and before.ticks == after.ticks:
            ticks = after.ticks
            pane = {"terminal": "tmux", "server": server, "session": row["name"]}
            pane |= {"window": sits.window, "pane": sits.pane}
            if kind == "claude" and conversation is None:
                conversation = _claude_session(environment, pid, ticks)
                note = "" if conversation is None else f"its row has no conversation yet: {conversation}"
        elif asked[server] is not None and environment and not server.startswith("/"):
            since = 0.0  # its tmux session is gone, and this process was never in that server
        elif server.startswith("/"):
            since = since or mtime
    cwd = row["pane"].get("cwd") if isinstance(row.get("pane"), dict) else None
    job = row.get("delegate_job_id")
    return Entry(
        key=row["name"],
        token=token_of(row),
        name=row["name"],
        uid=uid,
        pid=pid,
        ticks=ticks,
        boot_id=kernel.this_boot() if ticks is not None else None,
        since=since,
        living=running,
        type=kind,
        task=job if isinstance(job, str) and ID.fullmatch(job) else None,
        cwd=cwd if isinstance(cwd, str) else None,
        note=note,
        conversation=conversation,
        resume={"claude": f"claude -r {conversation}", "hermes": f"hermes --resume {conversation}"}.get(kind)
        if conversation
        else None,
        pane=pane,
    )


def _claude_session(environment: dict[str, str], pid: int, ticks: int) -> str | None:
    """The session in Claude Code's own list for exactly that process."""
    directory = environment.get("CLAUDE_CONFIG_DIR") or os.path.join(environment.get("HOME", "/nonexistent"), ".claude")
    return _claude_conversation(directory, pid, ticks)


@parsing.outside
def _claude_conversation(directory: str, pid: int, ticks: int) -> str | None:
    """Runs outside, as that directory differs from the registry's; its files are parsed in another confined child."""

    def look() -> str | None:
        listed = claude.discover(directory)
        return next((one.conversation for one in listed if (one.pid, one.ticks) == (pid, ticks)), None)

    try:
        found = parsing.parsed(look, [directory])
    except OwnerCallFailed:
        return None
    return found if isinstance(found, str) else None


def _panes(server: str) -> list[ListedPane] | None:
    """All panes of a server, given by socket path or by its `tmux -L` name. None: it could not be queried.

    If no such server exists, the list is empty.
    """
    told = _asked_panes(server)
    return None if told is None else [ListedPane(**{**one, "sessions": tuple(one["sessions"])}) for one in told]


@parsing.outside
def _asked_panes(server: str) -> list[dict[str, Any]] | None:
    """As `_panes`; runs outside, as tmux's client is a program."""
    found = []
    try:
        sockets = tmux.servers({}, server)
    except OSError:
        return None
    for socket in sockets:
        try:
            with reached(socket) as at:
                found += tmux.panes(at, time.monotonic() + SECONDS)
        except OwnerCallFailed as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in _NOBODY:
                return None
    return [asdict(one) for one in found]


def _since(row: Row) -> float | None:
    """The latest start time in the row."""
    times = []
    for key in _WRITTEN:
        value = row.get(key)
        if (told := files.number(value)) is not None:
            times.append(told)
        elif isinstance(value, str):
            try:
                times.append(datetime.fromisoformat(value).astimezone(UTC).timestamp())
            except (ValueError, OverflowError):
                continue
    return max(times, default=None)
