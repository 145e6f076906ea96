"""What signals request of the daemon: to stop (TERM, INT), to read its configuration again (HUP).

Flags that are polled, not a queue. asyncio's own handlers pass each signal as one byte through a socket pair; a storm
of SIGHUPs filled it: a traceback on stderr for each further one, and a TERM among them was lost with its byte. Here the
handler itself sets the flag, and the byte only wakes the loop: a full pair wakes it as well.
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
    """Made on the main thread's running loop. Closed last, so a second SIGTERM during shutdown is ignored."""

    def __init__(self, called: Callable[[], None]) -> None:
        """`called` runs on the loop soon after a flag was set, once for all signals that came meanwhile."""
        self.stop: signal.Signals | None = None  # the first that requested it
        self.reload = False  # cleared by the part that reloads
        self._called = called
        self._at_terminal = sys.stdin.isatty()
        self._loop = asyncio.get_running_loop()
        self._wake, written = _pair()
        self._drain()  # drop the bytes of an earlier instance
        self._loop.add_reader(self._wake, self._woken)
        signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._raise)
            signal.siginterrupt(number, False)  # not all C libraries handle EINTR

    def close(self) -> None:
        """Stop waking the loop. Signals stay ignored.

        At interpreter exit Python restores the default handlers, and a late SIGHUP would become our exit status.
        """
        sys.unraisablehook = _but_late_signals
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self._loop.remove_reader(self._wake)

    def unheeded(self) -> bool:
        """Whether a stop was requested that the loop has not seen. For another thread to ask, when the loop is stuck.

        The C handler writes the signal's number to our pair at once; the Python handler waits for the main thread, and
        a main thread in uninterruptible sleep leaves the signal pending for the process (the caller blocks it).
        """
        try:
            came = self._wake.recv(4096, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:  # nothing
            came = b""
        return self.stop is not None or bool({*came, *signal.sigpending()} & STOPS)

    def _raise(self, number: int, _frame: FrameType | None) -> None:
        """Set the flag. A HUP because our terminal was closed means stop, not reload (isatty(3) then fails: EIO)."""
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
    """The two ends of the process's one pair: read by the loop, written by signals. Never closed.

    A handler of another thread that has already read the descriptor may write to it after it was unset, and CPython
    reports each failing write on stderr.
    """
    wake, written = socket.socketpair()
    for end in (wake, written):
        end.setblocking(False)
    return wake, written


def _but_late_signals(what: "sys.UnraisableHookArgs") -> None:
    """Python's own hook, but silent about signals of the last microseconds, to be ignored like later ones.

    If another thread took a signal before its handler was removed, and the main thread finds it afterwards, Python
    reports "Signal 1 ignored due to race condition" (CPython 3.10, bpo-43406), with a traceback from an arbitrary
    place.
    """
    if what.object is not None or not isinstance(what.exc_value, OSError):
        sys.__unraisablehook__(what)
