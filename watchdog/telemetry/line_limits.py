"""How many log lines one user may cause in a minute: by its requests, and by what its agents do.

Lines beyond that are counted, and reported in one line at the end of the minute. The history gets them all the same,
within the user's share of the registry. Root and the daemon's own uid have no limit; neither have the daemon's lines
about itself.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from watchdog.clock import Clock
from watchdog.telemetry.logger import EventLogger

LINES = 600  # of one user a minute: sixty agents that start, work and end
BYTES = 200_000  # of their text
MINUTE = 60.0  # seconds
EVERY = timedelta(seconds=10)


@dataclass(slots=True)
class _Minute:
    """One minute of one user; it begins with the first line."""

    began: float
    lines: int = 0
    bytes: int = 0
    left_out: int = 0


class LineLimits:
    """Used by `EventLogger` before each line that a user causes."""

    def __init__(
        self,
        clock: Clock,
        log: EventLogger,
        user_of: Callable[[int], int] = lambda uid: uid,
        *,
        lines: int = LINES,
        size: int = BYTES,
    ) -> None:
        """`user_of` maps a uid to the uid of the user that it counts for."""
        self._clock = clock
        self._log = log
        self.user_of = user_of
        self._lines, self._size = lines, size
        self._minutes: dict[int, _Minute] = {}

    def allows(self, uid: int, size: int) -> bool:
        """Whether one more line with so many characters may be written; never waits."""
        user = self.user_of(uid)
        if user in (0, os.geteuid()):
            return True
        now = self._clock.mono()
        minute = self._minutes.get(user)
        if minute is None or now - minute.began >= MINUTE:
            self._end(user)
            minute = self._minutes[user] = _Minute(now)
        if minute.lines >= self._lines or minute.bytes >= self._size:
            minute.left_out += 1
            return False
        minute.lines, minute.bytes = minute.lines + 1, minute.bytes + size
        return True

    async def round(self) -> None:
        """Report the minutes that are over."""
        now = self._clock.mono()
        for user in [user for user, minute in self._minutes.items() if now - minute.began >= MINUTE]:
            self._end(user)

    def _end(self, user: int) -> None:
        minute = self._minutes.pop(user, None)
        if minute is not None and minute.left_out:
            self._log.event("log.limited", uid=user, lines=minute.left_out)
