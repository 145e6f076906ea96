"""POST /purge: the files of one ended agent's conversation go to the trash, by its owner's helper."""

from aiohttp import web

from watchdog.agents import selectors
from watchdog.control.context import ControlContext, Json, context_of, peer_at
from watchdog.control.resolve import is_group, resolve_ended
from watchdog.control.schemas import Purge, parse, read_body
from watchdog.core.conversations import Conversation, conversation_json, conversation_of, kept_in
from watchdog.core.peer import Peer
from watchdog.discovery import forget
from watchdog.errors import AgentNotFound, BadRequest, Conflict, OwnerCallFailed
from watchdog.registry.rows import AgentRow

PURGED = "agent.purged"
_SECONDS = 60.0


async def purge(request: web.Request) -> web.Response:
    """Show what would go, or (`yes`) move it; one agent, by its exact conversation id. A living agent is refused."""
    context, peer = context_of(request), peer_at(request)
    body = parse(Purge, await read_body(request))
    if is_group(body.agent) or "@" in body.agent:
        raise BadRequest(f"agent: {body.agent!r} is not one agent of this host; name it by its name or id")
    row = await _ended(context, peer, body.agent)
    async with context.callers.with_helper(), context.callers.purge_of(row.registration.owner_uid):
        return web.json_response(await _purge(context, peer, row, yes=body.yes))


async def _purge(context: ControlContext, peer: Peer, row: AgentRow, *, yes: bool) -> Json:
    reg, name = row.registration, row.registration.name
    conversation = await conversation_of_row(context, row)
    if conversation is None:
        raise Conflict(f"which conversation {name} was in is not known; nothing is removed")
    _refuse_shared(context, reg.owner_uid, conversation)
    args: Json = {"conversation": conversation_json(conversation), "dry_run": not yes}
    try:
        done = await context.helpers.call_in_fresh_helper(reg.owner_uid, "purge", args, _SECONDS)
    except OwnerCallFailed as error:
        raise Conflict(f"the conversation of {name} is not removed: {error}") from None
    paths, trash = [str(path) for path in done["paths"]], str(done["trash"])
    elsewhere: list[str] = []
    # Also where nothing is left: the run that moved it may have been killed before it could say so.
    if yes and (
        paths or await context.registry.read(context.registry.history.last_event, row.agent_id, {PURGED}) is None
    ):
        why = f"conversation {conversation.id}: {f'{len(paths)} to {trash}' if paths else 'nothing was left of it'}"
        evidence = {"conversation": conversation_json(conversation), "paths": paths, "trash": trash}
        registry = context.registry
        await registry.write(
            registry.history.add_event,
            PURGED,
            row.agent_id,
            peer.by,
            why,
            context.now(),
            evidence=evidence,
            owner_uid=reg.owner_uid,
        )
        elsewhere = await forget.remove_entries(
            context.helpers, row, peer.by, context.now(), resumable=False, with_messages=False
        )
        context.event(PURGED, agent_id=row.agent_id, name=name, by=peer.by, why=why)
    return {
        "success": True,
        "agent_id": row.agent_id,
        "name": name,
        "action": "purged" if yes else "would_purge",
        "conversation": conversation.id,
        "paths": paths,
        "trash": trash,
        "resumable": bool(paths) and not yes,
        "message": "; ".join([_told(conversation, paths, trash, yes), *elsewhere]),
    }


def _refuse_shared(context: ControlContext, owner: int, conversation: Conversation) -> None:
    """A living agent of the same owner may be in it: by its transcript, or by the registry that lists it."""
    for agent in context.fleet:
        told = kept_in(agent.reg.transcript)
        ids = {entry.conversation for entry in agent.reg.entries} | ({told.id} if told is not None else set())
        if agent.reg.owner_uid == owner and conversation.id in ids:
            name = agent.reg.name
            raise Conflict(
                f"{name} is in conversation {conversation.id} too; stop it first: agent-watchdog stop {name}"
            )


async def conversation_of_row(context: ControlContext, row: AgentRow) -> Conversation | None:
    """What was captured before its end, else what its transcript says."""
    for order in reversed(await context.registry.read(context.registry.kills.requests_of, row.agent_id)):
        told = conversation_of(order.outcome.get("conversation")) or conversation_of(order.evidence.get("conversation"))
        if told is not None:
            return told
    return kept_in(row.registration.transcript, row.registration.worktree)


async def _ended(context: ControlContext, peer: Peer, word: str) -> AgentRow:
    try:
        agent = selectors.resolve(context.fleet, peer, word)
    except AgentNotFound:
        return await resolve_ended(context, peer, word)
    name = agent.reg.name
    raise Conflict(f"{name} is watched and may be alive; stop it first: agent-watchdog stop {name}")


def _told(conversation: Conversation, paths: list[str], trash: str, done: bool) -> str:
    if not paths:
        return f"nothing is left of conversation {conversation.id}"
    if done:
        return f"conversation {conversation.id} was moved to {trash}; it can no longer be resumed"
    return f"--yes would move conversation {conversation.id} to {trash}; it could then no longer be resumed"
