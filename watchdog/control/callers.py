"""What is kept of callers: what their requests cost, whose turn it is, refusals that were logged, their sessions."""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from watchdog.agents.admission import Admission
from watchdog.agents.history import EventRecorder
from watchdog.clock import Clock
from watchdog.concurrency.lanes import Pace, Turns, lane
from watchdog.control.peers import too_often
from watchdog.core.admission import PER_TARGET, PER_TOKEN, SCAN, WAIT, LimitKind
from watchdog.core.peer import Peer
from watchdog.telemetry.metrics import Metrics

HELPERS = 16  # that run at once for requests of users, one of each user; 13 MB each
MOST_TALKS = 1024  # sessions that are remembered
DENIED_EVERY = 60.0  # seconds between two log lines about one uid and route


@dataclass(frozen=True, slots=True)
class Talk:
    """What is known of a session in a shared service: which agent it is, and which agents it may belong to."""

    agent_id: str
    perhaps: tuple[str, ...] = ()


@dataclass(eq=False, slots=True)
class Callers:
    """Users share the control socket; root and the admins pay nothing and never wait their turn."""

    admission: Admission
    metrics: Metrics
    recorder: EventRecorder
    clock: Clock
    talks: dict[tuple[int, str, int, int], Talk] = field(default_factory=dict)  # by uid, session, and its service
    _pace: Pace = field(default_factory=Pace)  # in which users' requests begin
    _helping: Turns = field(default_factory=lambda: Turns(HELPERS, 1))  # requests for which a helper is started
    _purging: WeakValueDictionary[int, asyncio.Lock] = field(default_factory=WeakValueDictionary)  # by owner
    _denied: dict[tuple[int, str], float] = field(default_factory=dict)  # when a refusal was last logged

    def remember(self, key: tuple[int, str, int, int], talk: Talk) -> None:
        """Remember the agent of a session. If there are too many, the one known for longest is forgotten."""
        self.talks[key] = talk
        while len(self.talks) > MOST_TALKS:
            del self.talks[next(iter(self.talks))]

    async def begin(self, user: int) -> None:
        """Wait for the turn of a request of that user."""
        await self._pace.begin(user)

    def with_helper(self) -> AbstractAsyncContextManager[None]:
        """Hold a turn of the user in whose lane this runs, while a helper works for its request."""
        return self._helping.turn(lane().user)

    def purge_of(self, owner_uid: int) -> asyncio.Lock:
        """To be held while something of that owner's is purged."""
        return self._purging.setdefault(owner_uid, asyncio.Lock())

    def charge_answer(self, peer: Peer, size: int) -> float:
        """Charge its user for an answer of `size` bytes; seconds until that is paid."""
        return 0.0 if peer.admin else self.admission.charge(peer.uid, size / PER_TOKEN)

    def charge(self, peer: Peer, act: str, targets: int) -> None:
        """Take the tokens for the targets of one request; the first is paid for with the request."""
        if targets > 1 and not peer.admin:
            self.admission.charge(peer.uid, PER_TARGET[act] * (targets - 1))

    def charge_scan(self, peer: Peer) -> None:
        """Take the tokens for one more look at every tree."""
        if not peer.admin:
            self.admission.charge(peer.uid, SCAN)

    def charge_named(self, peer: Peer, targets: int) -> None:
        """The same for words before they are looked up. Raises Limited for a user that owes too much already.

        Too much is more than a request may wait for: what `Admission.take` let in gets through, however many came with
        it.
        """
        if targets > 1 and not peer.admin:
            seconds = self.admission.owes(peer.uid)
            if seconds > WAIT:
                self.admission.refused(peer.uid, LimitKind.REQUESTS)
                raise too_often(peer.uid, self.admission.user_of(peer.uid), seconds)
            self.charge(peer, "named", targets)

    def deny(self, peer: Peer, route: str, why: str) -> None:
        """Report that a request was refused: counted always, one line per uid and route a minute."""
        route = route.removeprefix("/v1")
        key = (peer.uid, "/".join(route.split("/")[:2]))
        self.metrics.denied.labels(route=key[1]).inc()
        now = self.clock.mono()
        if now - self._denied.get(key, float("-inf")) < DENIED_EVERY:
            return
        if len(self._denied) > 1000:
            self._denied.clear()
        self._denied[key] = now
        self.recorder.event("control.denied", uid=peer.uid, pid=peer.pid, route=key[1], why=why)
