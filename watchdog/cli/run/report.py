"""How an agent ended, written down beside its notify socket by its `run`: the daemon may not be there to get a report.

Written before the report to the daemon, and removed when it has answered, so that whoever is killed in between leaves
it. A later daemon reads it by a helper of our own uid (`owner.reports`): what the file's owner says of its own agent.
It lies where the sockets do, on a file system that a restart of the host empties: then the agent is `lost` anyway.
"""

import os
import time

from watchdog.cli.run.inbox import prepared
from watchdog.client.client import to_json

MOST = 256  # reports in one directory: of more, which no daemon fetched, the oldest is removed
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Report:
    """The file of one agent. Nothing here raises: `write` says in words why there is none."""

    def __init__(self, notify_socket: str, registration: dict[str, object], socket: str | None) -> None:
        """`socket`: the daemon's that was asked for by name, None when any daemon may take it."""
        self._directory = os.path.join(os.path.dirname(os.path.dirname(notify_socket)), "reports")
        self._path = os.path.join(self._directory, str(registration["agent_id"]))
        self._said = {"registration": registration, "socket": socket}

    def write(self, end: dict[str, object], home: str | None) -> str | None:
        """Its end as `PATCH /v1/agents/ID` tells it; None, or why it could not be written.

        `home`: the socket of the daemon whose agent it was: no other one is to clean up after it.
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
        """The daemon knows."""
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
            pass  # another `run` or the daemon has just removed one
