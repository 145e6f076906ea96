"""POST /hold, /unhold, /remove: protect agents from kills, end that, close the rows of agents that have ended.

Tests: tests/control/routes/test_kill.py, tests/control/test_server.py.
"""

import asyncio
from datetime import datetime, timedelta

from aiohttp import web

from watchdog.agents import selectors
from watchdog.agents.agent import Agent
from watchdog.control import remote_hosts
from watchdog.control.context import ControlContext, Json, context_of, peer_at
from watchdog.control.resolve import group, is_group, members, recheck_owner, resolve_ended
from watchdog.control.schemas import Hold, Remove, Unhold, parse, read_body
from watchdog.control.views.agent import stamp
from watchdog.control.views.results import Patience, failure, goes_on, what_goes_on
from watchdog.core.agent import Status
from watchdog.core.kill import KillOptions, Reason
from watchdog.core.peer import Peer
from watchdog.core.process import Presence
from watchdog.discovery import forget
from watchdog.errors import AgentNotFound, Conflict, Forbidden, WatchdogError
from watchdog.processes.identity import presence
from watchdog.registry.rows import HoldRow

_NO_REASON = "no reason given"
BEGUN = frozenset({Status.ENDING, Status.UNKILLABLE})  # an order was claimed, signals follow


async def hold(request: web.Request) -> web.Response:
    """Store a hold, then let the sweep see it. On all agents: admins only."""
    context, peer = context_of(request), peer_at(request)
    body = parse(Hold, await read_body(request))
    until = None if body.for_seconds is None else context.now() + timedelta(seconds=body.for_seconds)
    reason = body.reason or _NO_REASON
    results = []
    context.callers.charge_named(peer, len(body.targets))
    targets = await _targets(context, peer, body.targets, request.path)
    context.callers.charge(peer, "hold", len(targets) - len(body.targets))
    for agent, result in targets:
        if result is None and agent is not None and agent.reg.host != context.host:
            await remote_hosts.hold(context, peer, agent, reason, until)
            await _say(context, peer, agent, "hold.started", reason)
            message = f"held{_for(reason)}; {_heeded(agent)}"
            result = {**_named(agent), "success": True, "until": stamp(until), "message": message}
        if result is None and agent is not None and agent.status in BEGUN:
            result = await _too_late(context, agent)
        agent_id = agent.agent_id if agent else None
        held = context.holds.of(agent_id, context.now())
        told = held is not None and (held.reason, held.by_uid) == (reason, peer.uid)
        if result is None and told and held is not None and held.until_at == until:
            result = {**_named(agent), "success": True, "until": stamp(until), "message": f"held already{_for(reason)}"}
        if result is None:
            registry = context.registry
            row = await _write(context, peer, agent_id, reason, until)
            for older in context.holds.lift(agent_id):
                if older.id != row.id:  # a sweep may have found it in the registry before this write returned
                    await registry.write(registry.history.end_hold, older.id, context.now())
            context.holds.put(
                row
            )  # no await from here to the look at the status: an order looks at both before it begins
            if agent is not None and agent.status in BEGUN:
                context.holds.lift(agent_id)
                await registry.write(registry.history.end_hold, row.id, context.now())
                results.append(await _too_late(context, agent))
                continue
            if not told:
                await _say(context, peer, agent, "hold.started", reason)
            result = {**_named(agent), "success": True, "until": stamp(until), "message": f"held{_for(reason)}"}
        results.append(result)
    context.look_soon()
    return _respond(results, "hold")


async def _write(
    context: ControlContext, peer: Peer, agent_id: str | None, reason: str, until: datetime | None
) -> HoldRow:
    """Into the row of the agent's last hold, if it had one: holds that follow each other need no more room than one."""
    registry, known = context.registry, context.holds.row_for(agent_id)
    if known is not None:
        row = await registry.write(registry.history.renew_hold, known, reason, peer.uid, context.now(), until)
        if row is not None and row.agent_id == agent_id:
            return row
    return await registry.write(
        registry.history.add_hold, agent_id, reason, peer.uid, context.now(), until, host=context.host
    )


async def unhold(request: web.Request) -> web.Response:
    """End the holds on the targets; without any, the one on all agents and those of the daemon itself."""
    context, peer = context_of(request), peer_at(request)
    body = parse(Unhold, await read_body(request))
    results = []
    context.callers.charge_named(peer, len(body.targets))
    targets = await _targets(context, peer, body.targets, request.path)
    context.callers.charge(peer, "unhold", len(targets) - len(body.targets))
    for agent, result in targets:
        if result is None:
            there = agent if agent is not None and agent.reg.host != context.host else None
            if there is not None:
                lifted = await remote_hosts.unhold(context, there)
            else:
                lifted = context.holds.lift(agent.agent_id if agent else None)
            for row in lifted:
                if there is None:
                    await context.registry.write(context.registry.history.end_hold, row.id, context.now())
                await _say(context, peer, agent, "hold.ended", row.reason)
            own = context.safeguards.lift() if agent is None else []
            for why in own:
                await _say(context, peer, None, "hold.ended", f"lifted: {why}")
            message = "no longer held" if lifted or own else "it was not held" if agent else "they were not held"
            if own:  # the caller named none of these, and would not learn that they were lifted
                message += f"; lifted what made the daemon itself hold back kills: {'; '.join(own)}"
            if there is not None and lifted:
                message += f"; {_heeded(there)}"
            result = {**_named(agent), "success": True, "message": message}
        results.append(result)
    context.look_soon()
    return _respond(results, "unhold")


async def remove(request: web.Request) -> web.Response:
    """Close what is left of agents whose process is gone; one that lives is refused."""
    context, peer = context_of(request), peer_at(request)
    body = parse(Remove, await read_body(request))
    context.callers.charge_named(peer, len(body.targets))
    results, patience = [], Patience(peer)
    for target in body.targets:
        word = target
        try:
            where = await remote_hosts.find_host(context, peer, target)
            word = where.word
            if where.host != context.host:
                raise Conflict(f"remove {word} on host {where.host} itself: whether it is alive is known only there")
            agents = group(context, peer, word) if is_group(word) else [selectors.resolve(context.fleet, peer, word)]
        except AgentNotFound as error:
            results.append(await _not_living(context, peer, word, error, body, request.path))
            continue
        except WatchdogError as error:
            results.append(_refused(context, peer, target, error, request.path))
            continue
        # Of all targets together the first agent is paid for.
        context.callers.charge(peer, "remove", len(agents) + bool(results))
        told = await asyncio.gather(*(_remove(context, peer, agent, body, patience) for agent in agents))
        patience.spend(told)
        results += told
    return _respond(results, "remove")


async def _remove(context: ControlContext, peer: Peer, agent: Agent, body: Remove, patience: Patience) -> Json:
    """A living process is never removed; what is not there is closed by the one way that closes rows."""
    try:
        await recheck_owner(context, peer, agent)
        if agent.identity is not None:
            seen = presence(agent.identity, agent.tree.pidfd, host=context.host)
            if seen is not Presence.ABSENT:
                state = "is alive" if seen is Presence.ALIVE else "may be alive (the look failed)"
                raise Conflict(f"{agent.reg.name} {state}; kill it first: agent-watchdog kill {agent.reg.name}")
        if body.dry_run:
            return {**_named(agent), "success": True, "action": "would_remove", "message": "would be removed"}
        reason = Reason.GONE if agent.identity is not None else Reason.STOP
        why = body.reason or f"removed by {peer.by}"
        options = KillOptions(text=why, with_messages=body.with_messages, by_root=peer.admin)
        request_id = await context.kill_worker.request(agent, reason, options, peer.by, why)
        outcome = await context.kill_worker.finished(request_id, 120.0, patience.for_cleanup(agent.reg.owner_uid))
        if outcome is not None and goes_on(outcome):
            goes = what_goes_on(outcome, agent.reg.name)
            refusal = Conflict(f"{agent.reg.name} is dead, but not removed yet: {goes}")
            return failure(agent.agent_id, refusal, agent) | {"cleanup_left": outcome["cleanup_left"]}
        if outcome is None or not outcome.get("success"):
            told = "it goes on" if outcome is None else outcome.get("message")
            raise Conflict(f"{agent.reg.name} is not removed yet: {told}")
    except WatchdogError as error:
        return failure(agent.agent_id, error, agent)
    message = str(outcome.get("message"))
    return {**_named(agent), "success": True, "action": "removed", "message": message, "how": f"removed: {message}"}


async def _not_living(
    context: ControlContext, peer: Peer, target: str, error: AgentNotFound, body: Remove, route: str
) -> Json:
    try:
        if is_group(target) or "@" in target:  # no name holds one: its host is not known
            return failure(target, error)
        row = await resolve_ended(context, peer, target)
    except WatchdogError as other:
        return _refused(context, peer, target, other, route)
    message = f"already closed: {row.status}; its history is kept for retention_days"
    if body.with_messages and not body.dry_run:
        left = await forget.remove_entries(
            context.helpers, row, peer.by, context.now(), resumable=True, with_messages=True
        )
        message = "; ".join([message, *left])
    return {
        "success": True,
        "agent_id": row.agent_id,
        "name": row.registration.name,
        "action": "none",
        "message": message,
    }


async def _too_late(context: ControlContext, agent: Agent) -> Json:
    """The refusal where the agent is being killed already: after the first signal nothing is taken back."""
    registry, request_id = context.registry, agent.ending.request_id
    order = await registry.read(registry.kills.request, request_id) if request_id is not None else None
    since = f" since {stamp(order.claimed_at or order.created_at)}, by {order.by}: {order.reason}" if order else ""
    text = f"{agent.reg.name} is being killed{since}; it is too late for a hold"
    return failure(agent.agent_id, Conflict(text), agent)


async def _targets(
    context: ControlContext, peer: Peer, targets: list[str], route: str
) -> list[tuple[Agent | None, Json | None]]:
    """(agent, None) for each that may be acted on, (None, None) for "all agents", (None, result) for a refusal."""
    chosen: list[tuple[Agent | None, Json | None]] = []
    if not targets:
        if peer.admin:
            return [(None, None)]
        refusal = Forbidden(
            "only root and the admin group may hold all agents; name your agents, or use `all` for your own"
        )
        return [(None, _refused(context, peer, "", refusal, route))]
    seen: set[str] = set()
    for target in targets:
        try:
            where = await remote_hosts.find_host(context, peer, target)
            agents = members(context, peer, await remote_hosts.view_of(context, where.host), where.word)
            for agent in agents if where.host == context.host else []:
                await recheck_owner(context, peer, agent)
        except WatchdogError as error:
            chosen.append((None, _refused(context, peer, target, error, route)))
            continue
        chosen += [(agent, None) for agent in agents if agent.agent_id not in seen]
        seen |= {agent.agent_id for agent in agents}
    return chosen


def _refused(context: ControlContext, peer: Peer, target: str, error: WatchdogError, route: str) -> Json:
    if isinstance(error, Forbidden):
        context.callers.deny(peer, route, str(error))
    return failure(target, error)


def _for(reason: str) -> str:
    return f" ({reason})" if reason == _NO_REASON else f": {reason}"


def _heeded(agent: Agent) -> str:
    return f"the daemon of host {agent.reg.host} obeys it from its next sweep on"


def _named(agent: Agent | None) -> Json:
    if agent is None:
        return {"agent_id": None, "name": "all agents"}
    return {"agent_id": agent.agent_id, "name": agent.reg.name, "owner_uid": agent.reg.owner_uid}


async def _say(context: ControlContext, peer: Peer, agent: Agent | None, event: str, why: str) -> None:
    agent_id, owner = (agent.agent_id, agent.reg.owner_uid) if agent else (None, None)
    await context.registry.write(
        context.registry.history.add_event, event, agent_id, peer.by, why, context.now(), owner_uid=owner
    )
    context.event(event, **_named(agent), by=peer.by, why=why)


def _respond(results: list[Json], action: str) -> web.Response:
    """All targets' results; one target that failed gives its own HTTP status."""
    statuses = [result.pop("http_status", 200) for result in results]
    success = all(bool(result["success"]) for result in results)
    status = statuses[0] if len(statuses) == 1 else 200
    assert isinstance(status, int)
    body: Json = {"success": success, "action": action, "results": results}
    if not success:
        bad = next(result for result in results if not result["success"])
        body |= {"error": bad.get("error"), "message": bad.get("message")}
    return web.json_response(body, status=status)
