"""The daemon's side of the reader, a child process that reads files of single processes (`bounded`, `reader_main`).

Each request has a socket of its own, which is passed to the reader: a caller that gives up closes it, and no other
caller waits. The reader itself reports which read hangs, within `reader_main.PATIENCE` ticks. A reader that does not
answer at all is killed without waiting for it, and the next request starts a new one.
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
# Seconds for a request that blocks the event loop. An answer takes 0.15 ms; if the read hangs, 150 ms.
ANSWER = 5.0
SCAN = 15.0  # seconds for a request from a coroutine; a scan of 2,000 processes takes 0.1 s, with 200 that hang 1 s
START = 15.0  # seconds until it accepts requests: 0.1 s on an idle CPU
BURIED = 0.5  # seconds for a killed reader to exit: it takes 2 ms
AGAIN = 1.0  # seconds between two starts
_LENGTH = struct.Struct("!I")
_CHUNK = 1 << 18


async def awaited(executor: Executor | None, function: Callable[..., T], *args: object) -> T:
    """Run a bounded function for a coroutine: in the reader, or without one in a thread of `executor`."""
    reader = bounded.user()
    if reader is None:
        return await asyncio.get_running_loop().run_in_executor(executor, partial(function, *args))
    answer: T = await reader.call(bounded.name_of(function), args)
    return answer


class Reader:
    """Sends requests to the reader process, and starts it if there is none. Thread-safe."""

    def __init__(self, argv: Sequence[str] | None = None) -> None:
        self._argv = tuple(argv) if argv else (sys.executable, *READER)
        self._clock = Clock()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready = False
        self._started = float("-inf")
        self._given_up: list[subprocess.Popen[bytes]] = []  # killed, but maybe not gone yet (D state)
        self._version = 0
        self._closed = False
        self._maps = 0
        self.hung: Mapping[int, Hung] = {}
        self._users = os.memfd_create("users")  # each reader process inherits it

    def share(self, users: UserMap) -> None:
        """Publish which uids count for one user. The reader uses it only when so many reads hang that users
        must share.
        """
        data = b"".join(RANGE.pack(*one) for one in users.ranges)
        os.pwrite(self._users, data, HEAD.size)
        self._maps += 1
        os.pwrite(self._users, HEAD.pack(self._maps, len(users)), 0)

    @property
    def pid(self) -> int | None:
        """The pid of the current reader process."""
        return None if self._child is None else self._child.pid

    def ask(self, name: str, args: tuple[object, ...]) -> Any:
        """Return what the bounded function `name` returns, or raise what it raises. Blocks, so only for short ones.

        Raises LookFailed if the reader does not answer.
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
        """The same for coroutines, also for functions that take long."""
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
        """If any process hung, ask again which do: most hang only for a moment. Raises LookFailed."""
        if self.hung:
            self.hung = await self.call("hung", (), ANSWER)

    def close(self) -> None:
        """Kill the reader; there are no more requests. Waits at most `BURIED`: a reader in D state outlives us."""
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
        """Start a request. Raises LookFailed."""
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
        """Pass the reader its end of the socket. Raises LookFailed."""
        with self._lock:
            for _ in range(2):  # twice, as the send shows whether the reader has exited
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
        """Kill it without waiting: one of its threads may be in uninterruptible sleep."""
        if self._child is not child:
            return
        self._child = None
        self.hung, self._version = {}, 0  # the next reader finds out by itself
        if self._control is not None:
            self._control.close()
            self._control = None
        with suppress(ProcessLookupError):
            child.kill()
        self._given_up.append(child)

    def _bury(self) -> None:
        self._given_up = [child for child in self._given_up if child.poll() is None]


class _Question:
    """One request: our end of its socket, the reader process, and the message."""

    def __init__(self, mine: socket.socket, child: subprocess.Popen[bytes], request: bytes) -> None:
        self._mine = mine
        self._all = mine, child, request

    def __enter__(self) -> tuple[socket.socket, subprocess.Popen[bytes], bytes]:
        return self._all

    def __exit__(self, *_: object) -> None:
        self._mine.close()
