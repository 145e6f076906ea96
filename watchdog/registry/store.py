"""`Store`: every query of the registry. Synchronous; the event loop reaches it through `AsyncStore`."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ParamSpec, TypeVar

from watchdog.errors import RegistryUnavailable
from watchdog.registry.agents import AgentQueries
from watchdog.registry.engines import Engines, Undone
from watchdog.registry.health import HealthQueries
from watchdog.registry.history import HistoryQueries
from watchdog.registry.leftovers import LeftoverQueries
from watchdog.registry.requests import RequestQueries
from watchdog.registry.retention import RetentionQueries
from watchdog.registry.shares import ShareQueries

P = ParamSpec("P")
T = TypeVar("T")
TOGETHER = 200  # writes in one transaction at most: they share its fate, and readers see it late


class Store(
    AgentQueries, RequestQueries, HistoryQueries, HealthQueries, RetentionQueries, ShareQueries, LeftoverQueries
):
    """One registry. Every method is one transaction and raises RegistryUnavailable when the database fails it."""

    def __init__(self, url: str, *, busy_timeout: timedelta = timedelta(seconds=5)) -> None:
        """Name the database; `open()` opens it. Raises ConfigError for a URL that cannot be used."""
        super().__init__(Engines(url, busy_timeout))

    def open(self) -> "Store":
        """Create or migrate. Raises ConfigError for a newer revision, UnsafeDirectory for a foreign file."""
        self.engines.open()
        return self

    def close(self) -> None:
        """Close the connections."""
        self.engines.close()


class AsyncStore:
    """The store for the event loop: one thread writes, two read, so that a slow disk never stops the loop.

    Writes are done in the order in which they were asked for. What was asked for while the disk was busy is committed
    together: one flush (2 to 8 ms) for a hundred kills' intents. Each caller hears only after the commit, a Conflict
    undoes its own write alone, and a commit that fails fails everybody's. A caller that is cancelled does not undo his
    write.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._writer = ThreadPoolExecutor(1, "registry-write")
        self._readers = ThreadPoolExecutor(2, "registry-read")
        self._waiting: deque[_Write] = deque()
        self._closed = False
        self.make_room: Callable[[], bool] = lambda: False  # asked where the disk is full; True: there is some now

    async def write(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a writing method: `await registry.write(registry.store.save_sweep, rows)`."""
        return await self.ask(method, *args, **kwargs)

    def ask(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        """The same for one who does not wait: the write has its place in the order when this returns.

        The writer is woken when all who run now have asked: their intents share a flush, and no thread takes turns
        with another (a tenth less CPU for a hundred kills). After `close` the answer is RegistryUnavailable.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        if self._closed:
            answer.set_exception(RegistryUnavailable("the registry is closed: the daemon is stopping"))
            return answer
        self._waiting.append(_Write(partial(method, *args, **kwargs), answer))
        if len(self._waiting) == 1:  # else the writer comes to it after what stands before it
            loop.call_soon(self._wake)
        return answer

    async def read(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a reading method."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, partial(method, *args, **kwargs))

    def close(self) -> None:
        """Finish what was asked for (each is bounded by the busy timeout), then close the connections."""
        self._wake()
        self._closed = True
        self._writer.shutdown()
        self._readers.shutdown()
        self.store.close()

    def _wake(self) -> None:
        if self._waiting:
            self._writer.submit(self._write_waiting)

    def _write_waiting(self) -> None:
        """In the writer's thread: all that waits, until nothing does."""
        while batch := [self._waiting.popleft() for _ in range(min(TOGETHER, len(self._waiting)))]:
            try:
                with self.store.engines.group() if len(batch) > 1 else nullcontext():
                    for write in batch:
                        write.run()
            except Exception as error:  # noqa: BLE001 - whatever it is, every caller has to hear of it
                for write in batch:
                    write.failure = _copy(error)
            self._write_into_reserve(batch)
            batch[0].answer.get_loop().call_soon_threadsafe(_tell, batch)

    def _write_into_reserve(self, batch: "list[_Write]") -> None:
        """In the writer's thread: do once more what failed for want of disk space, while the reserve gives some."""
        while (failed := [write for write in batch if getattr(write.failure, "full", False)]) and self.make_room():
            for write in failed:
                write.failure = None
                write.run()


@dataclass(slots=True)
class _Write:
    """One write that was asked for, and what came of it; told only when it is committed."""

    call: Callable[[], Any]
    answer: asyncio.Future[Any]
    result: object = None
    failure: Exception | None = None

    def run(self) -> None:
        """Do it. Raises Undone, which is about everybody; any other failure is this write's own."""
        try:
            self.result = self.call()
        except Undone:
            raise
        except Exception as error:  # noqa: BLE001 - its caller gets it
            self.failure = error


def _tell(batch: list[_Write]) -> None:
    """In the loop: answer all callers who still want to hear."""
    for write in batch:
        if write.answer.done():
            continue  # cancelled
        if write.failure is not None:
            write.answer.set_exception(write.failure)
        else:
            write.answer.set_result(write.result)


def _copy(error: Exception) -> Exception:
    """The registry's failure anew for each caller: one exception raised in many tasks gathers all their tracebacks."""
    if not isinstance(error, RegistryUnavailable):
        return error
    copy = RegistryUnavailable(str(error))
    copy.full = error.full
    return copy
