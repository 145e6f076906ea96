"""GET /events: the history as JSON lines, in order, at least once, over restarts of daemon and client.

A client keeps the last id it has dealt with and asks for what comes after. The registry is the only source: a ring of
the bell, or a second without one, only makes the next read come sooner. A client that does not read costs its own
connection, which fills and waits; nothing is kept for it in memory.

Tests: tests/control/routes/test_status.py, tests/cli/test_events.py.
"""

import asyncio
import json

from aiohttp import web

from watchdog.agents import selectors
from watchdog.control import remote_hosts
from watchdog.control.context import ControlContext, context_of, peer_at
from watchdog.control.peers import Guarded
from watchdog.control.resolve import resolve_ended
from watchdog.control.schemas import flag, gone, number
from watchdog.control.views import agent
from watchdog.errors import AgentNotFound, RegistryUnavailable, TooMany
from watchdog.registry.rows import EventRow

_BATCH = 500
_LOOK_EVERY = 1.0  # seconds; other writers of a shared database do not ring our bell


async def events(request: web.Request) -> web.StreamResponse:
    """Write what there is after `after`; with `follow`, continue until the client or the daemon ends."""
    context, peer = context_of(request), peer_at(request)
    after, follow = number(request, "after"), flag(request, "follow")
    word = request.query.get("agent")
    agent_id = None
    if word is not None:
        where = await remote_hosts.find_host(context, peer, word)
        if where.host != context.host:
            agent_id = (
                await remote_hosts.one(context, await remote_hosts.view_of(context, where.host), where)
            ).agent_id
        else:
            try:
                agent_id = selectors.resolve(context.fleet, peer, where.word).agent_id
            except AgentNotFound:
                agent_id = (await resolve_ended(context, peer, where.word)).agent_id
    owner = None if peer.admin else peer.uid
    if follow:
        _become_follower(request)
    first = await _after(context, after, agent_id, owner)  # before the head: an unreadable registry is a 503
    response = web.StreamResponse(headers={"Content-Type": "application/jsonl", "Cache-Control": "no-store"})
    await response.prepare(request)
    rows = first
    while True:
        bell = context.recorder.new_events.next()
        if rows:
            lines = "".join(json.dumps(agent.event(row), separators=(",", ":")) + "\n" for row in rows)
            await response.write(lines.encode())
            after = rows[-1].id
            await asyncio.sleep(
                min(_LOOK_EVERY, context.callers.charge_answer(peer, len(lines)))
            )  # the rest is its user's to pay
        if len(rows) < _BATCH:
            if not follow or context.recorder.new_events.closed() or gone(request):
                break
            await _ring_or_second(bell)
            if context.recorder.new_events.closed():
                follow = False  # one last look
        try:
            rows = await _after(context, after, agent_id, owner)
        except RegistryUnavailable:
            rows = []  # the stream continues when the registry is back
    await response.write_eof()
    return response


def _become_follower(request: web.Request) -> None:
    """Count this connection as a follower: those stay for days, and must not take places from beats. Raises TooMany."""
    guard = None if request.transport is None else request.transport.get_protocol()
    refusal = guard.follow() if isinstance(guard, Guarded) else None
    if refusal is not None:
        raise TooMany(refusal)


async def _after(context: ControlContext, after: int, agent_id: str | None, owner: int | None) -> list[EventRow]:
    registry = context.registry
    return await registry.read(registry.history.events, after, agent_id=agent_id, owner_uid=owner, limit=_BATCH)


async def _ring_or_second(bell: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(_LOOK_EVERY):
            await bell.wait()
    except TimeoutError:
        pass
