"""Lanes: for which user a task of the event loop works, and queues in which no user waits behind another's backlog.

The daemon's own work, root's and the admins' orders go first; users take turns behind them. A handler of the control
socket sets its lane, and the tasks that it starts inherit it (contextvars, PEP 567): so do the writes of an order.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Lane:
    """For which user work is done. If root orders the same, it leaves that user's lane: `user` becomes None."""

    __slots__ = ("user",)

    def __init__(self, user: int | None = None) -> None:
        """`user`: its uid; None: for the daemon itself, root or an admin."""
        self.user = user

    def leave(self) -> None:
        """From now on the work is the daemon's own."""
        self.user = None


FIRST = Lane()
_LANE: ContextVar[Lane] = ContextVar("lane", default=FIRST)


def lane() -> Lane:
    """The lane of the running task."""
    return _LANE.get()


def enter(entered: Lane) -> None:
    """The running task, and what it starts from now on, works in that lane."""
    _LANE.set(entered)


@asynccontextmanager
async def in_lane(entered: Lane) -> AsyncIterator[None]:
    """The same for as long as the body runs."""
    token = _LANE.set(entered)
    try:
        yield
    finally:
        _LANE.reset(token)


class Lanes(Generic[T]):
    """A queue between threads: what is ours comes out first, in its order; then one of each user's in turn."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._first: deque[T] = deque()
        self._users: dict[int, deque[T]] = {}  # in the order of their turns
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, item: T) -> int:
        """Queue it in the lane of the running task; how many wait now."""
        user = lane().user
        with self._lock:
            queue = self._first if user is None else self._users.setdefault(user, deque())
            queue.append(item)
            self._count += 1
            return self._count

    def take(self, most: int, of_users: int) -> list[T]:
        """The next ones: `most` of ours at most, and with them no more than `of_users` of users."""
        with self._lock:
            taken = [self._first.popleft() for _ in range(min(most, len(self._first)))]
            while self._users and len(taken) < most and of_users > 0:
                taken.append(_first_of(self._users, next(iter(self._users))))
                of_users -= 1
            self._count -= len(taken)
            return taken


class Turns:
    """Limits how many run at once (`most`), and how many for one user (`share`).

    Of the users that wait, the one with the fewest running comes next.
    """

    def __init__(self, most: int, share: int) -> None:
        self._most = most
        self._share = share
        self._running: Counter[int] = Counter()
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, user: int | None) -> AsyncIterator[None]:
        """Run the body in a turn of that user, once there is one. None: at once, and it does not count."""
        if user is None:
            yield
            return
        if self._free(user) and not self._waiting.get(user):
            self._running[user] += 1
        else:
            await self._wait(user)
        try:
            yield
        finally:
            self._leave(user)

    def _free(self, user: int) -> bool:
        return self._running.total() < self._most and self._running[user] < self._share

    async def _wait(self, user: int) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # its turn came at the same moment
                self._leave(user)
            else:
                self._forget(user, mine)
            raise

    def _forget(self, user: int, mine: "asyncio.Future[None]") -> None:
        queue = self._waiting.get(user, deque())
        if mine in queue:  # else its turn was passed on already
            queue.remove(mine)
        if not queue:
            self._waiting.pop(user, None)

    def _leave(self, user: int) -> None:
        self._running[user] -= 1
        if not self._running[user]:
            del self._running[user]
        while ready := [one for one in self._waiting if self._free(one)]:
            chosen = min(ready, key=lambda one: self._running[one])  # of equals who waits the longest
            future = _first_of(self._waiting, chosen)
            if not future.done():
                self._running[chosen] += 1
                future.set_result(None)


class Pace:
    """Lets one request of a user begin in each round of the event loop, users in turn; the others wait for theirs.

    However many ask at once, what is ours waits for one beginning of theirs in a round and not for all of them.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}  # in the order of their turns
        self._begun = False  # one has begun in this round

    async def begin(self, user: int) -> None:
        """Wait for the turn of a request of that user."""
        loop = asyncio.get_running_loop()
        if not self._begun:
            self._begun = True
            loop.call_soon(self._next)
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        await turn

    def _next(self) -> None:
        while self._waiting:
            turn = _first_of(self._waiting, next(iter(self._waiting)))
            if not turn.done():  # else its client has gone
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._next)
                return
        self._begun = False


def _first_of(queues: dict[int, deque[T]], user: int) -> T:
    """Take the first of a user's, who stands behind the others then. `queues`: in the order of their turns."""
    queue = queues.pop(user)
    first = queue.popleft()
    if queue:
        queues[user] = queue
    return first
