"""Whether another uid's process uses an agent's directory: root's daemon checks before an owner's hook removes it.

The owner's helper names the directory, and root's reader checks all processes (`processes.occupants`), with one scan
for all callers that wait. The helper's answer is the owner's, so it can only keep or harm the owner's own directory. A
directory that cannot be checked counts as used. A user's daemon sees no more than that user's helper, so it skips this.
"""

import asyncio
import os
from typing import Any

from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.processes.bounded import LookFailed
from watchdog.processes.occupants import OccupiedPlace, users_of
from watchdog.processes.reader import awaited

ANSWER = 10.0  # seconds for the helper's answer
AGAIN = 0.3  # seconds until the processes found are checked again: most are exiting


class Occupancy:
    """Answers such questions, with one scan at a time."""

    def __init__(self, helpers: HelperPool) -> None:
        self._helpers = helpers
        self._asked: dict[OccupiedPlace, asyncio.Future[str | None]] = {}
        self._scan: asyncio.Task[None] | None = None

    async def user_of(self, owner: int, path: str | None, *, by_name: bool = False) -> str | None:
        """Describe a process of another uid that uses the owner's directory `path`; `by_name`: also by its environment.

        None when there is none, when nothing is at that path, or when the daemon does not run as root.
        """
        if path is None or os.geteuid() != 0:
            return None
        try:
            place = _place(owner, await self._helpers.call(owner, "place", {"path": path}, ANSWER), by_name)
        except (OwnerCallFailed, KeyError, TypeError, ValueError) as error:
            return f"whether it is in use cannot be determined: {error}"
        if place is None:
            return None
        user = await self._look(place)
        if user is not None:
            await asyncio.sleep(AGAIN)
            user = await self._look(place)
        return user

    async def _look(self, place: OccupiedPlace) -> str | None:
        """The answer of a scan that begins after this question."""
        if place not in self._asked:
            self._asked[place] = asyncio.get_running_loop().create_future()
        if self._scan is None or self._scan.done():
            self._scan = asyncio.create_task(self._scans(), name="who uses places")
        return await asyncio.shield(self._asked[place])

    async def _scans(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, {}
            try:
                found = await awaited(None, users_of, tuple(asked), frozenset({os.getpid()}))
            except (LookFailed, OSError) as error:
                found = dict.fromkeys(
                    (place.path for place in asked), f"whether it is in use cannot be determined: {error}"
                )
            for place, future in asked.items():
                if not future.done():
                    future.set_result(found.get(place.path))


def _place(owner: int, answer: Any, by_name: bool) -> OccupiedPlace | None:
    if answer is None:
        return None
    path, born = answer["path"], answer["born"]
    if not isinstance(path, str) or not path.startswith("/") or not (born is None or type(born) is int):
        raise ValueError("the helper's answer is not a place")
    where = str(answer["device"]), str(answer["inside"])
    opened, writable, enter = (answer[right] is not False for right in ("open", "writable", "enter"))
    return OccupiedPlace(path, owner, *where, born, opened, by_name, writable, enter)
