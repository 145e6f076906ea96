"""Whether the kernel's OOM killer killed an agent, which from outside looks like any SIGKILL.

The kernel counts its OOM kills per memory cgroup. A count that grew since our last reading, together with a death by a
SIGKILL that was not ours, proves what neither proves alone.
"""

import signal
from collections.abc import Iterable
from contextlib import suppress

from watchdog.agents.agent import Agent
from watchdog.core.process import Presence
from watchdog.processes import oom
from watchdog.processes.identity import presence
from watchdog.processes.reader import awaited

SHELL = 128  # a shell, npm and others exit with this plus the number of the signal that killed their program (sh(1p))


def record_counts(agent: Agent) -> None:
    """Record the present counts; the former ones stay where nothing can be read or no process lives."""
    if agent.identity is not None:
        with suppress(OSError):
            _keep(agent, oom.counts((agent.identity.pid,))[agent.identity.pid])


async def record_all_counts(agents: Iterable[Agent]) -> None:
    """The same for many agents, in one call of the reader. Raises LookFailed."""
    mains = {agent.identity.pid: agent for agent in agents if agent.identity is not None}
    found = await awaited(None, oom.counts, tuple(mains))
    for pid, agent in mains.items():
        _keep(agent, found[pid])


def _keep(agent: Agent, counts: dict[str, int] | OSError) -> None:
    main = agent.identity
    if main is None or isinstance(counts, OSError):
        return
    if (
        counts != agent.tree.oom_counts and presence(main, agent.tree.pidfd) is Presence.ALIVE
    ):  # so this process was read
        agent.tree.count_oom(counts)


def oom_kill_reason(agent: Agent) -> str | None:
    """How it died, if the OOM killer killed it; None: there is no sign of that.

    The count of the cgroup above may also refer to others of its user, but the agent's own cgroup may be gone by now.
    """
    of_its_program = agent.exit.code == SHELL + signal.SIGKILL
    if agent.exit.signal != signal.SIGKILL and not of_its_program:
        return None
    for place, (directory, before) in enumerate(agent.tree.oom_counts.items()):
        now = oom.kills_in(directory)
        if now is not None and now > before:
            sure = "probably " if place or of_its_program else ""
            return f"{sure}killed by the kernel's OOM killer (oom_kill {now - before} in {directory})"
    return None
