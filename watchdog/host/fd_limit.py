"""File descriptors: how many the daemon needs, and what happens when they run out while it runs.

asyncio then accepts no connection, and logs a traceback for each try: a hundred a second (CPython 3.11 to 3.13,
`selector_events._accept_connection`, continues through its whole backlog).
"""

import asyncio
import errno
import os
import resource
from asyncio.constants import ACCEPT_RETRY_DELAY
from collections.abc import Callable
from typing import Any

from watchdog.clock import Clock
from watchdog.errors import NoDescriptors
from watchdog.telemetry.logger import EventLogger

# 23 at rest, without an agent; a hook's child has numbers from 100 up (owner/bounded_child.py), and `kill.pinned_tree`
# keeps 64 free.
LEAST = 128
MOST_RESERVED = 160


def reserved(limit: int) -> int:
    """How many of `limit` descriptors are reserved for root, and for agents that are registered already.

    A new descriptor gets the lowest free number (open(2)): one within the last of these says that no more are left.
    asyncio accepts a hundred connections before the first is handled, and each takes one until it is refused.
    """
    return min(MOST_RESERVED, limit // 8)


def scarce() -> bool:
    """Whether no more than the reserved ones are left; also when not even one could be opened."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        descriptor = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    os.close(descriptor)
    return 0 <= limit <= descriptor + reserved(limit)


def refuse_too_few() -> None:
    """Raise NoDescriptors if the limit is too low to work."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= allowed < LEAST:
        raise NoDescriptors(
            f"only {allowed} file descriptors are allowed, and {LEAST} are the least to work with;"
            " use `ulimit -n 65536` in a shell, LimitNOFILE=65536 in a unit"
        )


class FdExhaustion:
    """Whether connections wait for lack of descriptors; reported when it begins and when it is over."""

    def __init__(self, unheard: Callable[[], None], log: EventLogger) -> None:
        """`unheard` is called each time that connections had to wait: they may carry any agent's heartbeat."""
        self._unheard = unheard
        self._log = log
        self._clock = Clock()
        self._met = float("-inf")  # last occurrence, monotonic seconds
        self._on = False

    def watch(self) -> None:
        """Watch the errors of the running loop; all others go to its own handler."""
        asyncio.get_running_loop().set_exception_handler(self._on_error)

    def look(self) -> None:
        """Once a sweep: check whether it is over."""
        if self._on and self._clock.mono() - self._met > 3 * ACCEPT_RETRY_DELAY:
            self._on = False
            self._log.event("descriptors.back")

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
            return
        if not self._on:
            self._on = True
            self._log.event("descriptors.exhausted", error=error.strerror)
        now = self._clock.mono()
        if now - self._met > ACCEPT_RETRY_DELAY / 2:
            self._met = now
            self._unheard()
