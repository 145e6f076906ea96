"""Whether who asks runs in an agent's process tree, as the kernel shows it now.

An agent that says `kill all` rarely knows which agents it means. It is shown that first (`kill` and `stop` without
`--go`).
"""

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.core.peer import Peer
from watchdog.processes.ancestry import lineage, marker
from watchdog.processes.reader import awaited


async def agent_containing(peer: Peer, fleet: Fleet) -> str | None:
    """In words, the agent in whose tree the peer is; None: in none.

    By the identities that the trees had at the last look, by descent from them, and by the marker. Who cannot be looked
    at (another pid namespace, hidepid, already gone) may be an agent's.
    """
    try:
        above, mark = await awaited(None, lineage, peer.pid), await awaited(None, marker, peer.pid)
    except OSError:
        return "of a process that the daemon cannot see"
    for agent in fleet:
        if agent.agent_id == mark or not agent.processes.isdisjoint(above):
            return f"of agent {_named(agent, peer)}"
    return None


def _named(agent: Agent, peer: Peer) -> str:
    return agent.reg.name if peer.may(agent.reg.owner_uid) else agent.agent_id
