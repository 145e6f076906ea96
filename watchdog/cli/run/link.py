"""The wrapper's conversation with the daemon: register, tell the pid, pass beats on, report the end.

One request at a time, on a connection that never blocks; `step` does what can be done now. While no daemon answers, the
last word is kept and everything is tried again each second. The daemon forgets us (404): we register again.

An agent belongs to the daemon that took it in: all is told to that one (`home`), also when another one is started that
would be found first. Only when no process has listened at its socket for AWAY_SECONDS is another daemon asked to
register it.
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
FULL_RETRY_SECONDS = 0.1  # its backlog is full: room in it comes and goes within milliseconds
AWAY_SECONDS = 10.0  # a daemon that is restarted or upgraded is back by then; one that hangs lives, and is waited for
END_RETRY_SECONDS = 0.25  # how it ended: little time is left to tell it
LOOK_SECONDS = 5.0  # between two looks at whether the daemon's process lives: an agent that says nothing has a home
MOST_THREADS = 64  # subagents of which it is kept that they began or ended: as many as the daemon knows
COALESCE_SECONDS = 0.5  # beats that come faster are passed on as one
REFUSED_SECONDS = 60.0  # until registering is tried again where it was refused for a reason that may pass
ANSWER_SECONDS = 5.0  # the daemon's own limit for its first byte
REPLACE_SECONDS = 200.0  # that a former agent of the name may take to be ended and cleaned up after
_ORDERED = (b'"ending"', b'"unkillable"')  # the status of an agent that an order is to end; found without `json`
_MINOR = ("beat", "thread", "channel")  # what an end does not wait for


class Link:
    """What is still to be reported, and the one request that is on its way. Times are CLOCK_MONOTONIC seconds."""

    def __init__(
        self,
        find: Callable[[], str],
        others: Callable[[], list[str]],
        watch: Callable[[int], None],
        body: dict[str, object],
    ) -> None:
        """`find` gives the control socket's path, again at each try until a daemon has registered the agent.

        `others`: where another daemon may listen. `watch` asks for SIGIO on a descriptor.
        """
        self._find, self._others, self._watch, self._body = find, others, watch, body
        self.home: str | None = None  # the socket of the daemon that took the agent in
        self._asked = ""  # the socket that the present request goes to
        self._away_since: float | None = None  # since when no daemon listens at its socket
        self._turn = 0  # tries to find another daemon meanwhile
        self._home_pid = 0  # the daemon's process there
        self._looks_at = 0.0
        self._suspect = False  # it has ended: its successor may know nothing of our agent
        self.patience = REPLACE_SECONDS if body.get("replace") else ANSWER_SECONDS  # with the answer to registering
        self.agent_id = str(body["agent_id"])
        self.registered = False
        self.refusal: WatchdogError | None = None  # why the daemon does not take us
        self.complaint: str | None = None  # what else it did not take
        self._crossed = False  # a word met an agent that is ended there: it may have died since it spoke
        self.unreachable: str | None = None  # why the last try failed; None when the daemon answered
        self.busy = False  # it is there, but could not serve us
        self.knows_end = False  # it has answered to how our agent ended
        self.end_ordered = False  # an order to end it was open by then, or its row was closed
        self._pid: int | None = None
        self._pid_told = False
        self._pid_sent = False  # with the registration
        self._perhaps = False  # the daemon may have taken us in, or may still do so, without our knowing
        self._doubtful = False  # a registration of ours may have arrived although its answer did not
        self._over = False  # its end was reported: nothing more is to be sent
        self._end: dict[str, object] | None = None
        self._word: Words | None = None  # not yet passed on
        self._said_at = 0.0
        self._sent: Words | None = None  # passed on, not yet answered
        self._sent_at = 0.0  # when it was said
        self._threads: dict[str, tuple[bool, float]] = {}  # subagents: whether each goes on, and when that was said
        self._thread, self._said = "", (False, 0.0)  # which of them is on its way, and as what
        self._is_lost = False
        self._lost: bool | None = None  # whether its notify socket is gone; None: as was reported to the daemon
        self._not_before = 0.0
        self._beat_not_before = 0.0
        self._connection: socket | None = None
        self._kind = ""
        self._out = b""
        self._in = bytearray()
        self._deadline = 0.0

    def tell_pid(self, pid: int) -> None:
        """The agent has been started; before it executes its command."""
        self._pid = pid

    def tell_end(self, end: dict[str, object]) -> None:
        """The agent has ended, with an `exit_code` or by an `exit_signal`. Nothing else matters any more."""
        self._end = end
        self._word = None
        self._threads.clear()
        self._not_before = 0.0

    def hear(self, words: Words, now: float) -> None:
        """A message of the agent, to be passed on. What it says of a subagent is kept separately: there may be many."""
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
        """The agent's notify socket is gone and cannot be made again (or could): its silence is not its own."""
        self._lost = self._is_lost = lost

    @property
    def owes(self) -> bool:
        """Whether only we can report the end to the daemon: it may have our agent, and has no pid of it."""
        return self._end is not None and not self._pid_told and (self.registered or self._perhaps)

    @property
    def settled(self) -> bool:
        """Whether all but beats was reported, or cannot be reported now."""
        if self._end is not None and (self.owes or self.busy):
            return self._connection is None and not self._next_kind()
        if self.refusal is not None or self.unreachable is not None:
            return True
        at_rest = self._connection is None or self._kind in _MINOR
        return at_rest and self._next_kind() in ("", *_MINOR)

    def next_step(self, now: float) -> float | None:
        """When `step` has to be called without being woken by a descriptor; None: no need."""
        if self._connection is not None:
            return self._deadline
        kind = self._next_kind()
        if not kind:
            return None
        return max(self._not_before, self._beat_not_before if kind == "beat" else 0.0, now)

    def step(self, now: float) -> None:
        """Do what can be done now without waiting."""
        if now >= self._looks_at:
            self._looks_at = now + LOOK_SECONDS
            self._suspect = self._suspect or (self._home_pid > 0 and _has_ended(self._home_pid))
        for _ in range(4):  # register, pid, beat, end: answers may be there at once
            if self._connection is None:
                due = self.next_step(now)
                if due is None or due > now:
                    return
                self._begin(self._next_kind(), now)
            if self._connection is not None and not self._advance(now):
                return

    def close(self) -> None:
        """Drop what is on its way."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _next_kind(self) -> str:
        if self._over:
            return ""
        if self._end is not None:  # its pid means nothing any more
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
        """The socket to speak to now, and whether that is another daemon's than the one that took the agent in."""
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
        """Go on with the request that is on its way; True when it has been answered or has failed."""
        assert self._connection is not None
        try:
            if self._out:
                try:
                    self._out = self._out[self._connection.send(self._out) :]
                except BrokenPipeError:
                    self._out = b""  # it refused us and has said why
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
        # What an accepted request answers is known to us already; not to need `json` saves 0.9 MB.
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
            self._crossed = True  # one that speaks again lives, and that is worth a line
        elif refused is not None and self._kind != "channel":
            self.complaint = refused
        if self._kind == "beat":
            self._sent = None
            self._beat_not_before = now + COALESCE_SECONDS
        elif self._kind == "thread" and status != 404:
            if self._threads.get(self._thread) == self._said:  # nothing newer of it came meanwhile
                del self._threads[self._thread]
        elif self._kind == "pid" and status != 404:
            self._pid_told, self._doubtful = True, False
            self._lost = self._is_lost or None  # a daemon that hears of us takes the channel for found
        elif self._kind == "channel":
            self._lost = None  # an older daemon does not understand it: then its own look has to do
        elif self._kind == "end":
            self._end, self._over, self.knows_end = None, True, status != 404
            self.end_ordered = status == 404 or any(word in content for word in _ORDERED)

    def _registration_answered(self, status: int, refused: str | None, now: float) -> None:
        if refused is None:
            self.registered, self._pid_told, self.refusal = True, self._pid_sent, None
            self.home, self._away_since = self._asked, None
            self._lost = self._is_lost or None
        elif self.home not in (None, self._asked):
            self._not_before = now + RETRY_SECONDS  # another daemon does not take it: it stays whose it was
        elif status == 409 and self._pid is not None and not self._doubtful:
            # Our own id, from a try whose answer was lost? The daemon says so when it gets the pid.
            self.registered, self._pid_told, self._doubtful = True, False, True
            self.home = self._asked
        else:
            self._refuse(status, refused, now)

    def _forgotten(self, now: float) -> None:
        """404: the daemon does not know our agent (any more)."""
        self.registered = self._pid_told = self._perhaps = False  # `home` stays: that daemon lives, and takes it again
        if self._sent is not None:
            self._keep_sent()
        if self._doubtful:
            self._refuse(409, "another living agent has the name", now)

    def _refuse(self, status: int, message: str, now: float) -> None:
        kinds = {400: BadRequest, 403: Forbidden}
        self.refusal = kinds.get(status, WatchdogError)(message)
        self._not_before, self._doubtful, self._perhaps = now + REFUSED_SECONDS, False, False

    def _keep_sent(self) -> None:
        """What was on its way has not arrived: it becomes the beginning of the next word."""
        assert self._sent is not None
        if self._word is None:
            self._word, self._said_at = self._sent, self._sent_at
        else:
            self._word = merge_words(self._sent, self._word, self._said_at - self._sent_at)
        self._sent = None


def _is_gone(control: str, error: Exception) -> bool:
    """Whether no process listens there; a daemon that hangs, or that we may not reach just now, may live."""
    if isinstance(error, UnsafeDirectory):
        return not os.path.lexists(os.path.dirname(control))
    return isinstance(error, OSError) and error.errno in (ECONNREFUSED, ENOENT)


def _has_ended(pid: int) -> bool:
    """Whether no process has that number (any more); works under hidepid, too."""
    try:
        os.getpgid(pid)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
