"""What signals ask of the daemon: to stop (TERM, INT), to read its configuration anew (HUP).

Levels that are looked at, no queue. asyncio's own handlers pass each signal as one byte through a socket pair; a storm
of SIGHUPs filled it: a traceback on stderr for each one more, and a TERM among them was lost with its byte. Here the
level rises in the handler itself, and the byte only wakes the loop: a full pair is awake already.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOPS = {signal.SIGTERM, signal.SIGINT}


class SignalFlags:
    """Made on the main thread's running loop, and closed last of all: who ends cannot be told to twice."""

    def __init__(self, called: Callable[[], None]) -> None:
        """`called` runs on the loop soon after a level rose, once for as many signals as came meanwhile."""
        self.stop: signal.Signals | None = None  # the first that asked for it
        self.reload = False  # taken back by whoever does it
        self._called = called
        self._at_terminal = sys.stdin.isatty()
        self._loop = asyncio.get_running_loop()
        self._wake, told = _pair()
        self._drain()  # nothing of a former one's
        self._loop.add_reader(self._wake, self._woken)
        signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._raise)
            signal.siginterrupt(number, False)  # libraries in C are not all ready for EINTR

    def close(self) -> None:
        """Wake nobody any more. Ignored, as Python's own end gives handlers back: a late SIGHUP would be our status."""
        sys.unraisablehook = _but_late_signals
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self._loop.remove_reader(self._wake)

    def unheeded(self) -> bool:
        """Whether a stop was asked for that the loop has not come to: asked by another thread, when the loop is stuck.

        The handler in C writes the signal's number to our pair at once; the one in Python waits for the main thread,
        and a main thread in uninterruptible sleep leaves the signal pending with the process (the caller blocks it).
        """
        try:
            came = self._wake.recv(4096, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:  # nothing
            came = b""
        return self.stop is not None or bool({*came, *signal.sigpending()} & STOPS)

    def _raise(self, number: int, _frame: FrameType | None) -> None:
        """HUP from a terminal that was closed under us is a hang-up, and no reload (isatty(3): EIO after it)."""
        if number == signal.SIGHUP and not (self._at_terminal and not sys.stdin.isatty()):
            self.reload = True
        elif self.stop is None:
            self.stop = signal.Signals(number)

    def _woken(self) -> None:
        self._drain()
        self._called()

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while self._wake.recv(4096):
                pass


@cache
def _pair() -> tuple[socket.socket, socket.socket]:
    """The process's own, and never closed: a handler of another thread, which has read the descriptor already, writes
    to it after it was taken back, and CPython tells on stderr of each such write that fails.
    """
    wake, told = socket.socketpair()
    for end in (wake, told):
        end.setblocking(False)
    return wake, told


def _but_late_signals(what: "sys.UnraisableHookArgs") -> None:
    """Python's own hook, but for what a signal of the last microseconds leaves: it is to be ignored, as all after it.

    One that another thread took before its handler was, and that the main thread finds afterwards, is told as "Signal 1
    ignored due to race condition" (CPython 3.10, bpo-43406), with a traceback out of wherever that was.
    """
    if what.object is not None or not isinstance(what.exc_value, OSError):
        sys.__unraisablehook__(what)
