"""Limits the number of concurrent helpers or hooks: in total, per user, and reserved for the daemon's own uid.

Without a free place a call waits until its deadline. Users who suspend the processes in their places keep the places
until the deadline; so each user may take only half of the free places, which always leaves some for the next user.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

KEPT = 8  # places only for the daemon's own uid: root's requests never wait for a user's hooks


class Vacancies:
    """`most` places, of which one user may take half of the free ones.

    `make_room` is called when a caller has to wait; `user_of` returns the user that a uid counts for.
    """

    def __init__(
        self, most: int, own: int, make_room: Callable[[], None], user_of: Callable[[int], int] = lambda uid: uid
    ) -> None:
        self._most = most
        self._own = own
        self._make_room = make_room
        self._user_of = user_of
        self._taken = Counter[int]()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def wanted(self) -> bool:
        """Whether a caller is waiting for a place."""
        return bool(self._waiting)

    @asynccontextmanager
    async def place(self, uid: int) -> AsyncIterator[None]:
        """Wait for a place and hold it inside the `async with` block."""
        await self.take(uid)
        try:
            yield
        finally:
            self.give_back(uid)

    async def take(self, uid: int) -> None:
        """Wait for a place and take it."""
        if self._is_free(uid):
            self._taken[uid] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((uid, turn))
        self._make_room()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # a place was given at the same moment
                self.give_back(uid)
            raise
        finally:
            self._waiting = [one for one in self._waiting if one[1] is not turn]

    def give_back(self, uid: int) -> None:
        """Free a place. The waiting user with the fewest places gets it, for the oldest call, if allowed to."""
        self._taken[uid] -= 1
        if self._taken[uid] <= 0:
            del self._taken[uid]
        free = [one for one in self._waiting if not one[1].done() and self._is_free(one[0])]
        if free:
            whose, turn = min(free, key=lambda one: self._users(one[0]))
            self._taken[whose] += 1
            turn.set_result(None)

    def _is_free(self, uid: int) -> bool:
        """Whether this uid may take a place; a user without any may take the last unreserved one."""
        free = self._most - self._taken.total()
        if uid == self._own:
            return free > 0
        free -= min(KEPT, self._most // 4)
        mine = self._users(uid)
        return free > 0 and (mine == 0 or mine < free)

    def _users(self, uid: int) -> int:
        """The number of places of the user that this uid counts for."""
        user = self._user_of(uid)
        return sum(count for one, count in self._taken.items() if self._user_of(one) == user)
