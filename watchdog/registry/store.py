"""`Store`: every query of the registry. Synchronous; the event loop reaches it through `AsyncStore`."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import ParamSpec, TypeVar

from watchdog.registry.agents import AgentQueries
from watchdog.registry.engines import Engines
from watchdog.registry.history import HistoryQueries
from watchdog.registry.requests import RequestQueries

P = ParamSpec("P")
T = TypeVar("T")


class Store(AgentQueries, RequestQueries, HistoryQueries):
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

    Writes are done in the order in which they were asked for. A caller that is cancelled does not undo his write.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._writer = ThreadPoolExecutor(1, "registry-write")
        self._readers = ThreadPoolExecutor(2, "registry-read")

    async def write(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a writing method: `await registry.write(registry.store.save_sweep, rows)`."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, partial(method, *args, **kwargs))

    async def read(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a reading method."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, partial(method, *args, **kwargs))

    def close(self) -> None:
        """Finish what was asked for (each is bounded by the busy timeout), then close the connections."""
        self._writer.shutdown()
        self._readers.shutdown()
        self.store.close()
