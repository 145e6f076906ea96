"""A client of agent-watchdogd in one file: copy it beside your program. Python >= 3.9, standard library, Linux.

    from agent_watchdog_client import Watchdog

    watchdog = Watchdog()
    made = watchdog.register("alpha", stall_after_seconds=120)
    process = subprocess.Popen(command, env={**os.environ, **made["env"]})
    watchdog.set_pid(made["agent_id"], process.pid)

It speaks HTTP on the daemon's control socket. Answers are the daemon's own JSON objects, with its keys (agents.md,
"HTTP"); a refusal is an exception of the class that belongs to the daemon's error key. Each call opens and closes a
connection of its own and has a deadline, so one `Watchdog` may be used by several threads.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import struct
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar, Union

SYSTEM_SOCKET = "/run/agent-watchdog/control.sock"
STATES = ("working", "idle", "waiting", "blocked", "done")
TIMEOUT = 10.0  # seconds for a call that only asks or reports
KILL_TIMEOUT = 900.0  # for one that waits until agents are proved dead
MOST_BYTES = 4096  # of a datagram
_LONGEST = 1e8  # seconds of a deadline: more is three years, and sockets take no infinity
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0  # seconds between two tries to reach a daemon that is away
_CHUNK = 65536
_LONGEST_HEAD = 65536

Json = dict[str, Any]
Targets = Union[str, Iterable[str]]


class WatchdogError(Exception):
    """A call failed. `code` is the daemon's error key; each subclass stands for the keys that it lists."""

    codes: ClassVar[tuple[str, ...]] = ("internal_error",)

    def __init__(self, message: str, code: str | None = None, http_status: int = 0, answer: Json | None = None) -> None:
        super().__init__(message)
        self.code = code or self.codes[0]
        self.http_status = http_status  # 0: there was no answer
        self.answer: Json = answer or {}  # all that the daemon said, for example how each process of a kill ended
        self.retry_after = 0.0  # seconds; of `Limited`


class BadRequest(WatchdogError):
    """The request cannot be understood: an unknown key, a wrong value, a route that this daemon does not have."""

    codes: ClassVar[tuple[str, ...]] = ("bad_request", "not_found")


class AgentNotFound(WatchdogError):
    """No agent has that name, id or pid."""

    codes: ClassVar[tuple[str, ...]] = ("agent_not_found",)


class ProcessNotFound(WatchdogError):
    """There is no such process, or it is not an agent's."""

    codes: ClassVar[tuple[str, ...]] = ("process_not_found",)


class KillFailed(WatchdogError):
    """Not proved dead (yet), or the kill was called off (`withdrawn`, `waiting`); `answer` says how far it came."""

    codes: ClassVar[tuple[str, ...]] = ("kill_failed", "withdrawn", "waiting")


class CleanupFailed(WatchdogError):
    """The agent is dead, but not everything was cleaned up; `answer["cleanup"]` has each hook."""

    codes: ClassVar[tuple[str, ...]] = ("cleanup_failed",)


class PermissionDenied(WatchdogError):
    """The agent belongs to another user."""

    codes: ClassVar[tuple[str, ...]] = ("permission_denied",)


class Protected(WatchdogError):
    """A safety check refuses to signal that process, whoever asks."""

    codes: ClassVar[tuple[str, ...]] = ("protected",)


class Held(WatchdogError):
    """An operator's hold is on that agent: `unhold` first."""

    codes: ClassVar[tuple[str, ...]] = ("held",)


class Ambiguous(WatchdogError):
    """Several living agents have that name; the message lists their ids."""

    codes: ClassVar[tuple[str, ...]] = ("ambiguous",)


class Conflict(WatchdogError):
    """It cannot be done in this state: the name is taken, the agent lives, the agent has ended."""

    codes: ClassVar[tuple[str, ...]] = ("conflict",)


class Elsewhere(WatchdogError):
    """Another daemon of this host watches that process."""

    codes: ClassVar[tuple[str, ...]] = ("elsewhere",)


class Preview(WatchdogError):
    """Not done: the call came from within an agent's tree and may mean many agents; repeat it with `go`."""

    codes: ClassVar[tuple[str, ...]] = ("preview",)


class TryAgain(WatchdogError):
    """The daemon is there and cannot do it now; the same call may succeed later."""

    codes: ClassVar[tuple[str, ...]] = ("unknown", "registry_unavailable", "no_space", "owner_call_failed")


class Limited(TryAgain):
    """This user has had its share of requests or connections; `retry_after` in seconds."""

    codes: ClassVar[tuple[str, ...]] = ("limited", "too_many_connections")


class Unreachable(WatchdogError):
    """No daemon answers at the socket, or it ended while it was answering."""

    codes: ClassVar[tuple[str, ...]] = ("unreachable",)


class TimedOut(Unreachable):
    """No answer in time. What was ordered may still be carried out: repeat the call to learn the result."""

    codes: ClassVar[tuple[str, ...]] = ("timeout",)


class Untrusted(WatchdogError):
    """What lies at the socket's path could be another user's; nothing was sent."""

    codes: ClassVar[tuple[str, ...]] = ("untrusted",)


_CLASSES = (
    *(BadRequest, AgentNotFound, ProcessNotFound, KillFailed, CleanupFailed, PermissionDenied, Protected, Held),
    *(Ambiguous, Conflict, Elsewhere, Preview, TryAgain, Limited, Unreachable, TimedOut, Untrusted, WatchdogError),
)
ERRORS: dict[str, type[WatchdogError]] = {code: kind for kind in _CLASSES for code in kind.codes}


class Watchdog:
    """The daemon, as its clients see it. Nothing is asked before the first call."""

    def __init__(self, socket_path: str | None = None, *, timeout: float = TIMEOUT) -> None:
        """`socket_path`: None finds the daemon as `agent-watchdog` does, at each call; `timeout` in seconds."""
        self.socket_path = socket_path
        self.timeout = timeout

    # -- agents report

    def register(
        self,
        name: str,
        *,
        pid: int | None = None,
        type: str | None = None,
        tags: Iterable[str] = (),
        task: str | None = None,
        parent: str | None = None,
        stall_after_seconds: float | None = None,
        ttl_seconds: float | None = None,
        worktree: str | None = None,
        temp_dir: str | None = None,
        replace: bool = False,
        timeout: float | None = None,
        **more: Any,
    ) -> Json:
        """Have an agent watched: `agent_id`, and the `env` that its process is to be started with.

        Order: register, start the process with `env`, then `set_pid`. `more`: other keys of `POST /agents`. A call that
        failed for lack of an answer can be repeated safely if `agent_id` (32 hexadecimal digits) was chosen by you.
        `replace` kills a living agent of that name first, which is waited for.
        """
        body = {
            "name": name,
            "pid": pid,
            "type": type,
            "tags": list(tags) or None,
            "task": task,
            "parent": parent,
            "stall_after_seconds": stall_after_seconds,
            "ttl_seconds": ttl_seconds,
            "worktree": worktree,
            "temp_dir": temp_dir,
            "replace": replace or None,
            **more,
        }
        default = KILL_TIMEOUT if replace else None
        return self.request("POST", "/v1/agents", _given(body), timeout=default if timeout is None else timeout)

    def set_pid(self, agent_id: str, pid: int, *, timeout: float | None = None) -> Json:
        """Name the main process of an agent that was registered before it was started."""
        return self.request("PATCH", f"/v1/agents/{_quoted(agent_id)}", {"pid": pid}, timeout=timeout)

    def beat(
        self,
        agent: str | None = None,
        *,
        state: str | None = None,
        note: str | None = None,
        progress: float | None = None,
        silent_for_seconds: float | None = None,
        tool: str | None = None,
        tool_limit_seconds: float | None = None,
        timeout: float | None = None,
        **more: Any,
    ) -> Json | None:
        """Report progress of an agent (default: of this one, $AGENT_WATCHDOG_ID); a promise to do so again.

        The answer is None, or `{"reason", "deadline_seconds"}` if the agent is asked to stop: end after the present
        step. `more`: other keys of a beat.
        """
        body = {
            "state": state,
            "note": note,
            "progress": progress,
            "silent_for_seconds": silent_for_seconds,
            "tool": tool,
            "tool_limit_seconds": tool_limit_seconds,
            **more,
        }
        who = os.environ.get("AGENT_WATCHDOG_ID", "") if agent is None else agent
        if not who:
            raise BadRequest("no agent is given, and $AGENT_WATCHDOG_ID is not set")
        stop: Json | None = self.request("POST", f"/v1/agents/{_quoted(who)}/beat", _given(body), timeout=timeout).get(
            "stop"
        )
        return stop

    # -- who is there

    def list_connected_agents(self, *, tag: str | None = None, timeout: float | None = None) -> list[Json]:
        """The agents that are watched now, so that live. Of other users' agents only what every user may know."""
        return self._agents(tag, timeout)

    def list_agents(self, *, tag: str | None = None, timeout: float | None = None) -> list[Json]:
        """All that are registered: those of `list_connected_agents`, and those that have ended (`status`)."""
        return self._agents(tag, timeout, all="1")

    def _agents(self, tag: str | None, timeout: float | None, **query: str) -> list[Json]:
        path = _path("/v1/agents", {**query, **_given({"tag": tag})})
        found: list[Json] = self.request("GET", path, timeout=timeout)["agents"]
        return [one for one in found if one.get("agent_id")]  # else it is only listed in another program's registry

    def why(self, agent: str, *, timeout: float | None = None) -> Json:
        """One agent's whole story: `agent` (with evidence and outlook), `events`, `requests`, `cleanup`, `children`."""
        return self.request("GET", f"/v1/agents/{_quoted(agent)}", timeout=timeout)

    def status(self, *, timeout: float | None = None) -> Json:
        """Whether the daemon does its work, in figures."""
        return self.request("GET", "/v1/status", timeout=timeout)

    # -- orders

    def kill(
        self,
        targets: Targets,
        *,
        grace_seconds: float | None = None,
        force: bool = False,
        cleanup: bool = True,
        dry_run: bool = False,
        children: bool = False,
        go: bool = False,
        wait: bool = True,
        stall_after_seconds: float | None = None,
        reason: str = "",
        timeout: float | None = None,
    ) -> Json:
        """Kill agents with their whole process trees: TERM, grace, KILL, proof, cleanup.

        A target is a name, id or pid, or a group: `tag:X`, `task:X`, `type:X`, `stalled`, `orphans`, `all`. One agent
        that did not die raises (KillFailed, Held, ...). Several targets, or a group, give a summary: look at `success`,
        and at `results` for each. `dry_run` only says what would be killed; `force` skips the grace.
        """
        body = {
            "targets": _listed(targets),
            "grace_seconds": grace_seconds,
            "stall_after_seconds": stall_after_seconds,
            "reason": reason or None,
            "force": force or None,
            "cleanup": None if cleanup else False,
            "dry_run": dry_run or None,
            "children": children or None,
            "go": go or None,
            "wait": None if wait else False,
        }
        long = KILL_TIMEOUT + 2 * (grace_seconds or 0.0)
        return self.request("POST", "/v1/kill", _given(body), timeout=long if timeout is None else timeout)

    def stop(
        self,
        targets: Targets,
        *,
        dry_run: bool = False,
        children: bool = False,
        go: bool = False,
        wait: bool = True,
        reason: str = "",
        timeout: float | None = None,
    ) -> Json:
        """As `kill`, but agents are asked first, and can be resumed (`resume` in the answer); worktrees stay."""
        body = {
            "targets": _listed(targets),
            "reason": reason or None,
            "dry_run": dry_run or None,
            "children": children or None,
            "go": go or None,
            "wait": None if wait else False,
        }
        return self.request("POST", "/v1/stop", _given(body), timeout=KILL_TIMEOUT if timeout is None else timeout)

    def remove_agent(
        self,
        name: str,
        *,
        remove_messages: bool = False,
        dry_run: bool = False,
        reason: str = "",
        timeout: float | None = None,
    ) -> Json:
        """Close what is left of one agent whose process is gone; one that lives is refused (Conflict): kill it first.

        `remove_messages`: also what a foreign registry (agent-relay) keeps of it.
        """
        if name.partition("@")[0] in ("all", "stalled", "orphans") or ":" in name:
            raise BadRequest(f"{name!r} may mean many agents; name one")
        body = {
            "targets": [name],
            "with_messages": remove_messages or None,
            "dry_run": dry_run or None,
            "reason": reason or None,
        }
        answer = self.request("POST", "/v1/remove", _given(body), timeout=KILL_TIMEOUT if timeout is None else timeout)
        result: Json = answer["results"][0]
        return result

    def hold(
        self,
        targets: Targets | None,
        *,
        for_seconds: float | None = None,
        reason: str = "",
        timeout: float | None = None,
    ) -> Json:
        """No kills of these agents until `unhold`, or for so long. None: of any agent (root and admins only)."""
        body = {"targets": _listed_or_all(targets), "for_seconds": for_seconds, "reason": reason or None}
        return self.request("POST", "/v1/hold", _given(body), timeout=timeout)

    def unhold(self, targets: Targets | None, *, timeout: float | None = None) -> Json:
        """Lift holds. None: the one on all agents, and those of the daemon itself."""
        return self.request("POST", "/v1/unhold", {"targets": _listed_or_all(targets)}, timeout=timeout)

    # -- what happens

    def events(self, *, after: int = 0, agent: str | None = None, timeout: float | None = None) -> Iterator[Json]:
        """The history after that id, oldest first, as far as there is one now; `timeout` for each piece of it."""
        with EventStream(self, after, agent, follow=False, timeout=timeout) as stream:
            yield from stream

    def follow_events(
        self,
        *,
        after: int = 0,
        agent: str | None = None,
        away_seconds: float | None = None,
        timeout: float | None = None,
    ) -> EventStream:
        """The history after that id, then what happens, for as long as the stream is not closed.

        The stream outlives the daemon: it continues after the last id with the next one, each event once. It raises
        when no daemon answers at all at first, or later for longer than `away_seconds` (None: it waits without limit).
        Keep `last_id` to go on in another process.
        """
        return EventStream(self, after, agent, follow=True, away_seconds=away_seconds, timeout=timeout)

    # -- the wire

    def request(self, method: str, path: str, body: object = None, *, timeout: float | None = None) -> Json:
        """One request of any route; `timeout` in seconds is for the whole exchange. Raises WatchdogError."""
        seconds = _bounded(self.timeout if timeout is None else timeout)
        message = _encoded(method, path, body)
        deadline = time.monotonic() + seconds
        where = self.socket_path or find_socket()
        connection = _connected(where, seconds)
        answer, content = _Answer(), bytearray()
        try:
            _send(connection, message, deadline)
            while not answer.done:
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                piece = _received(connection, first=not answer.begun)
                if not piece:
                    answer.end()
                    break
                content += answer.feed(piece)
        except socket.timeout:
            raise TimedOut(f"the daemon at {where} did not answer within {seconds:g} s") from None
        except OSError as error:
            raise Unreachable(f"the daemon at {where} hung up: {error.strerror or error}") from None
        finally:
            connection.close()
        return _judged(answer, bytes(content))


class EventStream:
    """An iterator over events; `close`, also from another thread, ends it. Usable in a `with`."""

    def __init__(
        self,
        watchdog: Watchdog,
        after: int,
        agent: str | None,
        *,
        follow: bool,
        away_seconds: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Connects at once. Raises WatchdogError."""
        self.last_id = after
        self._where = watchdog.socket_path or find_socket()  # ids are that daemon's: it stays with it
        self._seconds = _bounded(watchdog.timeout if timeout is None else timeout)
        self._agent = agent
        self._follow = follow
        self._away_seconds = away_seconds
        self._away_since: float | None = None
        self._pause = _FIRST_PAUSE
        self._lock = threading.RLock()  # over which connection there is
        self._reading = threading.RLock()  # a thread is in `next`, and closes the connection if another says so
        self._closed = threading.Event()
        self._connection: socket.socket | None = None
        self._answer = _Answer()
        self._held = bytearray()  # the beginning of a line
        self._ready: list[Json] = []  # events that were not taken yet, the next one last
        self._open()

    @property
    def closed(self) -> bool:
        """Whether nothing will come any more."""
        return self._closed.is_set()

    def close(self) -> None:
        """End the stream, and wake the thread that waits for its next event."""
        self._closed.set()
        with self._lock:
            if self._connection is not None:
                with suppress(OSError):  # the daemon has gone already
                    self._connection.shutdown(socket.SHUT_RDWR)
        # A descriptor that a thread reads is closed by that thread: its number could be another file's meanwhile.
        if self._reading.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._reading.release()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> Json:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def next(self, timeout: float | None = None) -> Json | None:
        """The next event; None when none came within `timeout` seconds, or the stream is `closed`."""
        try:
            with self._reading:
                return self._next(None if timeout is None else time.monotonic() + min(timeout, _LONGEST))
        finally:
            if self.closed:
                self._drop()

    def _next(self, deadline: float | None) -> Json | None:
        while not self.closed:
            if self._ready:
                event = self._ready.pop()
                self.last_id = event["id"]
                return event
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            try:
                if self._connection is None:
                    self._open(left)
                self._read(left)
            except (Unreachable, TryAgain) as error:
                if not self.closed:
                    self._wait(error, left)
            except BaseException:
                self.close()
                raise
        return None

    def _open(self, left: float | None = None) -> None:
        """Connect, and wait for the head of the answer; an error status is raised."""
        query = _given({"after": str(self.last_id), "agent": self._agent, "follow": "1" if self._follow else None})
        seconds = self._seconds if left is None else max(0.001, min(self._seconds, left))
        deadline = time.monotonic() + seconds
        connection = _connected(self._where, seconds)
        answer, content = _Answer(), bytearray()
        try:
            with self._lock:
                if self.closed:
                    connection.close()
                    return
                self._connection = connection
            _send(connection, _encoded("GET", _path("/v1/events", query), None), deadline)
            while not answer.begun or (answer.status >= 300 and not answer.done):
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                piece = _received(connection, first=not answer.begun)
                if not piece:
                    answer.end()
                    break
                content += answer.feed(piece)
            if answer.status >= 300:
                _judged(answer, bytes(content))
        except BaseException as error:
            self._drop()
            if isinstance(error, socket.timeout):
                raise TimedOut(f"the daemon at {self._where} did not answer within {seconds:g} s") from None
            if isinstance(error, OSError):
                raise Unreachable(f"the daemon at {self._where} hung up: {error.strerror or error}") from None
            raise
        self._answer, self._held, self._away_since = answer, bytearray(), None
        self._take(content)

    def _read(self, left: float | None) -> None:
        """Wait for the next piece, for `left` seconds at most. Raises Unreachable where a daemon ends the stream."""
        connection = self._connection
        if self._ready or connection is None:
            return
        try:
            if not self._answer.done:
                connection.settimeout(left if self._follow else self._seconds)
                piece = _received(connection, first=False)
                if piece:
                    self._take(self._answer.feed(piece))
                    return
            if not self._follow:
                self._answer.end()
                self.close()
                return
        except socket.timeout:
            if not self._follow:
                raise TimedOut(f"the daemon at {self._where} sent nothing for {self._seconds:g} s") from None
            return
        except OSError:
            pass  # it has ended, or `close` was called
        self._drop()
        if not self.closed:
            raise Unreachable(f"the daemon at {self._where} ended the stream")

    def _take(self, content: bytes | bytearray) -> None:
        """Add the whole lines in it; an event that is known already (it comes at least once) is passed over."""
        if not content:
            return
        if b"\n" not in content:
            self._held += content
            return
        *lines, rest = bytes(self._held + content).split(b"\n")
        self._held = bytearray(rest)
        last, found = self.last_id, []
        for line in lines:
            event = json.loads(line) if line.strip() else None
            if event is not None and event["id"] > last:
                last = event["id"]
                found.append(event)
        self._ready = found[::-1]
        if found:
            self._pause = _FIRST_PAUSE

    def _drop(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _wait(self, error: WatchdogError, left: float | None) -> None:
        """Before the next try; raises the error when the daemon has been away for too long."""
        now = time.monotonic()
        self._away_since = now if self._away_since is None else self._away_since
        if not self._follow or (self._away_seconds is not None and now - self._away_since >= self._away_seconds):
            self.close()
            raise error
        pause = max(self._pause, error.retry_after)
        self._closed.wait(pause if left is None else min(pause, left))
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause)


def notify(
    *,
    state: str | None = None,
    note: str | None = None,
    progress: float | None = None,
    silent_for_seconds: float | None = None,
    tool: str | None = None,
    tool_limit_seconds: float | None = None,
    socket_path: str | None = None,
) -> bool:
    """A beat by datagram (sd_notify), to $NOTIFY_SOCKET: the cheapest one; it never waits and never raises OSError.

    Only from the agent's own processes. Whether it was sent; there is no answer, so ask `Watchdog.beat` whether to
    stop. False: there is no socket, or its queue is full.
    """
    where = socket_path or os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return False
    fields = {
        "X_AGENT_STATE": state,
        "X_AGENT_PROGRESS": progress,
        "X_AGENT_SILENT_FOR": silent_for_seconds,
        "X_AGENT_TOOL": tool,
        "X_AGENT_TOOL_LIMIT": tool_limit_seconds,
        "X_AGENT_NOTE": note,
    }
    lines = ["WATCHDOG=1", *(f"{key}={_one_line(value)}" for key, value in fields.items() if value is not None)]
    message = "\n".join(lines).encode("utf-8", "replace")[:MOST_BYTES]
    message = message.decode("utf-8", "ignore").encode()  # no half of a character at its end
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            sender.sendto(message, "\0" + where[1:] if where.startswith("@") else where)
        except OSError:
            return False
    return True


# -- where the daemon is


def find_socket() -> str:
    """The control socket that `agent-watchdog` would use: $AGENT_WATCHDOG_SOCKET, the user's, the host's.

    Root: the host's first. Of several the first that answers. Where there is none, the one that would be made.
    """
    told = os.environ.get("AGENT_WATCHDOG_SOCKET")
    if told:
        return os.path.abspath(told)
    directories = _user_directories()
    own = [
        path
        for path in (f"{directory}/control.sock" for directory in dict.fromkeys(directories))
        if os.path.exists(path) and _directory_problem(os.path.dirname(path)) is None
    ]
    host = [SYSTEM_SOCKET]
    if not os.path.exists(SYSTEM_SOCKET) or _directory_problem(os.path.dirname(SYSTEM_SOCKET)) is not None:
        host = []
    root = os.getuid() == 0
    there = [*host, *own] if root else [*own, *host]
    if len(there) > 1:
        first = next((path for path in there if _answers(path)), there[0])
        there = [first, *(path for path in there if path != first)]
    if root and not (there and (there[0] == SYSTEM_SOCKET or _answers(there[0]))):
        return SYSTEM_SOCKET
    return there[0] if there else f"{directories[0]}/control.sock"


def _user_directories() -> list[str]:
    """Where a daemon of our own uid may have its sockets, the likelier first."""
    uid = os.getuid()
    found = []
    for runtime in (os.environ.get("XDG_RUNTIME_DIR", "").rstrip("/"), f"/run/user/{uid}"):
        if runtime.startswith("/") and _is_directory_of(runtime, uid, closed_to=0o022):
            found.append(f"{runtime}/agent-watchdog")
    usual, prefix = f"/tmp/agent-watchdog-{uid}", f".agent-watchdog-{uid}-"  # noqa: S108  refused unless it is ours
    if _is_directory_of(usual, uid):
        return [*found, usual]
    # Where another user took the usual name, the daemon made one beside it that no other user can make.
    beside = [f"/tmp/{name}" for name in sorted(os.listdir("/tmp")) if name.startswith(prefix)]  # noqa: S108
    return [*found, *(path for path in beside if _is_directory_of(path, uid, closed_to=0o077)), usual]


def _is_directory_of(path: str, uid: int, closed_to: int = 0) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & closed_to


def _directory_problem(path: str) -> str | None:
    """Why a socket in that directory is not trusted; None where only we and root could put one there."""
    try:
        found = os.lstat(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{path} is not a directory"
    if found.st_uid not in (os.getuid(), 0):
        return f"{path} belongs to uid {found.st_uid}"
    if found.st_mode & 0o022:
        return f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def _answers(path: str) -> bool:
    """Whether a process listens there: a daemon that was killed leaves its socket behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            connection.connect(path)
        except BlockingIOError:  # its backlog is full
            return True
        except OSError:
            return False
    return True


# -- HTTP


class _Answer:
    """An answer, taken apart as it comes: the head, then a body by its length, by chunks, or to the end."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.done = False
        self._held = bytearray()
        self._chunked = False
        self._left: int | None = None  # bytes of the body, or of a chunk with the line end after it

    @property
    def begun(self) -> bool:
        """Whether the head is there."""
        return self.status > 0

    def feed(self, piece: bytes) -> bytes:
        """What it holds of the body. Raises Unreachable for what is not HTTP."""
        self._held += piece
        if not self.begun:
            end = self._held.find(b"\r\n\r\n")
            if end < 0 and len(self._held) <= _LONGEST_HEAD:
                return b""
            self._head(bytes(self._held[: max(0, end)]))
            del self._held[: end + 4]
        if self._chunked:
            return self._chunks()
        body = bytes(self._held)
        self._held.clear()
        if self._left is not None:
            self._left -= len(body)
            self.done = self._left <= 0
        return body

    def end(self) -> None:
        """The connection has ended. Raises Unreachable when the answer was not whole."""
        if not self.begun:
            raise Unreachable("the daemon ended the connection before it had answered")
        if not self.done and (self._chunked or self._left is not None):
            raise Unreachable("the daemon ended the connection in the middle of its answer")

    def _head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or _number(rest[:3]) < 200:
            raise Unreachable("what answers on the control socket does not speak HTTP")
        self.status = int(rest[:3])
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        length = self.headers.get("content-length", "")
        if self._chunked:
            self._left = 0
        elif length:
            self._left = _number(length)
            if self._left < 0:
                raise Unreachable("what answers on the control socket does not speak HTTP")
        self.done = self.status == 204 or (not self._chunked and self._left == 0)

    def _chunks(self) -> bytes:
        """The contents of chunks (RFC 9112, 7.1) as far as they have come; trailers are passed over."""
        body = bytearray()
        while not self.done:
            if not self._left:
                end = self._held.find(b"\r\n")
                if end < 0:
                    break
                try:
                    size = int(self._held[:end].split(b";")[0], 16)
                except ValueError:
                    raise Unreachable("what answers on the control socket does not speak HTTP") from None
                del self._held[: end + 2]
                self.done = size == 0
                self._left = size + 2
                continue
            taken = bytes(self._held[: self._left])
            body += taken[: max(0, self._left - 2)]
            self._left -= len(taken)
            del self._held[: len(taken)]
            if self._left:
                break
        return bytes(body)


def _number(text: str) -> int:
    """A number in a head; -1: it is none, or none that a daemon would send."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1


def _judged(answer: _Answer, content: bytes) -> Json:
    """The JSON object of an answer. Raises the error that it is."""
    try:
        found = json.loads(content) if content.strip() else {}
    except ValueError:
        found = content.decode("utf-8", "replace")
    said: Json = found if isinstance(found, dict) else {"message": str(found)}
    if answer.status < 300:
        return said
    code = str(said.get("error") or "internal_error")
    message = str(said.get("message") or f"the daemon answered {answer.status}")
    error = ERRORS.get(code, WatchdogError)(message, code, answer.status, said)
    wait = answer.headers.get("retry-after", "")
    error.retry_after = float(wait) if wait.isascii() and wait.isdigit() else 0.0
    raise error


def _connected(path: str, seconds: float) -> socket.socket:
    """A connection to a daemon of our own uid or of root. Raises Unreachable, Limited, Untrusted."""
    directory = os.path.dirname(path)
    problem = _directory_problem(directory)
    if problem is not None and os.path.lexists(directory):
        raise Untrusted(f"{problem}; its control socket is not trusted")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _connect(connection, path, seconds)
        connection.settimeout(seconds)
        _, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (os.getuid(), 0):
            raise Untrusted(f"the daemon at {path} runs as uid {uid}; only one of our own uid or of root is trusted")
    except OSError as error:
        connection.close()
        if error.errno == errno.EAGAIN:  # unix(7): more wait to be accepted than its backlog holds
            message = f"the daemon at {path} has too many connections waiting; try again"
            raise Limited(message, "too_many_connections") from None
        raise Unreachable(f"no daemon answers at {path} ({error.strerror or error})") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(connection: socket.socket, path: str, seconds: float) -> None:
    """Connect; wait where its backlog is full, in the kernel's queue: a non-blocking socket would not (unix(7))."""
    deadline = time.monotonic() + seconds
    while True:
        left = max(0.001, deadline - time.monotonic())
        limit = struct.pack("ll", int(left), int(left % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connection.connect(path)
        try:
            connection.getpeername()
        except OSError as error:
            if error.errno != errno.ENOTCONN or time.monotonic() >= deadline:
                raise
            continue  # a signal came while it waited, which Python takes for a connection that goes on by itself
        return


def _send(connection: socket.socket, message: bytes, deadline: float) -> None:
    """Send it all. A daemon that refuses us hangs up at once, and has said why before: that can still be read."""
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    with suppress(BrokenPipeError):
        connection.sendall(message)


def _received(connection: socket.socket, *, first: bool) -> bytes:
    """The next piece, empty at the end. `first`: nothing came yet, so that a reset is a failure and no end."""
    try:
        return connection.recv(_CHUNK)
    except ConnectionResetError:
        if first:
            raise
        return b""


def _encoded(method: str, path: str, body: object) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: agent-watchdog\r\nConnection: close\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    try:
        content = json.dumps(body, allow_nan=False).encode()
    except ValueError as error:  # a number that has no JSON form
        raise BadRequest(str(error)) from None
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


def _bounded(seconds: float) -> float:
    """As a deadline that sockets take, also of `float("inf")`."""
    return min(max(0.001, seconds), _LONGEST)


def _path(path: str, query: dict[str, Any]) -> str:
    return f"{path}?{urllib.parse.urlencode(query)}" if query else path


def _quoted(agent: str) -> str:
    """A name, id or pid as a part of a path."""
    if not agent:
        raise BadRequest("an empty text names no agent")
    return urllib.parse.quote(agent, safe="", errors="replace")


def _given(body: dict[str, Any]) -> Json:
    return {key: value for key, value in body.items() if value is not None}


def _listed(targets: Targets) -> list[str]:
    return [targets] if isinstance(targets, str) else list(targets)


def _listed_or_all(targets: Targets | None) -> list[str]:
    """An empty list means all agents to the daemon; to a program that found none it does not."""
    if targets is None:
        return []
    listed = _listed(targets)
    if not listed:
        raise BadRequest("no target is given; None means all agents")
    return listed


def _one_line(value: object) -> str:
    return " ".join(str(value).split("\n"))
