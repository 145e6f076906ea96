"""Which conversation an agent is in, captured before anything is done to it: its exit may remove its entry.

What its own program says, by the owner's helper; else the transcript that it reported; else what a foreign registry
says. What is not known is not guessed: a wrong conversation taken up again, or purged, would be another agent's work.

Tests: tests/kill/test_evidence.py, tests/e2e/test_resuming.py.
"""

from watchdog.agents.agent import Agent
from watchdog.agents.ownership import owner_of
from watchdog.core.conversations import RESUME, Conversation, conversation_of, kept_in
from watchdog.core.process import Presence
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.processes.identity import presence

DEADLINE = 1.0  # seconds that the end of an agent may wait for it
_PROGRAMS = frozenset({*RESUME, "antigravity"})


async def find_conversation(agent: Agent, helpers: HelperPool) -> Conversation | None:
    """The conversation of a living or dead agent, as far as it is known now."""
    main = agent.identity
    if main is not None and _may_have(agent) and presence(main, agent.tree.pidfd) is not Presence.ABSENT:
        others = [m.identity for m in agent.tree.members if m.uid == agent.reg.owner_uid and m.identity.pid != main.pid]
        processes = [[one.pid, one.start_ticks] for one in (main, *others)]
        try:
            told = await helpers.call(owner_of(agent), "conversation", {"processes": processes}, DEADLINE)
        except OwnerCallFailed:
            told = None
        if (found := conversation_of(told)) is not None:
            return found
    told = [{"vendor": agent.reg.agent_type, "id": entry.conversation} for entry in agent.reg.entries]
    listed = next(filter(None, map(conversation_of, told)), None)
    return kept_in(agent.reg.transcript, agent.reg.worktree) or listed


def _may_have(agent: Agent) -> bool:
    """Whether a program that keeps conversations is seen in it: no other agent's end waits for a helper."""
    return not _PROGRAMS.isdisjoint({agent.reg.agent_type, agent.reg.command, *(m.name for m in agent.tree.members)})
