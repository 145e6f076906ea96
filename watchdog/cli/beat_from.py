"""`agent-watchdog beat --from VENDOR`: turns one event of a vendor hook into a beat of the agent that the hook runs in.

1. Read the event, JSON on stdin. Anything else is ignored.
2. Find the vendor's process among our ancestors. If there is none, the agent whose marker we carry is meant, provided
   that its main process started us, with at most launchers in between; else there is no beat, and that agent's `why`
   says so.
3. Beat; an agent that the daemon does not know is registered first.
4. If the daemon asks for it, print the answer that stops the agent, and nothing else: vendors read stdout.

An agent waits for its hook, so the daemon gets 0.05 s to answer, 0.5 s when a session begins, or twice the time that we
took to start if that is more, as the machine is busy then. A beat without an answer still counts: a daemon that wakes
later reads what was sent (tried with a stopped one).
"""

import os
import select
import time

from watchdog.cli.beat import complain, told
from watchdog.client.client import request
from watchdog.client.sockets import find_socket
from watchdog.core.names import is_socket_of
from watchdog.core.sd_notify import Words
from watchdog.core.services import service_of, works_for_many
from watchdog.core.vendor_hooks import (
    RESTS,
    Event,
    begins,
    ends_turn,
    event_name,
    kind_of,
    session_of,
    stop_answer,
    words_of_event,
)
from watchdog.core.vendors import VENDORS, agent_name, is_called, is_launcher, runs_as
from watchdog.errors import BadRequest, DaemonUnreachable

Process = tuple[int, str, list[str], str]  # pid, comm, start of its command line, its program's path

_ANSWER_SECONDS = 0.05
_REGISTER_SECONDS = 0.5  # once per session: the daemon commits a row
_STDIN_SECONDS = 1.0
_STDIN_BYTES = 16 << 20  # an event contains a tool's whole output
_WRAPPER = "agent-watchdog"  # comm of `run` (cli.run.prctl)
_DEPTH = 64  # ancestors


def beat(vendor: str, socket_path: str | None) -> None:
    """Send the beat for one event. Raises BadRequest for an unknown vendor; other errors are only printed."""
    if vendor not in VENDORS:
        raise BadRequest(f"--from {vendor}: must be one of {', '.join(VENDORS)}")
    try:
        event = _event()
        chain = ancestors()
        speech = _Speech(vendor, event, chain, find_socket(socket_path))
        stop = speech.speak()
        answer = None if stop is None else stop_answer(vendor, event, stop)
        if answer is not None:
            import json

            os.write(1, json.dumps(answer).encode() + b"\n")
            if ends_turn(event, answer):
                speech.rest()
    except Exception as error:  # noqa: BLE001 - a failed event must not disturb its agent
        complain(error)
    except KeyboardInterrupt:  # the terminal sends it to the whole group, so the agent got it too
        pass


_ELSEWHERE = 421  # another daemon watches it, and this one forwards our beat


class _Speech:
    """One event: finds its agent and sends the beat."""

    def __init__(self, vendor: str, event: Event, chain: list[Process], socket_path: str) -> None:
        self._vendor = vendor
        self._event = event
        self._chain = chain
        place = find(vendor, chain)
        self._found = place is not None
        self._place = 0 if place is None else place
        self._spoke_for: tuple[str, bool] | None = None  # the agent of the beat, and whether as its main process
        self._socket = socket_path
        own = os.environ.get("AGENT_WATCHDOG_ID", "")
        self._own = own if own.isascii() and own.isalnum() else ""
        self._patience = max(_REGISTER_SECONDS if begins(vendor, event) else _ANSWER_SECONDS, 2 * _age())

    def speak(self) -> str | None:
        """Beat for the agent; return the reason why it is to stop, or None. Raises WatchdogError.

        The agent is the one whose `run` started the program, directly or by a script; else the one whose main process
        it is; else one that registered its shell; else a new one, as a child of the agent that it runs in.
        """
        if not self._found:
            return self._speak_by_marker()
        if works_for_many(*self._chain[self._place][2:]):
            return self._speak_for_session()
        pid = self._chain[self._place][0]
        self._below_a_service()
        main = self._main_of_run() if self._own else None
        if main is not None:
            return self._stop(*self._beat(self._own, main=main == pid))
        status, answer = self._beat(str(pid), main=True)
        if status != 404:
            return self._stop(status, answer)
        parent = None
        if self._own:
            status, answer = self._ask("GET", f"/v1/agents/{self._own}", None, _REGISTER_SECONDS)
            agent = answer.get("agent")
            around = agent if status == 200 and isinstance(agent, dict) else {}
            if around.get("pid") in self._launchers():
                return self._stop(*self._beat(self._own, main=False))
            parent = self._own if around.get("status") in ("starting", "running") else None
        self._register(pid, [*self._outer(), *([parent] if parent else []), None])
        return self._stop(*self._beat(str(pid), main=True))

    def rest(self) -> None:
        """Report that our answer ended the turn, as no other hook will. Raises WatchdogError."""
        if self._spoke_for is not None:
            self._beat(*self._spoke_for, words=dict(RESTS))

    def _speak_by_marker(self) -> str | None:
        """Beat for the agent that we run in, if only launchers are between its main process and us.

        Then that process called the hook, whatever its program is named: a script, a build of its own. Raises
        BadRequest if another program is in between, or the daemon does not know the agent.
        """
        unknown = f"no ancestor of this process is {self._vendor}"
        if not self._own:
            raise BadRequest(f"{unknown}; nothing is reported")
        status, answer = self._ask("GET", f"/v1/agents/{self._own}", None, _REGISTER_SECONDS)
        agent = answer.get("agent")
        main = agent.get("pid") if status == 200 and isinstance(agent, dict) else None
        above = next((place for place, one in enumerate(self._chain) if one[0] == main), None)
        below = () if above is None else self._chain[:above]
        if above is not None and all(is_launcher(argv) for _, _, argv, _ in below):
            return self._stop(*self._beat(self._own, main=is_called(self._vendor, self._chain[above][2])))
        if main is not None:
            why = f"a hook of {self._vendor} ran in it, but {unknown}: its report is ignored"
            self._ask("POST", f"/v1/agents/{self._own}/beat", {"unheard": why}, self._patience)
        raise BadRequest(f"{unknown}; nothing is reported")

    def _below_a_service(self) -> None:
        """Forget the ancestors and the marker of a shared service: they say nothing about what runs below it."""
        for number, (_, _, argv, program) in enumerate(self._chain):
            if number > self._place and service_of(argv, program) is not None:
                between = self._chain[self._place + 1 : number]
                self._own = self._own if any(comm == _WRAPPER for _, comm, _, _ in between) else ""
                self._chain = self._chain[:number]
                return

    def _speak_for_session(self) -> str | None:
        """The same for a shared service: the daemon knows which agent this session belongs to.

        The marker is that of the agent that started the service first, and means nothing here.
        """
        session = self._event.get("session_id")
        words = words_of_event(self._vendor, self._event, dict(os.environ), main=False)
        if not isinstance(session, str) or not session or words is None:
            return None
        cwd = self._event.get("cwd")
        kind = kind_of(self._vendor, self._event)
        body = {
            "session": session[:128],
            "pid": self._chain[self._place][0],
            "type": self._vendor,
            "cwd": cwd if isinstance(cwd, str) else "",
            "fresh": kind == "start" and self._event.get("source") == "startup",
            "begins": kind in ("start", "prompt") and not self._event.get("agent_id"),
            "beat": {**words, **session_of(self._vendor, self._event), "type": self._vendor},
        }
        return self._stop(*self._ask("POST", "/v1/sessions/beat", body, self._patience))

    def _launchers(self) -> list[int]:
        """The launchers directly above the program, nearest first."""
        found = []
        for pid, comm, argv, _ in self._chain[self._place + 1 :]:
            if comm == _WRAPPER or not is_launcher(argv):
                break
            found.append(pid)
        return found

    def _main_of_run(self) -> int | None:
        """The main process of the `run` that started the program: itself, or the script around it."""
        chain = [self._chain[self._place][0], *self._launchers()]
        above = self._place + len(chain)
        return chain[-1] if above < len(self._chain) and self._chain[above][1] == _WRAPPER else None

    def _outer(self) -> list[str]:
        """The pid of the vendor's program in which this one runs: without a `run` it has no marker to pass on."""
        for pid, _, argv, program in self._chain[self._place + 1 :]:
            if any(runs_as(vendor, argv, program) for vendor in VENDORS):
                return [str(pid)]
        return []

    def _register(self, pid: int, parents: list[str | None]) -> None:
        """Register it as a child of the first of these that the daemon knows.

        It may be registered already: hooks of parallel tools run concurrently.
        """
        cwd = self._event.get("cwd")
        body: dict[str, object] = {
            "name": agent_name(self._vendor, cwd if isinstance(cwd, str) else "", pid),
            "pid": pid,
            "type": self._vendor,
            "source": "hook",
        }
        for parent in parents:
            named = body if parent is None else {**body, "parent": parent}
            status, answer = self._ask("POST", "/v1/agents", named, _REGISTER_SECONDS)
            if status not in (400, 403):
                break
        if status not in (200, 201, 409, _ELSEWHERE):
            raise BadRequest(f"it was not registered: {answer.get('message', status)}")

    def _beat(self, target: str, main: bool, words: Words | None = None) -> tuple[int, dict[str, object]]:
        self._spoke_for = target, main
        if words is None:
            words = words_of_event(self._vendor, self._event, dict(os.environ), main=main)
        if words is None:
            return 204, {}
        try:
            body = {
                **words,
                **session_of(self._vendor, self._event),
                "type": self._vendor,
            }  # for a `run` of a script without a type
            return self._ask("POST", f"/v1/agents/{target}/beat", body, self._patience)
        except DaemonUnreachable:
            notify, fields = os.environ.get("NOTIFY_SOCKET", ""), _fields(words)
            if (
                fields
                and target == self._own
                and is_socket_of(notify, target)
                and told(notify, fields, _ANSWER_SECONDS)
            ):
                return 204, {}  # its `run` got it, and passes it on
            raise

    def _ask(self, method: str, path: str, body: object, seconds: float) -> tuple[int, dict[str, object]]:
        return request(method, path, body, socket_path=self._socket, timeout=seconds)

    @staticmethod
    def _stop(status: int, answer: dict[str, object]) -> str | None:
        if status >= 300:
            raise BadRequest(f"the beat was refused: {answer.get('message', status)}")
        stop = answer.get("stop")
        return str(stop.get("reason") or "asked to stop") if isinstance(stop, dict) else None


def _fields(words: Words) -> dict[str, str]:
    """The words as sd_notify fields, for a `run`."""
    keys = {
        "state": "X_AGENT_STATE",
        "tool": "X_AGENT_TOOL",
        "tool_limit_seconds": "X_AGENT_TOOL_LIMIT",
        "note": "X_AGENT_NOTE",
        "thread": "X_AGENT_THREAD",
    }
    fields = {name: str(words[key]) for key, name in keys.items() if key in words}
    if "goes_on" in words:
        fields["X_AGENT_GOES_ON"] = "1" if words["goes_on"] else "0"
    if words.get("promises") is False:
        fields["X_AGENT_SIGN"] = "1"
    return fields


def ancestors() -> list[Process]:
    """Our ancestors, nearest first, up to pid 1 or one that is not visible (proc(5))."""
    found: list[Process] = []
    pid = os.getppid()
    while pid > 1 and len(found) < _DEPTH:
        try:
            stat = _read(f"/proc/{pid}/stat")
            words = _read(f"/proc/{pid}/cmdline").split("\0")
            program = os.readlink(f"/proc/{pid}/exe")
        except OSError:
            break
        comm, _, rest = stat.partition("(")[2].rpartition(")")
        found.append((pid, comm, [word for word in words if word][:8], program))
        pid = int(rest.split()[1])
    return found


def find(vendor: str, chain: list[Process]) -> int | None:
    """The index of the vendor's process in the chain: the nearest one, or the script that only starts it."""
    for place, (_, _, argv, program) in enumerate(chain):
        if runs_as(vendor, argv, program) is None:
            continue
        while place + 1 < len(chain) and runs_as(vendor, chain[place + 1][2], chain[place + 1][3]) == "script":
            place += 1
        return place
    return None


def _age() -> float:
    """Seconds since we were started, at most 1; 0.03 on an idle machine."""
    started = int(_read("/proc/self/stat").rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return min(1.0, max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started))


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def _event() -> Event:
    """The JSON object on stdin. Raises BadRequest for anything else, also if none comes."""
    import json

    if os.isatty(0):
        raise BadRequest("--from: reads the event of a vendor hook on stdin, JSON as the vendor documents it")
    received, deadline = bytearray(), time.monotonic() + _STDIN_SECONDS
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while len(received) < _STDIN_BYTES and poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        piece = os.read(0, 1 << 20)
        if not piece:
            break
        received += piece
    if len(received) >= _STDIN_BYTES:
        return {"hook_event_name": "too long to be read"}  # an unknown event: a sign of life
    try:
        event = json.loads(bytes(received).decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"--from: the input on stdin is not an event: {error}") from None
    if not isinstance(event, dict) or not event_name(event):
        raise BadRequest('--from: the input on stdin has no "hook_event_name"')
    return event
