"""Reads /etc/subuid at the start and after changes, so that subordinate uids count for their user.

NSS lookups of its login names may take minutes, so everything runs in a thread that nothing waits for; meanwhile the
previous map stays valid. If the file cannot be read, that is reported and each uid counts for itself.
"""

import asyncio
import os
import pwd
from collections.abc import Callable
from contextlib import suppress

from watchdog.clock import Clock
from watchdog.core.users import UserMap, parse_subuid
from watchdog.helpers import nss
from watchdog.telemetry.logger import EventLogger

SUBUID = "/etc/subuid"
EVERY = 10.0  # seconds between two checks for changes
AT_START = 5.0  # seconds that startup waits for the first answer
MOST_BYTES = 1 << 20

_Stamp = tuple[int, int, int, int]  # device, inode, size, ns of the last change
_Answer = tuple[_Stamp | None, UserMap, list[str]]


class Users:
    """Maps the uids of this host to the users whose share they count for."""

    def __init__(
        self, clock: Clock, log: EventLogger, path: str = SUBUID, share: Callable[[UserMap], None] | None = None
    ) -> None:
        """`share` is called with each map that was read."""
        self._clock = clock
        self._log = log
        self._path = path
        self._map = UserMap()
        self._stamp: _Stamp | None = None
        self._asked: asyncio.Future[_Answer | None] | None = None
        self._looked = float("-inf")
        self.problems: list[str] = []
        self._share = share

    def user_of(self, uid: int) -> int:
        """The uid of the user that this uid counts for."""
        return self._map.user_of(uid)

    async def begin(self) -> None:
        """Read the file before serving clients, without waiting for an unreachable directory service."""
        self.look()
        if self._asked is not None:
            await asyncio.wait([self._asked], timeout=AT_START)
        self.look()

    def look(self) -> None:
        """Use the map that was read meanwhile, and check from time to time for changes of the file. Does not block."""
        if self._asked is not None:
            if not self._asked.done():
                return
            asked, self._asked = self._asked, None
            self._heard(asked)
        elif self._clock.mono() - self._looked >= EVERY:
            self._looked = self._clock.mono()
            former = self._stamp
            self._asked = nss.ask(lambda: _read(self._path, former))

    def _heard(self, asked: "asyncio.Future[_Answer | None]") -> None:
        error = asked.exception()
        if error is not None:
            self._stamp = None
            self._use(UserMap())
            why = error.strerror if isinstance(error, OSError) else None
            self._tell([f"{self._path}: {why or error}; each uid counts for itself"])
        elif (answer := asked.result()) is not None:
            self._stamp, users, problems = answer
            self._use(users)
            self._tell([f"{self._path}: {problem}" for problem in problems])

    def _use(self, users: UserMap) -> None:
        self._map = users
        if self._share is not None:
            self._share(users)

    def _tell(self, problems: list[str]) -> None:
        if problems and problems != self.problems:
            self._log.event("users.unread", problems=problems)
        self.problems = problems


def _read(path: str, former: _Stamp | None) -> _Answer | None:
    """The new map; None if the file is unchanged. Without a file there are no subordinate uids. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None, UserMap(), []
    try:
        found = os.fstat(descriptor)
        stamp = found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns
        if stamp == former:
            return None
        with os.fdopen(os.dup(descriptor), "rb") as file:
            content = file.read(MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    text = content[:MOST_BYTES].decode("utf-8", "replace")
    users, problems = parse_subuid(text, _uid_of)
    if len(content) > MOST_BYTES:
        problems.insert(0, f"is longer than {MOST_BYTES} bytes; the rest is not read")
    return stamp, users, problems


def _uid_of(name: str) -> int | None:
    with suppress(KeyError):
        return pwd.getpwnam(name).pw_uid
    return None
