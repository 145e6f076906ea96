"""Child processes of the event loop whose start may hang: the program, or a directory on PATH, may be on a dead mount.

`asyncio.create_subprocess_exec` starts them in the loop's thread, which then waits for execve(2), and CPython's vfork
holds the interpreter's lock meanwhile: every thread stands still until the program is found. Here a thread starts them
by fork, the loop waits for a limited time, and a child that starts later is killed. Its exit is seen by a pidfd.
"""

import asyncio
import errno
import os
import subprocess
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import IO, Any

from watchdog.concurrency import threads

START = 5.0  # seconds until a start is given up
MOST = 8  # concurrent starts that may hang
# Its threads stay: for a child that asks for a signal at its parent's death, the parent is the thread that forked
# (prctl(2), PR_SET_PDEATHSIG).
_starters = threads.Pool(MOST, "the start of a program")
setattr(subprocess, "_USE_VFORK", False)  # noqa: B010 - documented under "Disable use of vfork()", Python 3.11.1


class Child:
    """A started process, with the part of the interface of asyncio's `Process` that the daemon uses."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        """Watch for its exit from now on; needs a running loop. Raises OSError without a descriptor for that."""
        self._popen = popen
        self.pid = popen.pid
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._pipes = [pipe for pipe in (popen.stdin, popen.stdout, popen.stderr) if pipe is not None]  # no streams yet
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = os.pidfd_open(popen.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    async def connect(self, limit: int) -> None:
        """Make streams of the pipes; `limit`: maximum bytes of a line. Raises OSError."""
        if self._popen.stdin is not None:
            both = partial(asyncio.StreamReaderProtocol, asyncio.StreamReader())
            self._pipes.remove(self._popen.stdin)
            transport, protocol = await self._loop.connect_write_pipe(both, self._popen.stdin)
            self._transports.append(transport)
            self.stdin = asyncio.StreamWriter(transport, protocol, None, self._loop)
        self.stdout = await self._reader(self._popen.stdout, limit)
        self.stderr = await self._reader(self._popen.stderr, limit)

    @property
    def returncode(self) -> int | None:
        """As Popen's; None until its exit was seen."""
        return self._popen.returncode

    async def wait(self) -> int:
        """Its exit status, or minus the signal that killed it."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """SIGKILL, unless it has exited; Popen checks before it sends."""
        self._popen.kill()

    def close(self) -> None:
        """Close the pipes. A process that it left behind may hold their other ends."""
        for transport in self._transports:
            transport.close()
        for pipe in self._pipes:  # its start was given up before these were connected: nothing else closes them
            pipe.close()
        self._pipes.clear()

    async def _reader(self, pipe: IO[bytes] | None, limit: int) -> asyncio.StreamReader | None:
        if pipe is None:
            return None
        reader = asyncio.StreamReader(limit)
        self._pipes.remove(pipe)
        transport, _ = await self._loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
        self._transports.append(transport)
        return reader

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set_result(self._popen.wait())  # at once: its pidfd is readable


class Adopted:
    """Children that we did not start: orphans, as PID 1 of a container, or if we were a subreaper before exec.

    Nothing else reaps them, and the kernel keeps a zombie's pid. Our own children are reaped as soon as they exit; so a
    zombie at two checks in a row belongs to no caller, and is waited for by its own pid, never by any (waitid(2)).
    """

    def __init__(self) -> None:
        self._ended: set[int] = set()

    def look(self) -> int:
        """Reap the zombies that the last check found too; returns how many."""
        try:
            with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:  # orphans go to the main thread
                pids = list(map(int, file.read().split()))
        except OSError:
            return 0  # no such file (CONFIG_PROC_CHILDREN)
        options = os.WEXITED | os.WNOHANG
        ended = set[int]()
        for pid in pids:
            with suppress(ChildProcessError):
                if os.waitid(os.P_PID, pid, options | os.WNOWAIT) is not None:
                    ended.add(pid)
        both = ended & self._ended
        for pid in both:
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, pid, options)
        self._ended = ended - both
        return len(both)


async def start(*argv: str, limit: int = 1 << 16, **options: Any) -> Child:
    """Start a program; `options` as for Popen, `limit` as in `Child.connect`.

    Raises OSError as Popen does, and ETIMEDOUT for a start that takes longer than START seconds.
    """
    started = _starters.submit(_popen, argv, options)
    try:
        await asyncio.wait([answer := threads.wrapped(started)], timeout=START)
        if not answer.done():
            raise OSError(errno.ETIMEDOUT, f"no start within {START:g} s", argv[0])
        child = Child(answer.result())
    except BaseException:
        started.cancel()
        started.add_done_callback(_give_up)
        raise
    try:
        await child.connect(limit)
    except BaseException:
        child.kill()
        child.close()
        raise
    return child


async def finished(*argv: str, seconds: float, told: str = "stdout", **options: Any) -> tuple[int, bytes]:
    """Run a program without stdin in a session of its own; returns its exit status and its whole output.

    `told`: the stream that is read, "stdout" or "stderr"; the other is discarded. Raises OSError as `start`, and
    TimeoutError for a program that takes longer than `seconds`, which is killed.
    """
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL) | {told: subprocess.PIPE}
    child = await start(*argv, start_new_session=True, **streams, **options)
    reader = child.stderr if told == "stderr" else child.stdout
    assert reader is not None
    try:
        async with asyncio.timeout(seconds):
            words = await reader.read()
            return await child.wait(), words
    except BaseException:
        child.kill()
        raise
    finally:
        child.close()


def _popen(argv: tuple[str, ...], options: dict[str, Any]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(argv, bufsize=0, **options)


def _give_up(started: "Future[subprocess.Popen[bytes]]") -> None:
    """Its caller no longer waits: kill and reap it, in the thread that started it."""
    with suppress(Exception):
        popen = started.result()
        popen.kill()
        for pipe in (popen.stdin, popen.stdout, popen.stderr):
            if pipe is not None:
                pipe.close()
        popen.wait()
