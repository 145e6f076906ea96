"""The processes of agent-relay's agents: the command line of `relay-pty` names the agent and its files.

Tests: tests/owner/sources/test_agent_relay.py.
"""

import errno
import os
import socket
import stat
from dataclasses import dataclass

from watchdog.owner.sources import kernel
from watchdog.owner.sources.files import read, remove


@dataclass(frozen=True, slots=True)
class RelayRun:
    """One agent's processes: `create-agent` if a person started it, `relay-pty`, and what that wraps (`harness`)."""

    name: str
    main: kernel.Process  # the outermost process of its own
    also: tuple[int, ...]
    harness: tuple[int, ...]
    cwd: str
    log: str | None
    files: tuple[str, ...]  # its socket, and its outbox if that is a link

    def belongs_to(self, data: str, root: str) -> bool:
        """Whether it belongs to that directory: by its log, which is there; else by the project that it works in."""
        if self.log is not None:
            return os.path.realpath(self.log).startswith(os.path.realpath(data) + "/")
        return bool(root) and self.cwd == root


@dataclass(frozen=True, slots=True)
class RelayServer:
    """The server process of one data directory's agents."""

    pid: int | None = None
    since: float | None = None  # when that pid was written
    gone: bool = False  # no such process


def running() -> list[RelayRun]:
    """All running agents of this uid."""
    processes = kernel.own_processes()
    children: dict[int, list[int]] = {}
    for one in processes.values():
        children.setdefault(one.parent, []).append(one.pid)
    runs = []
    for one in processes.values():
        parent = processes.get(one.parent)
        if not _is_pty(one) or (parent is not None and parent.words == one.words):
            continue  # a fork that has not yet called execve(2), with its parent's command line
        options = _options(one.words)
        if name := options.get("--name"):
            wrapped = parent is not None and "create-agent" in parent.words[:4]
            harness = _harness(children.get(one.pid, []))
            runs.append(
                RelayRun(
                    name=name,
                    main=parent if wrapped and parent is not None else one,
                    also=(*((one.pid,) if wrapped else ()), *harness),
                    harness=harness,
                    cwd=kernel.link(one.pid, "cwd"),
                    log=options.get("--log-file"),
                    files=_left(options.get("--socket"), options.get("--outbox")),
                )
            )
    return runs


def _is_pty(one: kernel.Process) -> bool:
    return bool(one.words) and os.path.basename(one.words[0]).startswith("relay-pty")


def _harness(children: list[int]) -> tuple[int, ...]:
    """The wrapped program: it leads a session of its own; else an only child. Empty if it is ambiguous."""
    leaders = tuple(pid for pid in sorted(children) if _leads(pid))
    return leaders or (tuple(children) if len(children) == 1 else ())


def _leads(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False


def server(data: str) -> RelayServer:
    """The server of that directory, by the pid file next to its socket."""
    try:
        text, status = read(os.path.join(data, "relay.sock.pid"), 64)
        pid = kernel.as_pid(int(text))
    except (OSError, ValueError):
        return RelayServer()
    if pid is None:
        return RelayServer()
    one = kernel.process(pid)
    return RelayServer(pid, status.st_mtime, one is None)


def left_by(name: str) -> tuple[str, ...]:
    """Files that 1.x leaves of an agent whose processes are gone; the caller checks that no process has that name."""
    if "/" in name:
        return ()
    return _left(f"/tmp/relay-pty-{name}.sock", f"/tmp/relay-outbox/{name}")  # noqa: S108 agent-relay's own place


def clear(name: str, had: tuple[str, ...]) -> list[str]:
    """Remove that agent's leftover files, unless a process of that name runs or listens there; return the paths.

    `had`: the paths on its command line while it lived, where 2.x has them.
    """
    if any(run.name == name for run in running()):
        return []
    there = dict.fromkeys([*left_by(name), *(path for path in had if os.path.lexists(path))])
    return [path for path in there if not _listens(path) and remove(path, _socket_or_link)]


def _listens(path: str) -> bool:
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
        return asking.connect_ex(path) != errno.ECONNREFUSED


def _socket_or_link(mode: int) -> bool:
    return stat.S_ISSOCK(mode) or stat.S_ISLNK(mode)


def _options(words: tuple[str, ...]) -> dict[str, str]:
    """The options before the wrapped command."""
    own = words[: words.index("--")] if "--" in words else words
    return {own[i]: own[i + 1] for i in range(len(own) - 1) if own[i].startswith("--")}


def _left(hears: str | None, outbox: str | None) -> tuple[str, ...]:
    """Our own socket, and our own outbox if it is a link (the link itself, never its target)."""
    found = []
    for path, is_kind in ((hears, stat.S_ISSOCK), (outbox, stat.S_ISLNK)):
        try:
            status = os.lstat(path) if path and path.startswith("/") else None
        except OSError:
            continue
        if status is not None and path and is_kind(status.st_mode) and status.st_uid == os.geteuid():
            found.append(path)
    return tuple(found)
