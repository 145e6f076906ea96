"""Finds an agent's conversation before anything is done to the agent: its exit may remove the record of it.

Sources in order: its own program, through the owner's helper; the transcript that it reported; a foreign registry. An
unknown conversation is not guessed: a wrong one that is resumed or purged would be another agent's work.

Tests: tests/kill/test_evidence.py, tests/e2e/test_resuming.py.
"""

from watchdog.agents.agent import Agent
from watchdog.agents.ownership import owner_of
from watchdog.core.conversations import RESUME, Conversation, conversation_of, kept_in
from watchdog.core.process import Presence
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.processes.identity import presence

DEADLINE = 1.0  # seconds that a kill may wait for it
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
    """Whether its processes include a program that keeps conversations: other kills need not wait for a helper."""
    return not _PROGRAMS.isdisjoint({agent.reg.agent_type, agent.reg.command, *(m.name for m in agent.tree.members)})
