"""How many helpers, or hooks, there may be at once: of all owners, of each, and what is kept for the daemon's own uid.

Where there is no place a call waits for one, with no limit of its own: its deadline ends that.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

KEPT = 8  # of the places that only the daemon's own uid takes: root's orders wait for no user's hooks


class Vacancies:
    """`most` places, of one user half of them, of our own uid `of_own` (None: all).

    `make_room` is called when one is waited for; `user_of` gives the user that a uid counts for.
    """

    def __init__(
        self,
        most: int,
        own: int,
        make_room: Callable[[], None],
        user_of: Callable[[int], int] = lambda uid: uid,
        of_own: int | None = None,
    ) -> None:
        self._most = most
        self._own = own
        self._of_own = most if of_own is None else of_own
        self._make_room = make_room
        self._user_of = user_of
        self._taken = Counter[int]()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for a place."""
        return bool(self._waiting)

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
        """Each user but our own may have half of what is not kept for ours."""
        most = self._most if uid == self._own else self._most - min(KEPT, self._most // 4)
        return self._taken.total() < most and self._users(uid) < (self._of_own if uid == self._own else self._most // 2)

    def _users(self, uid: int) -> int:
        """How many the user has for whom this uid counts."""
        user = self._user_of(uid)
        return sum(count for one, count in self._taken.items() if self._user_of(one) == user)
