"""GET and POST /restore: worktrees that lie in the trash, and bringing one back.

What lies there says the owner's helper, from the repositories alone: those that the registry remembers, and the one
that the client names. So what another daemon put there, or one before it was installed again, is found too.
"""

import asyncio
import json
import os
from typing import Annotated, Any

from aiohttp import web
from pydantic import Field

from watchdog.control.context import ControlContext, Json, context_of, peer_at
from watchdog.control.schemas import Body, Path, Plain, parse, read_body
from watchdog.core.hooks import printable
from watchdog.core.peer import Peer
from watchdog.errors import AgentNotFound, Ambiguous, BadRequest, Conflict, Forbidden, OwnerCallFailed

LOOK_SECONDS = 30.0  # for one owner's repositories
OTHERS_SECONDS = 5.0  # for those of each owner that was not named: any of them can have its helper hang
ACT_SECONDS = 150.0
SHORTEST = 4  # characters of an id that may stand for it
Uid = Annotated[int, Field(ge=0, lt=2**32 - 1)]


class Unheard(str):
    """The problem with an owner whose helper gave no answer: what lies in its trash is not listed."""

    __slots__ = ()


class Where(Body):
    """Whose trash: `place` is a directory in a repository; `owner_uid` is for root and admins."""

    place: Path | None = None
    owner_uid: Uid | None = None


class Restore(Where):
    """POST /restore. `id`: an agent's id, its beginning, or its name."""

    id: Plain
    dry_run: bool = False


async def listed(request: web.Request) -> web.Response:
    """What can be restored, of the owners whose agents the peer may act on."""
    context, peer = context_of(request), peer_at(request)
    query = request.query
    uid = query.get("owner_uid")
    if uid is not None and not (uid.isascii() and uid.isdigit() and int(uid) < 2**32 - 1):
        raise BadRequest(f"owner_uid: {uid!r} is no uid")
    given = {"place": query.get("place"), "owner_uid": None if uid is None else int(uid)}
    body = parse(Where, json.dumps(given).encode())
    async with context.callers.with_helper():
        found, problems = await _look(context, peer, body)
    unheard = [problem for problem in problems if isinstance(problem, Unheard)]
    return web.json_response({"restorable": found, "problems": problems, "unheard": unheard})


async def restore(request: web.Request) -> web.Response:
    """Restore one, as its owner; in log and history."""
    context, peer = context_of(request), peer_at(request)
    body = parse(Restore, await read_body(request))
    async with context.callers.with_helper():
        found, problems = await _look(context, peer, body)
        one = chosen(body.id, found, problems, body.owner_uid)
        uid = one["owner_uid"]
        assert isinstance(uid, int)
        asked = {"wanted": one["agent_id"], "places": [one["common"]], "dry_run": body.dry_run}
        try:
            told = _entry(await context.helpers.call_in_fresh_helper(uid, "restore", asked, ACT_SECONDS))
        except OwnerCallFailed as error:
            raise Conflict(f"{one['agent_id']} is not restored: {error}") from None
    if not body.dry_run:
        why, agent_id = str(told.get("message")), str(one["agent_id"])
        await context.registry.write(
            context.registry.history.add_event,
            "worktree.restored",
            agent_id,
            peer.by,
            why,
            context.now(),
            owner_uid=uid,
        )
        context.event("worktree.restored", agent_id=agent_id, by=peer.by, why=why)
    action = "would_restore" if body.dry_run else "restored"
    return web.json_response({**told, "success": True, "action": action, "owner_uid": uid})


async def _look(context: ControlContext, peer: Peer, where: Where) -> tuple[list[Json], list[str]]:
    found: list[Json] = []
    problems: list[str] = []
    own = peer.uid if os.geteuid() == 0 else os.geteuid()
    uid = own if where.owner_uid is None else where.owner_uid
    if not peer.may(uid):
        raise Forbidden(f"uid {peer.uid} may not look into the trash of uid {uid}")
    uids = {uid}
    if peer.admin:
        uids |= await context.registry.read(context.registry.agents.owners, context.host)
    looks = (_of_owner(context, each, where.place if each == uid else None, named=each == uid) for each in sorted(uids))
    for entries, told in await asyncio.gather(*looks):
        found += entries
        problems += told
    return found, problems


async def _of_owner(
    context: ControlContext, uid: int, place: str | None, *, named: bool
) -> tuple[list[Json], list[str]]:
    """What one owner's helper tells of its repositories, and what is wrong."""
    places = await context.registry.read(context.registry.leftovers.trashes, context.host, uid)
    places = places if place is None else [*places, place]
    if not places:
        return [], []
    try:
        limit = LOOK_SECONDS if named else OTHERS_SECONDS
        answer = _entry(await context.helpers.call_in_fresh_helper(uid, "restorable", {"places": places}, limit))
    except OwnerCallFailed as error:
        words = f"uid {uid}: not searched: its helper gave no answer within {limit:g} s: {error}"
        return [], [Unheard(words + ("" if named else "; with --repository DIR it has longer"))]
    entries, told = answer.get("found"), answer.get("problems")
    found = [
        {**entry, "owner_uid": uid}
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("agent_id"), str)
    ]
    return found, [printable(str(problem)) for problem in told] if isinstance(told, list) else []


def _entry(value: Any) -> Json:
    """An object in a helper's answer, its texts without what neither log nor database takes."""
    if not isinstance(value, dict):
        return {}
    return {str(key): printable(item) if isinstance(item, str) else item for key, item in value.items()}


def chosen(wanted: str, found: list[Json], problems: list[str], owner_uid: int | None = None) -> Json:
    """The one that is meant. Ids and names come from each owner's files: if two owners' match, that of `owner_uid` is
    chosen.

    Raises AgentNotFound, Ambiguous.
    """
    fitting = [one for one in found if wanted in (one["agent_id"], one.get("name"))]
    if not fitting and len(wanted) >= SHORTEST:
        fitting = [one for one in found if str(one["agent_id"]).startswith(wanted)]
    if not fitting:
        hint = f" ({'; '.join(problems)})" if problems else ""
        raise AgentNotFound(
            f"no worktree of {wanted} lies in the trash of a known repository{hint}; `agent-watchdog restore`"
            " lists all; run it within its repository, or with --repository DIR"
        )
    fitting = [one for one in fitting if one["owner_uid"] == owner_uid] or fitting
    several = sorted({f"{one['agent_id']} (uid {one['owner_uid']})" for one in fitting})
    if len(several) > 1:
        raise Ambiguous(f"{wanted} may be any of {', '.join(several)}; for different owners use --repository DIR")
    return fitting[0]
