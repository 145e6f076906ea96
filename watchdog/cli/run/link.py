"""The wrapper's connection to the daemon: register, report the pid, pass beats on, report the end.

One request at a time, on a non-blocking connection; `step` does what can be done now. While no daemon answers, the last
beat is kept and everything is retried each second. If the daemon has forgotten us (404), we register again.

An agent belongs to the daemon that registered it: everything is sent to that one (`home`), even if another one is
started that would be found first. Only if no process has listened at its socket for AWAY_SECONDS is another daemon
asked to register it.
"""

import os
from _collections_abc import Callable
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, socket
from errno import ECONNREFUSED, ENOENT

from watchdog.client.client import check_peer, decode_json, encode_request, receive, split_response
from watchdog.client.sockets import directory_problem
from watchdog.core.sd_notify import Words, merge_words
from watchdog.errors import BadRequest, DaemonUnreachable, Forbidden, UnsafeDirectory, WatchdogError

RETRY_SECONDS = 1.0
FULL_RETRY_SECONDS = 0.1  # if its backlog is full: space frees up within milliseconds
AWAY_SECONDS = 10.0  # a restarted or upgraded daemon is back by then; a hanging one is alive, and is waited for
END_RETRY_SECONDS = 0.25  # for the report of the end, for which little time is left
LOOK_SECONDS = 5.0  # between two checks that the daemon's process lives, as a silent agent would not notice
MOST_THREADS = 64  # subagents whose start or end is kept: as many as the daemon knows
COALESCE_SECONDS = 0.5  # faster beats are merged
REFUSED_SECONDS = 60.0  # until a registration that was refused for a temporary reason is retried
ANSWER_SECONDS = 5.0  # the daemon's own limit for its first byte
REPLACE_SECONDS = 200.0  # for killing a former agent of the name and cleaning up after it
_ORDERED = (b'"ending"', b'"unkillable"')  # the status of an agent that an order is to end; found without `json`
_MINOR = ("beat", "thread", "channel")  # requests that the report of an end does not wait for


class Link:
    """What is still to be reported, and the request in flight. Times are CLOCK_MONOTONIC seconds."""

    def __init__(
        self,
        find: Callable[[], str],
        others: Callable[[], list[str]],
        watch: Callable[[int], None],
        body: dict[str, object],
    ) -> None:
        """`find` gives the control socket's path; called at each try until a daemon has registered the agent.

        `others`: sockets of other possible daemons. `watch` requests SIGIO for a descriptor.
        """
        self._find, self._others, self._watch, self._body = find, others, watch, body
        self.home: str | None = None  # the socket of the daemon that registered the agent
        self._asked = ""  # the socket of the current request
        self._away_since: float | None = None  # since when no daemon listens at `home`
        self._turn = 0  # number of tries to find another daemon meanwhile
        self._home_pid = 0  # the daemon's pid there
        self._looks_at = 0.0
        self._suspect = False  # that process has exited: its successor may not know our agent
        # Seconds to wait for the answer to a registration.
        self.patience = REPLACE_SECONDS if body.get("replace") else ANSWER_SECONDS
        self.agent_id = str(body["agent_id"])
        self.registered = False
        self.refusal: WatchdogError | None = None  # why the daemon refused the registration
        self.complaint: str | None = None  # other refused requests
        self._crossed = False  # a beat was refused because the agent has ended there: it may have died since
        self.unreachable: str | None = None  # why the last try failed; None: the daemon answered
        self.busy = False  # the daemon is there, but could not serve us
        self.knows_end = False  # it has acknowledged our agent's end
        self.end_ordered = False  # an order to end it was open by then, or its row was closed
        self._pid: int | None = None
        self._pid_told = False
        self._pid_sent = False  # sent with the registration
        self._perhaps = False  # the daemon may have registered us, or may still do so, without our knowing
        self._doubtful = False  # a registration may have arrived although its answer did not
        self._over = False  # the end was reported: nothing more is sent
        self._end: dict[str, object] | None = None
        self._word: Words | None = None  # not yet passed on
        self._said_at = 0.0
        self._sent: Words | None = None  # sent, not yet answered
        self._sent_at = 0.0  # when the agent sent it
        # Subagents: whether each is running, and when that was reported.
        self._threads: dict[str, tuple[bool, float]] = {}
        self._thread, self._said = "", (False, 0.0)  # the one in flight, and its state
        self._is_lost = False
        self._lost: bool | None = None  # whether its notify socket is gone; None: already reported
        self._not_before = 0.0
        self._beat_not_before = 0.0
        self._connection: socket | None = None
        self._kind = ""
        self._out = b""
        self._in = bytearray()
        self._deadline = 0.0

    def tell_pid(self, pid: int) -> None:
        """Report the agent's pid, before it executes its command."""
        self._pid = pid

    def tell_end(self, end: dict[str, object]) -> None:
        """Report the agent's end, with an `exit_code` or `exit_signal`. Nothing else matters then."""
        self._end = end
        self._word = None
        self._threads.clear()
        self._not_before = 0.0

    def hear(self, words: Words, now: float) -> None:
        """Queue a message of the agent. What it says about a subagent is kept separately, as there may be many."""
        thread, goes_on = words.get("thread"), words.get("goes_on")
        if thread is not None:
            words = {key: value for key, value in words.items() if key not in ("thread", "goes_on")}
            if goes_on is not None and (thread in self._threads or len(self._threads) < MOST_THREADS):
                self._threads[str(thread)] = bool(goes_on), now
        elif goes_on is False:
            self._threads.clear()
        self._word = words if self._word is None else merge_words(self._word, words, now - self._said_at)
        self._said_at = now

    def tell_lost(self, lost: bool) -> None:
        """Report that the agent's notify socket is gone and cannot be made again (or could): it cannot beat."""
        self._lost = self._is_lost = lost

    @property
    def owes(self) -> bool:
        """Whether only we can report the end: the daemon may have our agent, but no pid of it."""
        return self._end is not None and not self._pid_told and (self.registered or self._perhaps)

    @property
    def settled(self) -> bool:
        """Whether everything except beats was reported, or cannot be reported now."""
        if self._end is not None and (self.owes or self.busy):
            return self._connection is None and not self._next_kind()
        if self.refusal is not None or self.unreachable is not None:
            return True
        at_rest = self._connection is None or self._kind in _MINOR
        return at_rest and self._next_kind() in ("", *_MINOR)

    def next_step(self, now: float) -> float | None:
        """When `step` must be called even without an event on a descriptor; None: not needed."""
        if self._connection is not None:
            return self._deadline
        kind = self._next_kind()
        if not kind:
            return None
        return max(self._not_before, self._beat_not_before if kind == "beat" else 0.0, now)

    def step(self, now: float) -> None:
        """Do what can be done without waiting."""
        if now >= self._looks_at:
            self._looks_at = now + LOOK_SECONDS
            self._suspect = self._suspect or (self._home_pid > 0 and _has_ended(self._home_pid))
        for _ in range(4):  # register, pid, beat, end: answers may be there already
            if self._connection is None:
                due = self.next_step(now)
                if due is None or due > now:
                    return
                self._begin(self._next_kind(), now)
            if self._connection is not None and not self._advance(now):
                return

    def close(self) -> None:
        """Drop the request in flight."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _next_kind(self) -> str:
        if self._over:
            return ""
        if self._end is not None:  # its pid no longer matters
            return "end" if self.registered or self._perhaps else ""
        if not self.registered:
            return "register"
        if self._pid is not None and (self._suspect or not self._pid_told):
            return "pid"
        if self._lost is not None:
            return "channel"
        if self._word is not None:
            return "beat"
        return "thread" if self._threads else ""

    def _control(self, now: float) -> tuple[str, bool]:
        """The socket to use now, and whether it belongs to another daemon than the one that registered the agent."""
        usual = self.home or self._find()
        if self._end is None and self._away_since is not None and now - self._away_since >= AWAY_SECONDS:
            others = [path for path in self._others() if path != usual]
            self._turn += 1
            if others and self._turn % 2:
                return others[self._turn // 2 % len(others)], True
        return usual, False

    def _begin(self, kind: str, now: float) -> None:
        control, elsewhere = self._control(now)
        kind = "register" if elsewhere else kind
        self._asked, self._kind = control, kind
        path = f"/v1/agents/{self.agent_id}"
        if kind == "register":
            self._pid_sent = self._pid is not None
            body = {**self._body, "pid": self._pid} if self._pid_sent else self._body
            if elsewhere and self.home is not None:
                body = {**body, "taken_from": self.home}
            request = encode_request("POST", "/v1/agents", body)
        elif kind == "beat":
            assert self._word is not None
            self._sent, self._sent_at, self._word = self._word, self._said_at, None
            aged = {**self._sent, "age_seconds": round(now - self._sent_at, 3)}
            request = encode_request("POST", f"{path}/beat", aged)
        elif kind == "thread":
            self._thread = next(iter(self._threads))
            goes_on, said_at = self._threads[self._thread]
            told = {"thread": self._thread, "goes_on": goes_on, "promises": False}
            request = encode_request("POST", f"{path}/beat", {**told, "age_seconds": round(now - said_at, 3)})
            self._said = goes_on, said_at
        elif kind == "channel":
            request = encode_request("PATCH", path, {"channel_lost": self._lost})
        else:
            request = encode_request("PATCH", path, {"pid": self._pid} if kind == "pid" else self._end)
        self._out, self._in = request, bytearray()
        self._deadline = now + (self.patience if kind == "register" else ANSWER_SECONDS)
        connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK)
        try:
            problem = directory_problem(os.path.dirname(control))
            if problem is not None:
                raise UnsafeDirectory(problem)
            connection.connect(control)
            pid = check_peer(connection)
            self._watch(connection.fileno())
        except (OSError, UnsafeDirectory) as error:
            connection.close()
            if not elsewhere and self._away_since is None and _is_gone(control, error):
                self._away_since = now
            full = isinstance(error, BlockingIOError)  # its backlog is (unix(7))
            self._failed(str(error), now, busy=full)
            if full:
                self._not_before = now + FULL_RETRY_SECONDS
            return
        if not elsewhere:
            self._away_since, self._suspect, self._home_pid = None, False, pid
        self._connection = connection
        self._perhaps = self._perhaps or kind == "register"

    def _advance(self, now: float) -> bool:
        """Continue the request in flight; True when it has been answered or has failed."""
        assert self._connection is not None
        try:
            if self._out:
                try:
                    self._out = self._out[self._connection.send(self._out) :]
                except BrokenPipeError:
                    self._out = b""  # it refused us and has sent the reason
            while piece := receive(self._connection, first=not self._in):
                self._in += piece
            answer = split_response(bytes(self._in))
        except BlockingIOError:
            if now < self._deadline:
                return False
            self._failed("no answer in time", now)
            return True
        except (OSError, DaemonUnreachable) as error:
            self._failed(str(error), now)
            return True
        self.close()
        self._answered(*answer, now)
        return True

    def _failed(self, reason: str, now: float, *, busy: bool = False) -> None:
        self.close()
        self.unreachable, self.busy = reason, busy
        self._not_before = now + (RETRY_SECONDS if self._end is None else END_RETRY_SECONDS)
        if self._sent is not None:
            self._keep_sent()

    def _answered(self, status: int, content: bytes, now: float) -> None:
        # The answer to an accepted request is known already; not importing `json` saves 0.9 MB.
        refused = None
        if status >= 300:
            refused = str(decode_json(content).get("message", f"the daemon answered {status}"))
        if refused is not None and (status >= 500 or status == 429):
            self._failed(refused, now, busy=True)
            return
        if status == 404 and self._kind == "end" and self.owes:
            self._failed("it does not know this agent yet", now, busy=True)  # its row may be committed any moment
            return
        self.unreachable, self.busy = None, False
        if self._kind == "register":
            self._registration_answered(status, refused, now)
        elif status == 404 and self._kind in ("beat", "thread", "pid"):
            self._forgotten(now)
        elif status == 409 and self._kind == "beat" and not self._crossed:
            self._crossed = True  # if it beats again it is alive, which is worth a line
        elif refused is not None and self._kind != "channel":
            self.complaint = refused
        if self._kind == "beat":
            self._sent = None
            self._beat_not_before = now + COALESCE_SECONDS
        elif self._kind == "thread" and status != 404:
            if self._threads.get(self._thread) == self._said:  # nothing newer about it came meanwhile
                del self._threads[self._thread]
        elif self._kind == "pid" and status != 404:
            self._pid_told, self._doubtful = True, False
            self._lost = self._is_lost or None  # a daemon that hears from us takes the channel for restored
        elif self._kind == "channel":
            self._lost = None  # an older daemon does not know it: its own check must suffice
        elif self._kind == "end":
            self._end, self._over, self.knows_end = None, True, status != 404
            self.end_ordered = status == 404 or any(word in content for word in _ORDERED)

    def _registration_answered(self, status: int, refused: str | None, now: float) -> None:
        if refused is None:
            self.registered, self._pid_told, self.refusal = True, self._pid_sent, None
            self.home, self._away_since = self._asked, None
            self._lost = self._is_lost or None
        elif self.home not in (None, self._asked):
            self._not_before = now + RETRY_SECONDS  # the other daemon refuses it: it stays with the former one
        elif status == 409 and self._pid is not None and not self._doubtful:
            # It may be our own id, from a try whose answer was lost: the daemon's answer to the pid will show that.
            self.registered, self._pid_told, self._doubtful = True, False, True
            self.home = self._asked
        else:
            self._refuse(status, refused, now)

    def _forgotten(self, now: float) -> None:
        """404: the daemon does not know our agent (any more)."""
        self.registered = self._pid_told = self._perhaps = (
            False  # `home` stays: that daemon is alive and will register it again
        )
        if self._sent is not None:
            self._keep_sent()
        if self._doubtful:
            self._refuse(409, "another living agent has the name", now)

    def _refuse(self, status: int, message: str, now: float) -> None:
        kinds = {400: BadRequest, 403: Forbidden}
        self.refusal = kinds.get(status, WatchdogError)(message)
        self._not_before, self._doubtful, self._perhaps = now + REFUSED_SECONDS, False, False

    def _keep_sent(self) -> None:
        """The beat in flight did not arrive: merge it into the next one."""
        assert self._sent is not None
        if self._word is None:
            self._word, self._said_at = self._sent, self._sent_at
        else:
            self._word = merge_words(self._sent, self._word, self._said_at - self._sent_at)
        self._sent = None


def _is_gone(control: str, error: Exception) -> bool:
    """Whether no process listens there; a daemon that hangs or is temporarily unreachable may be alive."""
    if isinstance(error, UnsafeDirectory):
        return not os.path.lexists(os.path.dirname(control))
    return isinstance(error, OSError) and error.errno in (ECONNREFUSED, ENOENT)


def _has_ended(pid: int) -> bool:
    """Whether no process has that pid; works with hidepid too."""
    try:
        os.getpgid(pid)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
