"""Reads of a process's files that may never return, and what replaces their answer.

Any user can make every read of /proc/PID/stat of its own process block for ever: an execve that waits for a user-space
file system holds the locks that such a read takes (seen on 6.18; on older kernels environ, cmdline, maps).

- A function marked `bounded` reads files of single processes. In the daemon, which has called `use`, the reader
  (`reader`) runs it: a child process that can be abandoned. In the reader itself, and in a process without one, it runs
  in place.
- Each system call of such a function that may hang is made inside `Reading`, so that the reader knows the process and
  the file, and does not read it again before that call has returned.
- `each` does the same work for many processes and skips those whose files hang.

Tests: tests/processes/test_reader.py, tests/processes/test_occupants.py.
"""

import errno
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

# Shared memory of the daemon and its reader: version and length of the user map, then first uid, count and user of each
# range.
HEAD, RANGE = struct.Struct("QQ"), struct.Struct("QQQ")
P = ParamSpec("P")
T = TypeVar("T")


class LookFailed(OSError):
    """The kernel refused or failed a read: nothing is known of that process, least of all that it is gone."""


class Unreadable(LookFailed):
    """A read of that process's files hangs."""

    def __init__(self, pid: int, file: str) -> None:
        super().__init__(errno.ETIMEDOUT, f"process {pid} cannot be read now: /proc/{pid}/{file} hangs")
        self.pid = pid
        self.file = file

    def __reduce__(self) -> tuple[type["Unreadable"], tuple[int, str]]:
        return Unreadable, (self.pid, self.file)


class Hung(NamedTuple):
    """A process, its file below /proc/PID whose read hangs, its uid, and since when (monotonic seconds)."""

    pid: int
    file: str
    uid: int
    since: float


class Bounds(Protocol):
    """Runs bounded functions (`reader.Reader`)."""

    hung: Mapping[int, Hung]

    def ask(self, name: str, args: tuple[object, ...]) -> Any:
        """Return the function's result or raise its exception; for callers that cannot wait long. Raises LookFailed."""

    async def refresh(self) -> None:
        """Bring `hung` up to date."""

    def call(self, name: str, args: tuple[object, ...]) -> Awaitable[Any]:
        """The same for callers that can wait."""


class ThreadRead:
    """What one thread of the reader is reading. `step` grows with each system call that may hang."""

    __slots__ = ("file", "pid", "step")

    def __init__(self) -> None:
        self.pid = 0  # 0: it is in no such call
        self.file = ""
        self.step = 0


here = threading.local()  # .place: the ThreadRead of a watched thread
skipped: dict[tuple[int, str], object] = {}  # pid and file of each read that has not returned
refused: dict[int, Hung] = {}  # by pid, processes that are not read because too many reads hang already
slow: dict[int, float] = {}  # by pid, until when (monotonic seconds) a process is not read because its reads take long
readable: Collection[int] = frozenset()  # pids whose stat line the last scan could read
_bounds: Bounds | None = None


def use(bounds: Bounds | None) -> None:
    """Run bounded functions there; None: in place."""
    global _bounds
    _bounds = bounds


def user() -> Bounds | None:
    """What runs them; None: they run in place."""
    return _bounds


def hung() -> Mapping[int, Hung]:
    """The processes that cannot be read, as of the last answer."""
    return {} if _bounds is None else _bounds.hung


def name_of(function: Callable[..., object]) -> str:
    """The name under which the reader finds a function of this package."""
    return f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"


def bounded(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function that reads files of single processes. Arguments are positional and plain values.

    Besides its own exceptions it may raise Unreadable.
    """
    name = name_of(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if _bounds is None:
            return function(*args, **kwargs)
        assert not kwargs, f"{name} takes its arguments by position"
        answer: T = _bounds.ask(name, args)
        return answer

    return call


class Reading:
    """The body reads /proc/PID/`file` (for a directory like task, fd or ns: something below it).

    Raises Unreadable if an earlier such read has not returned yet.
    """

    __slots__ = ("_file", "_pid", "_place")

    def __init__(self, pid: int, file: str) -> None:
        self._pid = pid
        self._file = file

    def __enter__(self) -> None:
        if (skipped or refused) and ((self._pid, self._file) in skipped or refuse(self._pid, self._file)):
            raise Unreadable(self._pid, self._file)
        if slow and time.monotonic() < slow.get(self._pid, 0.0):
            raise Unreadable(self._pid, self._file)
        place: ThreadRead | None = getattr(here, "place", None)
        self._place = place
        if place is not None:
            place.file, place.step = self._file, place.step + 1
            place.pid = self._pid  # last: from here on the thread counts as being in such a call

    def __exit__(self, *_: object) -> None:
        if self._place is not None:
            self._place.pid = 0


def each(keys: Iterable[int], work: Callable[[int], T]) -> dict[int, T | OSError]:
    """`work(pid)` for each of these processes, or the OSError (also Unreadable) that it raised."""
    return crew(keys, work)


def _one_by_one(keys: Iterable[int], work: Callable[[int], Any]) -> dict[int, Any]:
    return {key: outcome(work, key) for key in keys}


def outcome(work: Callable[[int], T], key: int) -> T | OSError:
    """The result of `work(key)`, or the OSError that it raised."""
    try:
        return work(key)
    except OSError as error:
        return error


def _never(pid: int, file: str) -> bool:
    return False


refuse: Callable[[int, str], bool] = _never  # whether a process is not to be read at all; the reader replaces it
crew: Callable[[Iterable[int], Callable[[int], Any]], dict[int, Any]] = _one_by_one  # the reader replaces it
