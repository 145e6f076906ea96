"""`Store`: every query of the registry. Synchronous; the event loop reaches it through `AsyncStore`."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ParamSpec, TypeVar

from watchdog.clock import Clock
from watchdog.concurrency.lanes import Lanes, Turns, lane
from watchdog.concurrency.threads import Pool
from watchdog.errors import RegistryUnavailable
from watchdog.registry.agent_queries import AgentQueries
from watchdog.registry.engines import Engines, Undone
from watchdog.registry.health_queries import HealthQueries
from watchdog.registry.history_queries import HistoryQueries
from watchdog.registry.kill_request_queries import RequestQueries
from watchdog.registry.reaper_queries import LeftoverQueries
from watchdog.registry.retention_queries import RetentionQueries
from watchdog.registry.share_queries import ShareQueries

_clock = Clock()
P = ParamSpec("P")
T = TypeVar("T")
TOGETHER = 200  # writes in one transaction at most: they share its fate, and readers see it late
OF_USERS = 20  # of them requests of users: what is ours and comes next waits for no more than these
# Seconds after which the database has hung: a disk that takes no fsync, a dead NFS server. What it refuses by itself
# (a lock, a server that went silent) it refuses after 6 s at most; a sweep that waits so long is over in its interval.
HUNG = 8.0
LOOK = 0.5  # seconds between two looks whether the writer has hung


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
    """The store for the event loop: one thread writes, four read, so that a slow disk never stops the loop.

    Writes of one lane (`lanes`) are done in the order in which they were asked for: ours, root's and the daemon's own
    kills first, then users' in turn. What was asked for while the disk was busy is committed together: one flush (2 to
    8 ms) for a hundred kills' intents. Each caller hears only after the commit, a Conflict undoes its own write alone,
    and a commit that fails fails everybody's. A caller that is cancelled does not undo his write. Users' reads have two
    threads of their own, of which one user has one at a time.

    A database that hangs keeps five threads at most, and nobody waiting for longer than `patience` seconds: then all
    that wait get RegistryUnavailable, and so does each new call at once, until the call that hung has returned. What
    that call was about to write may still be committed, as after a lost connection.
    """

    def __init__(self, store: Store, reserve: Callable[[], bool] | None = None) -> None:
        """`reserve` frees disk space for a write that met a full disk; False: there is none left."""
        self.store = store
        self._reserve = reserve
        self.patience = HUNG  # seconds; shorter at the daemon's end
        self._writer = Pool(1, "the registry (writing)")
        self._readers = Pool(2, "the registry (reading)")
        self._guests = Pool(2, "the registry (reading for users)")
        self._turns = Turns(2, 1)
        self._waiting: Lanes[_Write] = Lanes()
        self._batch: list[_Write] = []  # what the writer is about
        self._since: float | None = None  # when it began with that
        self._watching = False
        self._closed = False

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
        if self._writer_hangs():
            answer.set_exception(self._hung())
            return answer
        if self._waiting.put(_Write(partial(method, *args, **kwargs), answer)) == 1:
            # Else the writer comes to it after what stands before it.
            loop.call_soon(self._wake)
        if not self._watching:
            self._watching = True
            loop.call_later(LOOK, self._watch)
        return answer

    async def read(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a reading method."""
        user, loop = lane().user, asyncio.get_running_loop()
        readers = self._readers if user is None else self._guests
        if readers.stuck(self.patience) == readers.size:
            raise self._hung()
        async with self._turns.turn(user):
            try:
                async with asyncio.timeout(self.patience):
                    return await loop.run_in_executor(readers, partial(method, *args, **kwargs))
            except TimeoutError:
                raise self._hung() from None

    def close(self, seconds: float = HUNG) -> bool:
        """Finish what was asked for (each is bounded by the busy timeout), then close the connections.

        False: the database hangs, and its threads and connections are left to themselves.
        """
        self._wake()
        self._closed = True
        deadline = _clock.mono() + seconds
        closed = Pool(1, "the registry (closing)")  # the last connection to a SQLite file writes to it
        pools = (self._writer, self._readers, self._guests)
        if all(pool.close(max(0.0, deadline - _clock.mono())) for pool in pools):
            done = closed.submit(self.store.close)
            if closed.close(max(0.0, deadline - _clock.mono())):
                done.result()
                return True
        return False

    def _wake(self) -> None:
        if len(self._waiting):
            self._writer.submit(self._write_waiting)

    def _writer_hangs(self) -> bool:
        return self._since is not None and _clock.mono() - self._since >= self.patience

    def _hung(self) -> RegistryUnavailable:
        error = RegistryUnavailable(f"registry {self.store.engines.place}: no answer within {self.patience:g} s")
        self.store.engines.trouble = str(error)
        return error

    def _watch(self) -> None:
        """In the loop, while anything is asked of the writer: once it hangs, all who wait are told."""
        if self._writer_hangs():
            waiting, batch = self._waiting.take(len(self._waiting), len(self._waiting)), self._batch
            for write in (*batch, *waiting):
                write.given_up = True
                if not write.answer.done():
                    write.answer.set_exception(self._hung())
        self._watching = len(self._waiting) > 0 or self._since is not None
        if self._watching:
            asyncio.get_running_loop().call_later(LOOK, self._watch)

    def _write_waiting(self) -> None:
        """In the writer's thread: all that waits, until nothing does."""
        while batch := self._taken():
            try:
                self._write(batch)
            finally:
                self._batch, self._since = [], None
            with suppress(RuntimeError):  # the loop has ended
                batch[0].answer.get_loop().call_soon_threadsafe(_tell, batch)

    def _taken(self) -> "list[_Write]":
        """In the writer's thread. It is at work from before it takes them: `_watch` sees them here or there."""
        self._since = _clock.mono()
        self._batch = self._waiting.take(TOGETHER, OF_USERS)
        if not self._batch:
            self._since = None
        return self._batch

    def _write(self, batch: "list[_Write]") -> None:
        try:
            with self.store.engines.group() if len(batch) > 1 else nullcontext():
                for write in batch:
                    write.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, every caller has to hear of it
            for write in batch:
                write.failure = _copy(error)
        self._write_into_reserve(batch)

    def _write_into_reserve(self, batch: "list[_Write]") -> None:
        """In the writer's thread: do once more what failed for want of disk space, while the reserve gives some."""
        if self._reserve is None:
            return
        while (failed := [write for write in batch if getattr(write.failure, "full", False)]) and self._reserve():
            for write in failed:
                write.failure = None
                try:
                    write.run()
                except Undone as error:  # the disk was slow before it was full: nobody waits for this one any more
                    write.failure = error


@dataclass(slots=True)
class _Write:
    """One write that was asked for, and what came of it; told only when it is committed."""

    call: Callable[[], Any]
    answer: asyncio.Future[Any]
    result: object = None
    failure: Exception | None = None
    given_up: bool = False  # its caller was told that the database hangs

    def run(self) -> None:
        """Do it. Raises Undone, which is about everybody; any other failure is this write's own."""
        if self.given_up:
            raise Undone("the database had hung, and its caller no longer waits")
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
