"""What was registered, once more beside the registry: a file for each agent that has nobody else to tell of it again.

`run` registers its agent anew when the daemon does not know it, and a vendor's hook or a foreign registry tells of its
own at the next event. Who was only registered would be forgotten with his row: an older registry, put back while no
daemon runs, would make a living agent nobody's. A copy is no second registry: it is read at start alone, it counts
for a process that lives, and it goes when its row is closed.
"""

import os
from contextlib import suppress

from watchdog.clock import Clock
from watchdog.core.model import Status
from watchdog.errors import UnsafeDirectory
from watchdog.fleet import Agent
from watchdog.logs import Log
from watchdog.places import ensure_directory
from watchdog.registry.cells import BadRow
from watchdog.registry.rows import AgentRow
from watchdog.registry.written import from_line, from_registration, to_line

NAME = "agents"  # of the directory, in the state directory
MOST = 1 << 20  # bytes that are read of one


class Copies:
    """Owns `<state_dir>/agents/<agent_id>`. Whatever fails with a copy is said and harms nothing else."""

    def __init__(self, state_dir: str, clock: Clock, log: Log) -> None:
        self._directory = os.path.join(state_dir, NAME)
        self._clock = clock
        self._log = log
        self._lines: dict[str, int] = {}  # by agent, what lies there: its hash

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
        path = os.path.join(self._directory, agent.agent_id)
        try:
            if not self._lines:
                ensure_directory(self._directory, 0o700)
            with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
                file.write(line)
            os.replace(f"{path}.new", path)
            self._lines[agent.agent_id] = hash(line)
        except (OSError, UnsafeDirectory) as error:
            self._log.event("agent.not_copied", agent_id=agent.agent_id, name=agent.reg.name, error=str(error))

    def drop(self, agent_id: str) -> None:
        """Its row is closed, or it has no claim to one any more."""
        self._lines.pop(agent_id, None)
        with suppress(OSError):
            os.unlink(os.path.join(self._directory, agent_id))

    def read(self) -> list[AgentRow]:
        """All that can be read; another file is said and left alone."""
        found = []
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._directory)):
                if name.endswith(".new"):
                    continue  # its daemon died while it wrote
                try:
                    with open(os.path.join(self._directory, name)) as file:
                        line = file.read(MOST)
                    row = from_line(line)
                    if row.agent_id != name:
                        raise BadRow(f"agent_id: {row.agent_id} is not the file's name")
                    found.append(row)
                    self._lines[name] = hash(line)
                except (OSError, BadRow, UnicodeDecodeError) as error:
                    self._log.event("row.quarantined", agent_id=name, why=f"its copy cannot be read: {error}")
        return found
