"""A backup of registrations beside the registry: a file per agent that no other program would report again.

`run` registers its agent again when the daemon does not know it, and a vendor's hook or a foreign registry reports its
agents at the next event. An agent that was only registered would be lost with its row: restoring an older registry
while no daemon runs would leave a living agent unwatched. A backup is no second registry: it is read only at start,
counts only for a living process, and is deleted when its row is closed.
"""

import os
from concurrent.futures import wait
from contextlib import suppress

from watchdog.agents.agent import Agent
from watchdog.clock import Clock
from watchdog.concurrency.threads import Pool
from watchdog.config.paths import ensure_directory
from watchdog.core.agent import Status
from watchdog.errors import UnsafeDirectory
from watchdog.registry.column_decoders import BadRow
from watchdog.registry.registration_codec import from_line, from_registration, to_line
from watchdog.registry.rows import AgentRow
from watchdog.telemetry.logger import EventLogger

NAME = "agents"  # of the directory, in the state directory
MOST = 1 << 20  # bytes read of one file
SETTLE = 2.0  # seconds to wait, at start and at shutdown, until queued writes are on the disk


class RegistrationBackup:
    """Owns `<state_dir>/agents/<agent_id>`. A failing backup is reported and affects nothing else.

    One thread writes, in order: a directory that hangs blocks that thread, and no registration.
    """

    def __init__(self, state_dir: str, clock: Clock, log: EventLogger) -> None:
        self._directory = os.path.join(state_dir, NAME)
        self._clock = clock
        self._log = log
        self._lines: dict[str, int] = {}  # by agent: hash of the content that is there or queued
        self._made = False  # the directory exists
        self._disk = Pool(1, self._directory)

    def keep(self, agent: Agent) -> None:
        """Save it in place of the former content; identical content is not written again.

        An agent that dropped from root is kept whichever program would report it again: an older row would return it to
        root.
        """
        if agent.reg.source != "register" and not agent.reg.dropped:
            return
        at = agent.reg.created_at or self._clock.now().wall
        line = to_line(from_registration(agent.reg, Status.RUNNING, at, agent.notify_socket))
        if self._lines.get(agent.agent_id) == hash(line):
            return
        self._lines[agent.agent_id] = hash(line)
        self._disk.submit(self._write, agent.agent_id, agent.reg.name, line)

    def drop(self, agent_id: str) -> None:
        """Its row is closed, or it no longer has a claim to one."""
        self._lines.pop(agent_id, None)
        self._disk.submit(self._remove, agent_id)

    def settled(self, seconds: float = SETTLE) -> bool:
        """Wait until all queued writes are on the disk; False: not within so many seconds."""
        return bool(wait([self._disk.submit(bool)], seconds).done)

    def _write(self, agent_id: str, name: str, line: str) -> None:
        path = os.path.join(self._directory, agent_id)
        try:
            if not self._made:
                ensure_directory(self._directory, 0o700)
                self._made = True
            with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
                file.write(line)
            os.replace(f"{path}.new", path)
        except (OSError, UnsafeDirectory) as error:
            self._made = False
            if self._lines.get(agent_id) == hash(line):
                del self._lines[agent_id]
            self._log.event("agent.not_copied", agent_id=agent_id, name=name, error=str(error))

    def _remove(self, agent_id: str) -> None:
        with suppress(OSError):
            os.unlink(os.path.join(self._directory, agent_id))

    def read(self) -> list[AgentRow]:
        """All readable backups; any other file is reported and left alone."""
        found: list[AgentRow] = []
        self.settled()
        try:
            names = sorted(os.listdir(self._directory))
        except FileNotFoundError:
            return found
        except OSError as error:  # no start fails for lack of backups
            self._log.event("row.quarantined", agent_id=NAME, why=f"copies of registrations cannot be read: {error}")
            return found
        for name in names:
            if name.endswith(".new"):
                continue  # left by a daemon that died while writing
            try:
                with open(os.path.join(self._directory, name), opener=_at_once) as file:
                    line = file.read(MOST)
                row = from_line(line)
                if row.agent_id != name:
                    raise BadRow(f"agent_id: {row.agent_id} is not the file's name")
                found.append(row)
                self._lines[name] = hash(line)
            except (OSError, BadRow, UnicodeDecodeError) as error:
                self._log.event("row.quarantined", agent_id=name, why=f"its copy cannot be read: {error}")
        return found


def _at_once(path: str, flags: int) -> int:
    """Opening a FIFO among them would wait for a writer and hang the start."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
