"""`run` as the main process of a `Type=notify` unit: forwards its agent's messages to the service manager.

Without `run` the agent would be the unit's main process and notify the manager by NOTIFY_SOCKET, which under `run` is
the agent's own socket. So READY=1, STATUS= and WATCHDOG=1 are forwarded from any process of its tree (a shell script
sends them by `systemd-notify`, a child); fields that decide about the unit's end and limits only from the agent's main
process. MAINPID= and the descriptor store never: the unit's main process is `run`.
"""

import os
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, socket

from watchdog.core.names import is_socket_of

_FROM_TREE = ("READY", "STATUS", "WATCHDOG")
_FROM_MAIN = ("STOPPING", "RELOADING", "MONOTONIC_USEC", "EXTEND_TIMEOUT_USEC", "WATCHDOG_USEC", "ERRNO", "BUSERROR")


class Upstream:
    """The manager's socket. Nothing here blocks or raises; what does not fit into its queue is sent with the next."""

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address[0] == "@" else address
        self._unsent: dict[str, str] = {}

    def pass_on(self, fields: dict[str, str], from_main: bool) -> None:
        """Forward the part of a message that is for the manager."""
        keys = (*_FROM_TREE, *_FROM_MAIN) if from_main else _FROM_TREE
        found = {key: fields[key] for key in keys if key in fields}
        if found.get("WATCHDOG", "1") != "1" and not from_main:
            del found["WATCHDOG"]  # `trigger` makes the manager kill the unit
        if found:
            self._unsent.update(found)
            self.flush()

    def flush(self) -> None:
        """Send what is still queued."""
        if not self._unsent:
            return
        sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK)
        try:
            sender.sendto("\n".join(f"{key}={value}" for key, value in self._unsent.items()).encode(), self._address)
        except BlockingIOError:
            return
        except OSError:
            pass  # no process listens there
        finally:
            sender.close()
        self._unsent.clear()


def open_upstream() -> Upstream | None:
    """The manager's socket if we are a unit's main process or were started by it; None if NOTIFY_SOCKET is another's or
    unset.

    The socket of an agent in whose tree we run is not used: a child agent's beats are its own.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    outer = os.environ.get("AGENT_WATCHDOG_ID", "")
    if address[:1] not in ("/", "@") or (outer and is_socket_of(address, outer)):
        return None
    main = os.environ.get("SYSTEMD_EXEC_PID", "")  # systemd 248 and later
    return Upstream(address) if main in ("", str(os.getpid()), str(os.getppid())) else None


def watchdog_of_unit() -> str | None:
    """WATCHDOG_USEC if the unit has WatchdogSec= and we are its main process: the agent beats in our place."""
    mine = os.environ.get("WATCHDOG_PID") == str(os.getpid()) and os.environ.get("NOTIFY_SOCKET")
    return os.environ.get("WATCHDOG_USEC") if mine else None
