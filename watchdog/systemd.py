"""Our own word to the service manager (sd_notify(3)); silent where there is none."""

import os
import socket
from collections.abc import MutableMapping


class Supervisor:
    """READY=1, STATUS=, WATCHDOG=1, STOPPING=1 to $NOTIFY_SOCKET."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Takes the address out of `environ`, so that nothing we start can speak for us."""
        address = environ.pop("NOTIFY_SOCKET", "")
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        mine = not pid or pid == str(os.getpid())
        self.watchdog_seconds = int(usec) / 1e6 if usec.isdigit() and mine else None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    @property
    def present(self) -> bool:
        """Whether a service manager listens."""
        return self._socket is not None

    def say(self, *words: str) -> None:
        """Send some KEY=VALUE words; a manager that cannot take them is no reason to stop."""
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(words).encode(), self._address)
        except OSError:
            return
