"""How many helpers, or hooks, there may be at once: of all owners, of each, and what is kept for the daemon's own uid.

Where there is no place a call waits for one, with no limit of its own: its deadline ends that. Users that stop what
holds their places hold them until its deadline: so each may take half of those that are free, and whoever comes next
finds some, however many users have come before.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

KEPT = 8  # of the places that only the daemon's own uid takes: root's orders wait for no user's hooks


class Vacancies:
    """`most` places, of one user half of those that are free.

    `make_room` is called when one is waited for; `user_of` gives the user that a uid counts for.
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
        """Whether a caller waits for a place."""
        return bool(self._waiting)

    @asynccontextmanager
    async def place(self, uid: int) -> AsyncIterator[None]:
        """Wait for a place and hold it meanwhile."""
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
            if turn.done() and not turn.cancelled():  # it was given in the same moment
                self.give_back(uid)
            raise
        finally:
            self._waiting = [one for one in self._waiting if one[1] is not turn]

    def give_back(self, uid: int) -> None:
        """A place is free. Of those that may have it the owner with the fewest takes it, of its calls the eldest."""
        self._taken[uid] -= 1
        if self._taken[uid] <= 0:
            del self._taken[uid]
        free = [one for one in self._waiting if not one[1].done() and self._is_free(one[0])]
        if free:
            whose, turn = min(free, key=lambda one: self._users(one[0]))
            self._taken[whose] += 1
            turn.set_result(None)

    def _is_free(self, uid: int) -> bool:
        """Whether it may have one; a user without any may have the last one of those that are not kept."""
        free = self._most - self._taken.total()
        if uid == self._own:
            return free > 0
        free -= min(KEPT, self._most // 4)
        mine = self._users(uid)
        return free > 0 and (mine == 0 or mine < free)

    def _users(self, uid: int) -> int:
        """How many the user has that this uid counts for."""
        user = self._user_of(uid)
        return sum(count for one, count in self._taken.items() if self._user_of(one) == user)
