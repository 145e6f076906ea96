"""Resolves a selector (`name`, id, pid, `tag:X`, ...) to living agents.

A peer sees only agents that it may touch: another user's agent of the same name does not make a name ambiguous.
"""

from datetime import timedelta

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.process_claim import foreign_number
from watchdog.core.agent import Verdict
from watchdog.core.peer import Peer
from watchdog.errors import AgentNotFound, Ambiguous, BadRequest, Forbidden, NotYours


def is_number(target: str) -> bool:
    """Whether it may be a pid: ASCII digits alone, as int() also accepts other scripts and fails on some (`²`)."""
    return target.isascii() and target.isdigit()


def select_one(fleet: Fleet, target: str, visible: frozenset[str] | None = None) -> Agent:
    """The living agent with that name, id, unique id prefix (8 or more characters) or pid.

    `visible` limits names and prefixes to those ids. Raises AgentNotFound or Ambiguous, which lists the ids.

    A name that equals the beginning of another agent's id is only a name: its user chose it.
    """
    candidates = [a for a in fleet if visible is None or a.agent_id in visible]
    exact = [a for a in candidates if a.agent_id == target]
    begins = len(target) >= 8
    fits = exact or [a for a in candidates if a.reg.name == target or (begins and a.agent_id.startswith(target))]
    if not fits and is_number(target):
        fits = [a for a in candidates if a.identity is not None and a.identity.pid == int(target)]
    if not fits:
        raise AgentNotFound(f"no living agent is called {target!r} (see: agent-watchdog list)")
    if len(fits) > 1:
        ids = ", ".join(sorted(f"{a.agent_id} (uid {a.reg.owner_uid})" for a in fits))
        raise Ambiguous(f"{target!r} fits {len(fits)} living agents, say which: {ids}")
    return fits[0]


def silent(agents: list[Agent], limit: timedelta) -> list[Agent]:
    """Agents that promised beats and sent none for that long, except those that wait for a human or announced it."""
    return [
        a
        for a in agents
        if a.heartbeat.said.promised
        and a.heartbeat.silence.counted >= limit
        and a.judged.verdict is not Verdict.WAITING
    ]


def select(fleet: Fleet, target: str, visible: frozenset[str] | None = None) -> list[Agent]:
    """All living agents of one selector: a single one, `tag:X`, `task:X`, `type:X`, `stalled` or `all`.

    An agent that has beaten since the sweep that found it stalled is not `stalled`.
    """
    candidates = [a for a in fleet if visible is None or a.agent_id in visible]
    kind, _, value = target.partition(":")
    if target == "all":
        return candidates
    if target == "stalled":
        return [
            a
            for a in candidates
            if a.judged.verdict is Verdict.STALLED and a.heartbeat.rhythm.renewed == a.judged.renewed_judged
        ]
    if value and kind == "tag":
        return [a for a in candidates if value in a.reg.tags]
    if value and kind == "task":
        return [a for a in candidates if a.reg.task_id == value]
    if value and kind == "type":
        return [a for a in candidates if a.reg.agent_type == value]
    return [select_one(fleet, target, visible)]


def visible(fleet: Fleet, peer: Peer) -> frozenset[str]:
    """The ids of the living agents that the peer may act on."""
    return frozenset(agent.agent_id for agent in fleet if peer.may(agent.reg.owner_uid))


def resolve(fleet: Fleet, peer: Peer, word: str) -> Agent:
    """The living agent that the peer means and may touch. Raises AgentNotFound (NotYours), Ambiguous."""
    if means_another(peer, word):
        raise not_ours(word)
    try:
        return select_one(fleet, word, visible(fleet, peer))
    except AgentNotFound as missing:
        if peer.admin or not is_anybodys(fleet, word):
            raise missing from None
    raise not_yours(word, peer)


def parent_of(fleet: Fleet, peer: Peer, word: str, owner: int) -> str:
    """The id of the living agent that is to be the parent of an agent of that owner.

    Raises BadRequest, Ambiguous, Forbidden.
    """
    try:
        agent = resolve(fleet, peer, word)
    except AgentNotFound as error:
        if isinstance(error, Forbidden):
            raise
        raise BadRequest(f"parent: {word!r} is not a living agent; name one, or leave this out") from None
    if agent.reg.owner_uid != owner:
        raise Forbidden(f"parent: {agent.reg.name} belongs to uid {agent.reg.owner_uid}, this agent to uid {owner}")
    return agent.agent_id


def is_anybodys(fleet: Fleet, word: str) -> bool:
    """Whether it means a living agent of any owner."""
    try:
        select_one(fleet, word)
    except AgentNotFound:
        return False
    except Ambiguous:
        return True
    return True


def means_another(peer: Peer, word: str) -> bool:
    """Whether it is a pid from another pid namespace; a number of eight or more digits may be an id."""
    return is_number(word) and len(word) < 8 and foreign_number(peer)


def not_yours(word: str, peer: Peer) -> NotYours:
    """The error for another user's agent."""
    return NotYours(f"{word!r} is another user's agent; you are uid {peer.uid} and may act only on your own")


def not_ours(pid: str) -> AgentNotFound:
    """The error for a pid in another pid namespace."""
    return AgentNotFound(f"{pid} is a number of your own pid namespace; give its name or id")
