"""Calls that may never return, in daemon threads: a dead disk, directory or server keeps a thread, never the daemon.

A thread that is stuck in the kernel cannot be stopped. Those of `asyncio.to_thread` and ThreadPoolExecutor are joined,
by `asyncio.run` and by concurrent.futures at the interpreter's exit: one stuck call would keep the daemon alive after
SIGTERM. Threads of this module are never joined. How many may be stuck is bounded: a pool has its size, and a call of
one name is not made again before the former one has returned.
"""

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from watchdog.clock import Clock
from watchdog.errors import WatchdogError

_clock = Clock()
P = ParamSpec("P")
T = TypeVar("T")
NSS = "NSS (users and groups)"  # what calls to it are named by
OVERDUE = 5.0  # seconds after which a call counts as stuck


class Unanswered(WatchdogError):
    """A call has not returned within its time; its thread was given up."""

    exit_code = 75
    http_status = 503
    code = "unanswered"


@dataclass(frozen=True, slots=True)
class _ThreadCall:
    """One that has not returned yet."""

    what: str
    began: float


_numbers = itertools.count()
_calls: dict[int, _ThreadCall] = {}  # single operations on a dict are atomic


@contextmanager
def noted(what: str) -> Iterator[None]:
    """While the block runs, this thread waits for `what`."""
    number = next(_numbers)
    _calls[number] = _ThreadCall(what, _clock.mono())
    try:
        yield
    finally:
        del _calls[number]


def overdue(seconds: float = OVERDUE) -> dict[str, float]:
    """What threads of ours have been waiting for at least so long, and the seconds of the longest wait."""
    now = _clock.mono()
    found: dict[str, float] = {}
    for call in list(_calls.values()):
        if (waited := now - call.began) >= seconds:
            found[call.what] = max(waited, found.get(call.what, 0.0))
    return found


def count(what: str) -> int:
    """How many calls of that name have not returned yet."""
    return sum(call.what == what for call in list(_calls.values()))


def begin(what: str, function: Callable[[], T]) -> "Future[T]":
    """Make the call in a thread of its own; the future has what it returns or raises."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def work() -> None:
        with noted(what):
            came = _outcome(function)
        _settle(future, *came)  # now, so that whoever hears of it may call again

    threading.Thread(target=work, name=what, daemon=True).start()
    return future


async def call(what: str, function: Callable[[], T], seconds: float) -> T:
    """Make the call in a thread, and wait at most so long. Raises what it raises, or Unanswered.

    Unanswered at once while a former call of that name has not returned.
    """
    if count(what):
        raise Unanswered(f"{what}: an earlier call has not returned yet")
    answer = wrapped(begin(what, function))
    await asyncio.wait([answer], timeout=seconds)
    if not answer.done():
        raise Unanswered(f"{what}: no answer within {seconds:g} s")
    return answer.result()


async def finished(what: str, function: Callable[[], T]) -> T:
    """The same however long it takes: a caller that is cancelled leaves the thread behind."""
    return await wrapped(begin(what, function))


def wrapped(future: "Future[T]") -> "asyncio.Future[T]":
    """The same for the running loop; an exception that no task waits for any more is not reported as lost."""
    answer = asyncio.wrap_future(future)
    answer.add_done_callback(_heard)
    return answer


def call_now(what: str, function: Callable[[], T], seconds: float) -> T:
    """The same for a caller without an event loop."""
    try:
        return begin(what, function).result(seconds)
    except TimeoutError:
        raise Unanswered(f"{what}: no answer within {seconds:g} s") from None


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - whoever waits gets it
        return None, error


def _settle(future: "Future[Any]", result: Any, error: BaseException | None) -> None:
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _heard(answer: "asyncio.Future[Any]") -> None:
    if not answer.cancelled():
        answer.exception()


class Pool(Executor):
    """At most `size` threads, made when they are needed; `what` is what they wait for."""

    def __init__(self, size: int, what: str) -> None:
        self.size = size
        self._what = what
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False
        self._since: dict[int, float] = {}  # by thread, when its present call began

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """As Executor.submit. Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"no call after the end: {self._what}")
            self._queue.put((future, lambda: function(*args, **kwargs)))
            if self._idle > 0:
                self._idle -= 1
            elif len(self._threads) < self.size:
                thread = threading.Thread(target=self._work, name=self._what, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def stuck(self, seconds: float) -> int:
        """How many of its threads have been in one call for at least so long."""
        now = _clock.mono()
        return sum(now - since >= seconds for since in list(self._since.values()))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. Waits for those that were made, stuck ones for OVERDUE seconds at most."""
        self.close(OVERDUE if wait else 0.0, cancel=cancel_futures)

    def close(self, seconds: float, *, cancel: bool = False) -> bool:
        """The same; waits so long at most. False: a thread is stuck, and is left to itself."""
        with self._lock:
            self._closed = True
            if cancel:
                with suppress(queue.Empty):
                    while (task := self._queue.get_nowait()) is not None:
                        task[0].cancel()
            for _ in self._threads:
                self._queue.put(None)
            threads = list(self._threads)
        deadline = _clock.mono() + seconds
        for thread in threads:
            thread.join(max(0.0, deadline - _clock.mono()))
        return not any(thread.is_alive() for thread in threads)

    def _work(self) -> None:
        me = threading.get_ident()
        while (task := self._queue.get()) is not None:
            future, function = task
            if future.set_running_or_notify_cancel():
                self._since[me] = _clock.mono()
                with noted(self._what):
                    came = _outcome(function)
                self._since.pop(me, None)
                _settle(future, *came)
                del came
            del task, future, function  # nothing is kept alive by a thread that waits
            with self._lock:
                self._idle += 1
