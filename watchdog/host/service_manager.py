"""Messages to the service manager (sd_notify(3)), and the sockets it keeps for us; does nothing without one."""

import os
import socket
from array import array
from collections import deque
from collections.abc import MutableMapping
from datetime import timedelta

from watchdog.clock import Clock
from watchdog.errors import ConfigError

FIRST_FD = 3  # sd_listen_fds(3), SD_LISTEN_FDS_START
STEP_SECONDS = 30  # allowed for one step of start or stop beyond TimeoutStartSec or TimeoutStopSec
UNSENT_LIMIT = 16_384  # messages about kept sockets that the manager's full queue did not take yet


class ServiceManager:
    """READY=1, STATUS=, RELOADING=1, STOPPING=1, WATCHDOG=1 and the descriptor store, to and from $NOTIFY_SOCKET.

    WATCHDOG=1 always means progress, never a timer: a completed sweep, a finished step of start or stop.
    """

    def __init__(self, environ: MutableMapping[str, str], clock: Clock | None = None) -> None:
        """Removes the variables meant for us from `environ`, so that no child can speak for us."""
        address = environ.pop("NOTIFY_SOCKET", "")
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        self._kept = _handed_over(environ)
        self._clock = clock or Clock()
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        self._unsent: deque[tuple[str, socket.socket | None]] = deque(maxlen=UNSENT_LIMIT)
        mine = not pid or pid == str(os.getpid())
        self.watchdog_seconds = int(usec) / 1e6 if usec.isdigit() and mine else None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    @property
    def present(self) -> bool:
        """Whether a service manager listens."""
        return self._socket is not None

    def refuse_interval(self, interval: timedelta) -> None:
        """Raise ConfigError if the unit's WatchdogSec= is too short for sweeps at that interval."""
        if problems := self.problems_with(interval):
            raise ConfigError(problems)

    def problems_with(self, interval: timedelta) -> list[str]:
        """The same as text: no message or one."""
        seconds, least = self.watchdog_seconds, 3 * interval.total_seconds()
        if seconds is None or seconds >= least:
            return []
        return [
            f"WatchdogSec={seconds:g} in the unit is below three sweep intervals; use at least {least:g}, or"
            f" a shorter sweep.interval_seconds"
        ]

    # -- state

    def ready(self, status: str) -> None:
        """The start, or a reload, is complete."""
        self._say("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it, even if the old settings were kept (the status then says so)."""
        self._say("RELOADING=1", f"MONOTONIC_USEC={int(self._clock.mono() * 1e6)}", "STATUS=reloading")

    def stopping(self, status: str) -> None:
        """The shutdown begins."""
        self._say("STOPPING=1", f"STATUS={status}")

    # -- progress

    def feed_watchdog(self, status: str) -> None:
        """A sweep was completed."""
        self._say("WATCHDOG=1", f"STATUS={status}")

    def extend_timeout(self) -> None:
        """A step of start, reload or stop is finished; the next one has STEP_SECONDS, whatever the unit's limits are.

        Two messages, in this order: the extension counts for the watchdog, too, and WATCHDOG=1 in the same datagram
        would be read after it and revoke it (seen with systemd 252).
        """
        self._say("WATCHDOG=1")
        self._say(f"EXTEND_TIMEOUT_USEC={STEP_SECONDS * 1_000_000}")

    # -- the descriptor store

    def keep(self, name: str, kept: socket.socket) -> None:
        """Have the manager keep a socket across our restart or crash (FDSTORE=1). `name`: at most 255 bytes, no `:`.

        FDPOLL=0: only we decide when it is no longer needed (systemd 246; before, an error or hang-up ended it).
        """
        self._store(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", kept)

    def discard(self, name: str) -> None:
        """The manager need not keep that socket any longer (FDSTOREREMOVE=1)."""
        self._store(f"FDSTOREREMOVE=1\nFDNAME={name}", None)

    def handed_over(self) -> dict[str, socket.socket]:
        """The sockets kept for the former daemon, by name, once. The caller must verify what they are."""
        kept, self._kept = self._kept, {}
        return kept

    def _store(self, words: str, kept: socket.socket | None) -> None:
        """Send with a descriptor; kept for the next call while the manager's queue is full.

        A hundred agents registered at once fill it.
        """
        if self._socket is not None:
            self._unsent.append((words, kept))
            self._send_unsent(self._socket)

    def _send_unsent(self, to: socket.socket) -> None:
        while self._unsent:
            words, kept = self._unsent[0]
            try:
                if kept is None:
                    to.sendto(words.encode(), self._address)
                elif kept.fileno() >= 0:
                    # Not socket.send_fds(), which forgets the address it is given (Python 3.11).
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [kept.fileno()]))
                    to.sendmsg([words.encode()], [rights], 0, self._address)
            except BlockingIOError:
                return
            except OSError:
                pass
            self._unsent.popleft()

    def _say(self, *words: str) -> None:
        """Send some KEY=VALUE assignments; a failure is ignored."""
        if self._socket is None:
            return
        self._send_unsent(self._socket)
        try:
            self._socket.sendto("\n".join(words).encode(), self._address)
        except OSError:
            return


def _handed_over(environ: MutableMapping[str, str]) -> dict[str, socket.socket]:
    """Descriptors from $LISTEN_FDS on, if they are meant for this process; other files than sockets are closed."""
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdigit():
        return {}
    found: dict[str, socket.socket] = {}
    for place in range(int(count)):
        fd = FIRST_FD + place
        name = names[place] if place < len(names) else ""
        try:
            os.set_inheritable(fd, False)
            kept = socket.socket(fileno=fd)
        except OSError:
            _close(fd)
            continue
        if name in found:
            found[name].close()
        found[name] = kept
    return found


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        return
