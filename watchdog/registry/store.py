"""`Store`: every query of the registry. Synchronous; the event loop reaches it through `AsyncStore`."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ParamSpec, TypeVar

from watchdog.errors import RegistryUnavailable
from watchdog.registry.agents import AgentQueries
from watchdog.registry.engines import Engines, Undone
from watchdog.registry.health import HealthQueries
from watchdog.registry.history import HistoryQueries
from watchdog.registry.requests import RequestQueries
from watchdog.registry.retention import RetentionQueries

P = ParamSpec("P")
T = TypeVar("T")
TOGETHER = 200  # writes in one transaction at most: they share its fate, and readers see it late


class Store(AgentQueries, RequestQueries, HistoryQueries, HealthQueries, RetentionQueries):
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

    async def write(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a writing method: `await registry.write(registry.store.save_sweep, rows)`."""
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        self._waiting.append(_Write(partial(method, *args, **kwargs), answer))
        self._writer.submit(self._write_waiting)
        return await asyncio.wrap_future(answer)

    async def read(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a reading method."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, partial(method, *args, **kwargs))

    def close(self) -> None:
        """Finish what was asked for (each is bounded by the busy timeout), then close the connections."""
        self._writer.shutdown()
        self._readers.shutdown()
        self.store.close()

    def _write_waiting(self) -> None:
        """In the writer's thread: what waits now, or nothing where an earlier call took it along."""
        batch = [self._waiting.popleft() for _ in range(min(TOGETHER, len(self._waiting)))]
        try:
            if len(batch) > 1:
                with self.store.engines.group():
                    for write in batch:
                        write.run()
            else:
                for write in batch:
                    write.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, every caller has to hear of it
            for write in batch:
                write.answer.set_exception(_copy(error))
        else:
            for write in batch:
                write.tell()


@dataclass(slots=True)
class _Write:
    """One write that was asked for, and what came of it; told only when it is committed."""

    call: Callable[[], Any]
    answer: Future[Any]
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

    def tell(self) -> None:
        if self.failure is not None:
            self.answer.set_exception(self.failure)
        else:
            self.answer.set_result(self.result)


def _copy(error: Exception) -> Exception:
    """The registry's failure anew for each caller: one exception raised in many tasks gathers all their tracebacks."""
    return RegistryUnavailable(str(error)) if isinstance(error, RegistryUnavailable) else error
