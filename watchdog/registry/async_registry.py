"""`AsyncRegistry`: the registry for the event loop, whose reads and writes run in threads."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from watchdog.clock import Clock
from watchdog.concurrency.lanes import Lanes, Turns, lane
from watchdog.concurrency.threads import Pool
from watchdog.errors import RegistryUnavailable
from watchdog.registry.engines import Undone
from watchdog.registry.registry import Registry

_clock = Clock()
P = ParamSpec("P")
T = TypeVar("T")
TOGETHER = 200  # most writes in one transaction: they fail together, and readers see them late
OF_USERS = 20  # most users' writes among them: the daemon's own next write waits for no more than these
# Seconds after which the database counts as hung: a disk that blocks in fsync, a dead NFS server. What the database
# itself refuses (a lock, a silent server) fails within 6 s; a sweep that waits this long still ends in its interval.
HUNG = 8.0
LOOK = 0.5  # seconds between two checks whether the writer has hung


class AsyncRegistry:
    """The registry for the event loop: one thread writes and four read, so that a slow disk never stops the loop.

    Writes of one lane (`concurrency.lanes`) are done in the order of the calls: first the daemon's own and root's, then
    users' in turn. Writes that queue up while the disk is busy are committed together: one flush (2 to 8 ms) for the
    intents of a hundred kills. Each caller gets its answer only after the commit; a Conflict undoes only the write that
    raised it; a commit that fails, fails for every write in it. Cancelling a caller does not undo its write. Users'
    reads have two threads of their own, and each user uses at most one of them at a time.

    A database that hangs blocks at most five threads, and no caller for longer than `patience` seconds: then every
    waiting call raises RegistryUnavailable, and each new call does so at once, until the call that hung has returned.
    What that call was writing may still be committed, as after a lost connection.
    """

    def __init__(self, registry: Registry, reserve: Callable[[], bool] | None = None) -> None:
        """`reserve` frees disk space for a write that met a full disk; False: there is none left."""
        self.sync = registry  # for calls about the database itself: `open`, `probe`, `shared`, `engines` ...
        self.agents = registry.agents
        self.agent_details = registry.agent_details
        self.kills = registry.kills
        self.history = registry.history
        self.leftovers = registry.leftovers
        self.retention = registry.retention
        self.shares = registry.shares
        self._reserve = reserve
        self.patience = HUNG  # seconds; shorter at the daemon's end
        self._writer = Pool(1, "the registry (writing)")
        self._readers = Pool(2, "the registry (reading)")
        self._guests = Pool(2, "the registry (reading for users)")
        self._turns = Turns(2, 1)
        self._waiting: Lanes[_Write] = Lanes()
        self._batch: list[_Write] = []  # what the writer is writing
        self._since: float | None = None  # when it began to
        self._watching = False
        self._closed = False

    async def write(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a writing method: `await registry.write(registry.agents.save_sweep, rows)`."""
        return await self.ask(method, *args, **kwargs)

    def ask(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        """The same without waiting: the write has its place in the queue when this returns.

        The writer is woken after every task that is ready now has had its turn: their intents then share a flush, and
        the threads do not alternate (a tenth less CPU for a hundred kills). After `close`: RegistryUnavailable.
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
            # Otherwise the writer is awake and gets to it.
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
        """Finish the queued writes (each is bounded by the busy timeout), then close the connections.

        False: the database hangs; its threads and connections are abandoned.
        """
        self._wake()
        self._closed = True
        deadline = _clock.mono() + seconds
        closed = Pool(1, "the registry (closing)")  # the last connection to a SQLite file writes to it
        pools = (self._writer, self._readers, self._guests)
        if all(pool.close(max(0.0, deadline - _clock.mono())) for pool in pools):
            done = closed.submit(self.sync.close)
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
        error = RegistryUnavailable(f"registry {self.sync.engines.place}: no answer within {self.patience:g} s")
        self.sync.engines.trouble = str(error)
        return error

    def _watch(self) -> None:
        """In the loop, while the writer has work: once it hangs, every waiting write fails."""
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
        """In the writer's thread: write until the queue is empty."""
        while batch := self._taken():
            try:
                self._write(batch)
            finally:
                self._batch, self._since = [], None
            with suppress(RuntimeError):  # the loop has ended
                batch[0].answer.get_loop().call_soon_threadsafe(_tell, batch)

    def _taken(self) -> "list[_Write]":
        """In the writer's thread. `_since` is set before the queue is emptied, so that `_watch` misses no write."""
        self._since = _clock.mono()
        self._batch = self._waiting.take(TOGETHER, OF_USERS)
        if not self._batch:
            self._since = None
        return self._batch

    def _write(self, batch: "list[_Write]") -> None:
        try:
            with self.sync.engines.group() if len(batch) > 1 else nullcontext():
                for write in batch:
                    write.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, every caller must get it
            for write in batch:
                write.failure = _copy(error)
        self._write_into_reserve(batch)

    def _write_into_reserve(self, batch: "list[_Write]") -> None:
        """In the writer's thread: repeat what failed on a full disk, while the reserve still frees some space."""
        if self._reserve is None:
            return
        while (failed := [write for write in batch if getattr(write.failure, "full", False)]) and self._reserve():
            for write in failed:
                write.failure = None
                try:
                    write.run()
                except Undone as error:  # the disk was slow before it was full: its caller has stopped waiting
                    write.failure = error


@dataclass(slots=True)
class _Write:
    """One queued write and its result, which its caller gets only after the commit."""

    call: Callable[[], Any]
    answer: asyncio.Future[Any]
    result: object = None
    failure: Exception | None = None
    given_up: bool = False  # its caller has got the error that the database hangs

    def run(self) -> None:
        """Do it. Raises Undone, which concerns the whole batch; any other failure is this write's own."""
        if self.given_up:
            raise Undone("the database had hung, and its caller no longer waits")
        try:
            self.result = self.call()
        except Undone:
            raise
        except Exception as error:  # noqa: BLE001 - its caller gets it
            self.failure = error


def _tell(batch: list[_Write]) -> None:
    """In the loop: answer every caller that still waits."""
    for write in batch:
        if write.answer.done():
            continue  # cancelled
        if write.failure is not None:
            write.answer.set_exception(write.failure)
        else:
            write.answer.set_result(write.result)


def _copy(error: Exception) -> Exception:
    """A copy of the failure for each caller: one exception raised in many tasks would collect all their tracebacks."""
    if not isinstance(error, RegistryUnavailable):
        return error
    copy = RegistryUnavailable(str(error))
    copy.full = error.full
    return copy
