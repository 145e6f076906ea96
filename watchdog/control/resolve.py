"""From a target (a name, id, pid, `tag:X`) to the agents that it means, if the caller may act on them.

Every user may know that an agent exists; so another user's is `permission_denied`, not `not found`. Only the agents
that the caller may act on are candidates: another user who takes the same name does not make it ambiguous.
"""

from watchdog.agents import selectors
from watchdog.agents.agent import Agent
from watchdog.agents.process_claim import has_ended
from watchdog.control import remote_hosts
from watchdog.control.context import ControlContext, Json
from watchdog.control.remote_hosts import HostView
from watchdog.core.agent import ENDED
from watchdog.core.peer import Peer
from watchdog.errors import AgentNotFound, BadRequest, Conflict, Forbidden, ProcessNotFound
from watchdog.registry.rows import AgentRow

_GROUPS = ("tag:", "task:", "type:")


def is_group(target: str) -> bool:
    """Whether a target can mean several agents."""
    return target in ("all", "stalled", "orphans") or target.startswith(_GROUPS)


def is_wide(target: str) -> bool:
    """Whether a target means all agents that have something in common, healthy ones included."""
    word = target.partition("@")[0]
    return word == "all" or word.startswith(("tag:", "type:"))


async def recheck_owner(context: ControlContext, peer: Peer, agent: Agent) -> None:
    """Refuse peers that may not act on an agent, now: one that root started may have dropped to a user meanwhile.

    Nothing else changes an owner: the uid that its process has at this instant gives no user an agent. Raises
    Forbidden.
    """
    await context.registrar.tracker.follow(agent, context.registry)
    if not peer.may(agent.reg.owner_uid):
        raise Forbidden(f"{agent.reg.name} belongs to uid {agent.reg.owner_uid}; you are uid {peer.uid}")


async def own_agent(context: ControlContext, peer: Peer, agent_id: str) -> Agent:
    """The living agent of an id or name that the peer may act on. Raises Conflict for one that has ended."""
    try:
        agent = selectors.resolve(context.fleet, peer, agent_id)
        await recheck_owner(context, peer, agent)
        return agent
    except AgentNotFound:
        row = await resolve_ended(context, peer, agent_id)
        raise Conflict(f"agent {row.agent_id} ({row.registration.name}) has ended ({row.status})") from None


async def resolve_ended(context: ControlContext, peer: Peer, word: str) -> AgentRow:
    """This host's newest ended agent of that id, name or pid; another user's only if the peer has none."""
    rows = await context.registry.read(context.registry.agents.find, word) or await _of_pid(context, peer, word)
    rows = [row for row in rows if row.status in ENDED and row.registration.host == context.host]
    mine = [row for row in rows if row.registration.owner_uid == peer.uid]
    if not mine and not peer.admin and selectors.is_anybodys(context.fleet, word):
        raise selectors.not_yours(word, peer)
    if not rows and selectors.is_number(word):
        raise _no_agents(context, peer, word)
    if not rows:
        there = await remote_hosts.hint(context, peer, word)
        if (one := unwatched(context, peer, word)) is not None:
            raise AgentNotFound(f"{word} is listed in {one['source']} and is not watched: {one['why']}")
        raise AgentNotFound(f"no agent is called {word!r} (see: agent-watchdog list --all){there}")
    row = (mine or rows)[0]
    if not peer.may(row.registration.owner_uid):
        raise Forbidden(f"{row.registration.name} ({row.agent_id}) belongs to uid {row.registration.owner_uid}")
    return row


def unwatched(context: ControlContext, peer: Peer, name: str) -> Json | None:
    """An entry of a foreign registry by that name which cannot be matched to any process."""
    return next((one for one in unwatched_of(context, peer) if one["name"] == name), None)


def unwatched_of(context: ControlContext, peer: Peer) -> list[Json]:
    """The entries of foreign registries that are not watched, as `list` shows them; to a user its own."""
    return [one for one in context.discovery.sources.shown() if peer.may(int(str(one["owner_uid"])))]


async def _of_pid(context: ControlContext, peer: Peer, word: str) -> list[AgentRow]:
    """Agents of this boot whose main process had that pid; none if another process has it now."""
    if not selectors.is_number(word) or len(word) > 7 or selectors.means_another(peer, word):
        return []
    if not await has_ended(int(word), context.host):
        return []
    rows = await context.registry.read(context.registry.agents.by_pid, int(word))
    known = [(row, row.registration.identity) for row in rows]
    return [row for row, identity in known if identity is not None and identity.boot_id == context.boot_id]


def _no_agents(context: ControlContext, peer: Peer, pid: str) -> AgentNotFound | ProcessNotFound:
    if selectors.means_another(peer, pid):
        return selectors.not_ours(pid)
    for agent in context.fleet:
        parts = {str(number) for number, _ in agent.processes} | {
            str(agent.tree.wrapper.pid) if agent.tree.wrapper else ""
        }
        if pid in parts and peer.may(agent.reg.owner_uid):
            name = agent.reg.name
            return ProcessNotFound(
                f"{pid} is not the main process of an agent, but one of {name}'s; use this instead: "
                f"agent-watchdog kill {name}"
            )
    return ProcessNotFound(
        f"{pid} is not the pid of an agent; the watchdog kills only what was registered"
        f" (see: agent-watchdog list; or agent-watchdog register --name N --pid {pid})"
    )


def group(context: ControlContext, peer: Peer, target: str) -> list[Agent]:
    """The living agents of a group that the peer may act on. Raises AgentNotFound if no agent is in it."""
    if target == "orphans":
        raise BadRequest(
            "orphans: these agents have ended already; `kill` kills their remaining processes, `reap` shows them"
        )
    mine = selectors.visible(context.fleet, peer)
    agents = selectors.select(context.fleet, target, mine)
    if agents or target in ("all", "stalled"):
        return agents
    if selectors.select(context.fleet, target):
        raise Forbidden(f"{target} matches only agents of other users; you may act only on your own")
    raise AgentNotFound(f"no living agent has {target} (see: agent-watchdog list)")


def members(context: ControlContext, peer: Peer, view: HostView, word: str) -> list[Agent]:
    """The living agents of one target on one host. Raises AgentNotFound, Ambiguous, Forbidden."""
    if view.host == context.host:
        return group(context, peer, word) if is_group(word) else [selectors.resolve(context.fleet, peer, word)]
    agents = [] if word == "orphans" else selectors.select(view.fleet, word)
    if not agents and word not in ("all", "stalled"):
        raise AgentNotFound(f"no living agent of host {view.host} has {word} (see: agent-watchdog list --all-hosts)")
    return agents


def includes_orphans(word: str) -> bool:
    """Whether a target also means processes that outlived their agents."""
    return word in ("all", "orphans") or word.startswith(("tag:", "type:"))


async def with_orphans(context: ControlContext, peer: Peer, view: HostView, word: str) -> list[Agent]:
    """As `members`, with the ended agents of that group whose processes live on; for `orphans` these alone."""
    kind, _, value = word.partition(":")
    fits = [
        agent
        for agent in await context.reaper.orphans()
        if kind in ("all", "orphans") or value in (agent.reg.tags if kind == "tag" else (agent.reg.agent_type,))
    ]
    mine = [agent for agent in fits if peer.may(agent.reg.owner_uid)]
    if word == "orphans":
        return mine
    try:
        return members(context, peer, view, word) + mine
    except (AgentNotFound, Forbidden):
        if mine:
            return mine
        raise
