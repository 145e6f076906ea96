"""A report of an agent's end, written by its `run` next to its notify socket, in case no daemon is there to receive it.

It is written before the end is reported to the daemon, and removed when that has answered, so that it survives a kill
in between. A later daemon reads it by a helper of our own uid (`owner.run_reports`), as a statement of the file's owner
about its own agent. It is in the directory of the sockets, which a reboot empties: then the agent is `lost` anyway.
"""

import os
import time

from watchdog.cli.run.inbox import prepared
from watchdog.client.client import to_json

MOST = 256  # reports per directory; beyond that the oldest, which no daemon has fetched, is removed
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Report:
    """The report of one agent. Nothing here raises: `write` returns the reason if it fails."""

    def __init__(self, notify_socket: str, registration: dict[str, object], socket: str | None) -> None:
        """`socket`: the daemon's socket if it was given explicitly; None: any daemon may read it."""
        self._directory = os.path.join(os.path.dirname(os.path.dirname(notify_socket)), "reports")
        self._path = os.path.join(self._directory, str(registration["agent_id"]))
        self._said = {"registration": registration, "socket": socket}

    def write(self, end: dict[str, object], home: str | None) -> str | None:
        """Write its end in the format of `PATCH /v1/agents/ID`; return None, or why that failed.

        `home`: the socket of the daemon that had the agent: no other one may clean up after it.
        """
        if home is not None:
            self._said["socket"] = home
        try:
            with open(_BOOT_ID) as file:
                boot_id = file.read().strip()
            if not (prepared(os.path.dirname(self._directory)) and prepared(self._directory)):
                return f"{self._directory} is not our own"
            self._make_room()
            text = to_json({**self._said, "boot_id": boot_id, "ended_at": time.time(), "end": end})
            new = os.open(f"{self._path}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(new, "wb") as file:
                file.write(text.encode())
            os.replace(f"{self._path}.new", self._path)
        except OSError as error:
            return str(error)
        return None

    def remove(self) -> None:
        """Remove it, as the daemon knows the end."""
        try:  # noqa: SIM105  contextlib costs memory
            os.unlink(self._path)
        except OSError:
            pass

    def _make_room(self) -> None:
        paths = [os.path.join(self._directory, name) for name in os.listdir(self._directory)]
        try:
            if len(paths) >= MOST:
                os.unlink(min(paths, key=lambda path: os.lstat(path).st_mtime))
        except FileNotFoundError:
            pass  # another `run` or the daemon has just removed it
