"""The daemon's side of the reader, its child process that reads files of single processes (`bounded`, `reader_main`).

Each question has a socket of its own, which the reader gets with it: whoever gives one up closes it, and no other
caller waits. The reader says itself which read hangs, within `reader_main.PATIENCE` ticks. One that says nothing at
all is killed, not waited for, and the next question starts another.
"""

import asyncio
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from watchdog.clock import Clock
from watchdog.core.users import UserMap
from watchdog.processes import bounded
from watchdog.processes.bounded import HEAD, RANGE, Hung, LookFailed

T = TypeVar("T")

READER = ("-I", "-m", "watchdog.processes.reader_main")
# Seconds for a question that holds up the event loop. An answer takes 0.15 ms, one of a read that hangs 150.
ANSWER = 5.0
SCAN = 15.0  # seconds for one that a coroutine asks; a scan of 2,000 processes takes 0.1, with 200 that hang 1
START = 15.0  # seconds until it takes questions: 0.1 of an idle CPU
BURIED = 0.5  # seconds that a killed one has to be gone: it takes 2 ms
AGAIN = 1.0  # seconds between two starts
_LENGTH = struct.Struct("!I")
_CHUNK = 1 << 18


async def awaited(executor: Executor | None, function: Callable[..., T], *args: object) -> T:
    """A bounded function's answer for a coroutine: by the reader, else in a thread of `executor`."""
    reader = bounded.user()
    if reader is None:
        return await asyncio.get_running_loop().run_in_executor(executor, partial(function, *args))
    answer: T = await reader.call(bounded.name_of(function), args)
    return answer


class Reader:
    """Asks the reader; starts it where there is none. Threads may share one."""

    def __init__(self, argv: Sequence[str] | None = None) -> None:
        self._argv = tuple(argv) if argv else (sys.executable, *READER)
        self._clock = Clock()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready = False
        self._started = float("-inf")
        self._given_up: list[subprocess.Popen[bytes]] = []  # killed, and perhaps not gone (D state)
        self._version = 0
        self._closed = False
        self._maps = 0
        self.hung: Mapping[int, Hung] = {}
        self._users = os.memfd_create("users")  # each reader has it, too

    def share(self, users: UserMap) -> None:
        """Tell it which uids count for one user. It looks only when so many reads hang that users have to share."""
        data = b"".join(RANGE.pack(*one) for one in users.ranges)
        os.pwrite(self._users, data, HEAD.size)
        self._maps += 1
        os.pwrite(self._users, HEAD.pack(self._maps, len(users)), 0)

    @property
    def pid(self) -> int | None:
        """Of the process that reads now."""
        return None if self._child is None else self._child.pid

    def ask(self, name: str, args: tuple[object, ...]) -> Any:
        """What the function `name` of `bounded` says, or raises. Waits for it, so for short ones alone.

        Raises LookFailed where the reader does not answer.
        """
        with self._asked(name, args) as (mine, child, request):
            try:
                mine.settimeout(ANSWER)
                mine.sendall(request)
                data = bytearray()
                while more := mine.recv(_CHUNK):
                    data += more
            except OSError as error:
                if self._ready or self._clock.mono() - self._started > START:
                    self._give_up(child)
                raise LookFailed(error.errno, f"the reader does not answer: {error}") from error
        return self._told(child, bytes(data))

    async def call(self, name: str, args: tuple[object, ...], limit: float | None = None) -> Any:
        """The same for a coroutine, and for functions that take long."""
        loop = asyncio.get_running_loop()
        with self._asked(name, args) as (mine, child, request):
            mine.setblocking(False)
            data = bytearray()
            try:
                async with asyncio.timeout(SCAN if limit is None else limit):
                    await loop.sock_sendall(mine, request)
                    while more := await loop.sock_recv(mine, _CHUNK):
                        data += more
            except OSError as error:  # TimeoutError is one
                self._give_up(child)
                raise LookFailed(error.errno, f"the reader does not answer: {error}") from error
        return self._told(child, bytes(data))

    async def refresh(self) -> None:
        """Ask again which processes hang, where any did: most that do return at once. Raises LookFailed."""
        if self.hung:
            self.hung = await self.call("hung", (), ANSWER)

    def close(self) -> None:
        """End it; there are no more questions. Waits `BURIED` at most: what is stuck in D state outlives us."""
        self._closed = True
        child = self._child
        if child is not None:
            self._give_up(child)
        for child in self._given_up:
            with suppress(subprocess.TimeoutExpired):
                child.wait(BURIED)
        if self._users >= 0:
            os.close(self._users)
            self._users = -1

    def _told(self, child: subprocess.Popen[bytes], data: bytes) -> Any:
        try:
            version, well, value = pickle.loads(data)  # noqa: S301 - our own child, of our uid, wrote it
        except (EOFError, pickle.UnpicklingError) as error:
            self._give_up(child)
            raise LookFailed(0, "the reader ended, or has no thread left for another read") from error
        self._ready = self._ready or child is self._child
        if version != self._version:
            self._version = version
            self.hung = self.ask("hung", ())
        if not well:
            raise value
        return value

    def _asked(self, name: str, args: tuple[object, ...]) -> "_Question":
        """A question on its way. Raises LookFailed."""
        request = pickle.dumps((name, args), pickle.HIGHEST_PROTOCOL)
        try:
            mine, theirs = socket.socketpair()
        except OSError as error:
            raise LookFailed(error.errno, f"no descriptors for a question to the reader: {error.strerror}") from error
        try:
            with theirs:
                child = self._pass_on(theirs)
        except BaseException:
            mine.close()
            raise
        return _Question(mine, child, _LENGTH.pack(len(request)) + request)

    def _pass_on(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        """Give the reader its end. Raises LookFailed."""
        with self._lock:
            for _ in range(2):  # one that has ended is found out about here
                child, control = self._running()
                try:
                    socket.send_fds(control, [b"?"], [theirs.fileno()])
                    return child
                except OSError as error:
                    failure = error
                    self._give_up(child)
            raise LookFailed(failure.errno, f"the reader takes no question: {failure}") from failure

    def _running(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self._child is not None and self._control is not None:
            return self._child, self._control
        if self._closed:
            raise LookFailed(0, "the daemon is ending: nothing is read any more")
        now = self._clock.mono()
        if now - self._started < AGAIN:
            raise LookFailed(0, "the reader has ended, and is started again in a second")
        self._started = now
        self._bury()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._child = subprocess.Popen(
                    [*self._argv, str(theirs.fileno()), str(self._users)],
                    pass_fds=(theirs.fileno(), self._users),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env={},
                )
            except OSError as error:
                mine.close()
                raise LookFailed(error.errno, f"the reader cannot be started: {error.strerror}") from error
        mine.settimeout(ANSWER)
        self._control, self._ready = mine, False
        return self._child, mine

    def _give_up(self, child: subprocess.Popen[bytes]) -> None:
        """Kill it and wait for nothing: a thread of it may be in uninterruptible sleep."""
        if self._child is not child:
            return
        self._child = None
        self.hung, self._version = {}, 0  # the next one finds out for itself
        if self._control is not None:
            self._control.close()
            self._control = None
        with suppress(ProcessLookupError):
            child.kill()
        self._given_up.append(child)

    def _bury(self) -> None:
        self._given_up = [child for child in self._given_up if child.poll() is None]


class _Question:
    """Our end of a socket, whose it is to answer, and what is asked."""

    def __init__(self, mine: socket.socket, child: subprocess.Popen[bytes], request: bytes) -> None:
        self._mine = mine
        self._all = mine, child, request

    def __enter__(self) -> tuple[socket.socket, subprocess.Popen[bytes], bytes]:
        return self._all

    def __exit__(self, *_: object) -> None:
        self._mine.close()
