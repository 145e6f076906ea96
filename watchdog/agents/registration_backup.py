"""What was registered, once more beside the registry: a file for each agent that has nobody else to tell of it again.

`run` registers its agent anew when the daemon does not know it, and a vendor's hook or a foreign registry tells of its
own at the next event. Who was only registered would be forgotten with his row: an older registry, put back while no
daemon runs, would make a living agent nobody's. A copy is no second registry: it is read at start alone, it counts
for a process that lives, and it goes when its row is closed.
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
MOST = 1 << 20  # bytes that are read of one
SETTLE = 2.0  # seconds that what was asked for may take to be on the disk, at start and at the end


class RegistrationBackup:
    """Owns `<state_dir>/agents/<agent_id>`. Whatever fails with a copy is said and harms nothing else.

    One thread writes, in order: a directory that hangs keeps that thread, and nobody who registers.
    """

    def __init__(self, state_dir: str, clock: Clock, log: EventLogger) -> None:
        self._directory = os.path.join(state_dir, NAME)
        self._clock = clock
        self._log = log
        self._lines: dict[str, int] = {}  # by agent, what lies there, or is on its way: its hash
        self._made = False  # the directory is there
        self._disk = Pool(1, self._directory)

    def keep(self, agent: Agent) -> None:
        """Write it down, in place of what was there; the same again is not written.

        One that dropped from root is kept whoever tells of it again: an older row would give it back to root.
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
        """Its row is closed, or it has no claim to one any more."""
        self._lines.pop(agent_id, None)
        self._disk.submit(self._remove, agent_id)

    def settled(self, seconds: float = SETTLE) -> bool:
        """Wait until what was asked for so far is on the disk; False: not within so many seconds."""
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
        """All that can be read; another file is said and left alone."""
        found: list[AgentRow] = []
        self.settled()
        try:
            names = sorted(os.listdir(self._directory))
        except FileNotFoundError:
            return found
        except OSError as error:  # no start fails for want of copies
            self._log.event("row.quarantined", agent_id=NAME, why=f"copies of registrations cannot be read: {error}")
            return found
        for name in names:
            if name.endswith(".new"):
                continue  # its daemon died while it wrote
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
    """A FIFO among them would wait for a writer, and the start with it."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
