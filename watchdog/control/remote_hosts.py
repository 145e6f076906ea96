"""Agents of other hosts on a shared registry: shown as their daemons last wrote them, and never touched from here.

`WORD@HOST` means one of them; so does a whole agent id. An agent is killed by its own host's daemon, which finds the
order within a sweep interval: all that is done here is to write that row, and to look for its outcome.

The kernel says who the caller is on this host only: uid 1000 elsewhere may be another person. So only root, the admin
group and the user that runs the daemon may act on other hosts' agents.
"""

import asyncio
import re
import secrets
from dataclasses import dataclass
from datetime import datetime

from watchdog.agents import selectors
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.holds import Holds
from watchdog.agents.persistence import restore
from watchdog.control.context import ControlContext, Json
from watchdog.control.views import agent as views
from watchdog.control.views import failures
from watchdog.control.views.results import kill_result
from watchdog.core.agent import ENDED, LIVE, Status
from watchdog.core.kill import KillOptions, KillStep, Reason
from watchdog.core.peer import Peer
from watchdog.errors import AgentNotFound, Ambiguous, Conflict, Forbidden, RegistryUnavailable
from watchdog.kill.order import to_json
from watchdog.registry.rows import AgentRow, HoldRow, RequestRow
from watchdog.registry.schema import OPEN_STATUSES

_ID = re.compile(r"[0-9a-f]{32}")
_PREFIX = 4  # characters of a host's name at least; a machine-id has 32
_LOOK = 0.5  # seconds between two reads of an outcome
TAKE_UP = 30.0  # seconds, or three sweep intervals, in which a daemon that is connected should have taken an order up


@dataclass(frozen=True)
class HostView:
    """One host: its living agents and the holds on them. For this host the daemon's own, for others copies."""

    host: str
    fleet: Fleet
    holds: Holds


@dataclass(frozen=True)
class TargetOnHost:
    """A target without its host, and the host where it is looked for."""

    word: str
    host: str


async def find_host(context: ControlContext, peer: Peer, target: str) -> TargetOnHost:
    """Split a target into word and host. Raises AgentNotFound and Ambiguous for a host, Forbidden for another host."""
    word, at, host = target.rpartition("@")
    if not at:
        return TargetOnHost(target, await _host_of(context, peer, target))
    if not peer.admin:
        if host != context.host:
            raise _forbidden(peer)
        return TargetOnHost(word, host)
    hosts = {context.host, *await context.registry.read(context.registry.agents.hosts)}
    fits = [host] if host in hosts else [h for h in hosts if len(host) >= _PREFIX and h.startswith(host)]
    if len(fits) > 1:
        raise Ambiguous(f"host {host!r} matches {len(fits)} hosts; name one: {', '.join(sorted(fits))}")
    if fits:
        return TargetOnHost(word, fits[0])
    if target.startswith("task:"):
        return TargetOnHost(target, context.host)  # a task's id may hold an @ of its own
    raise AgentNotFound(f"no host {host!r} has agents in this registry; known are {', '.join(sorted(hosts))}")


async def view_of(context: ControlContext, host: str) -> HostView:
    """The host's living agents and holds."""
    if host == context.host:
        return HostView(host, context.fleet, context.holds)
    registry = context.registry
    rows, _ = await registry.read(registry.agents.live, host)
    fleet = Fleet()
    for row in rows:
        fleet.add(remembered(context, row))
    return HostView(host, fleet, Holds(await registry.read(registry.history.active_holds, host)))


def remembered(context: ControlContext, row: AgentRow) -> Agent:
    """A living agent of another host as its daemon wrote it down: for looking at, never to be handed to a worker."""
    agent = Agent(row.registration, context.settings.policy_for(row.registration), row.status)
    restore(agent, row)
    agent.judged.written(row.verdict, row.error_message or "")
    return agent


async def ended(context: ControlContext, where: TargetOnHost) -> AgentRow:
    """The newest ended agent of that id or name on that host. Raises AgentNotFound."""
    for row in await context.registry.read(context.registry.agents.find, where.word):
        if row.status in ENDED and row.registration.host == where.host:
            return row
    raise AgentNotFound(
        f"no agent of host {where.host} is called {where.word!r} (see: agent-watchdog list --all-hosts)"
    )


async def one(context: ControlContext, view: HostView, where: TargetOnHost) -> Agent | AgentRow:
    """One agent of another host, the living one of that name before the newest that has ended."""
    try:
        return selectors.select_one(view.fleet, where.word)
    except AgentNotFound:
        return await ended(context, where)


async def listed(context: ControlContext, peer: Peer, *, ended: bool, tag: str | None, name: str | None) -> list[Json]:
    """Other hosts' agents for a list; for callers that may not act on them, what every user may know."""
    rows = await context.registry.read(context.registry.agents.newest, ended=ended, tag=tag)
    rows = [row for row in rows if row.registration.host != context.host and name in (None, row.registration.name)]
    if not peer.admin:
        # A tag is evidence: it must not be found out by asking for it.
        return [] if tag is not None else [views.public(row) | {"host": row.registration.host} for row in rows]
    entries, heard = [], {host: await _daemon(context, host) for host in {row.registration.host for row in rows}}
    for row in rows:
        agent = row if row.status in ENDED else remembered(context, row)
        entries.append(views.listed(agent, peer, context.now()) | _differences(agent, heard[row.registration.host]))
    await failures.add(context, entries)
    return entries


async def differences(context: ControlContext, agent: Agent | AgentRow) -> Json:
    """What is to be said otherwise of another host's agent: its policy, its holds, its next verdict are not ours."""
    reg = agent.reg if isinstance(agent, Agent) else agent.registration
    if reg.host == context.host:
        return {}
    return _differences(agent, await _daemon(context, reg.host))


def _differences(agent: Agent | AgentRow, daemon: str) -> Json:
    if isinstance(agent, AgentRow):
        return {"host": agent.registration.host}
    host = agent.reg.host
    return {
        "host": host,
        "why": agent.judged.line or f"as last written by its host's daemon, which {daemon}",
        "after_seconds": views.seconds(agent.reg.stall_after),
        "outlook": [f"The daemon of host {host} judges it, and {daemon}. This is what that wrote last."],
    }


async def _daemon(context: ControlContext, host: str) -> str:
    heard = await context.registry.read(context.registry.sync.daemon_heard, host)
    return {True: "is connected", False: "is not connected", None: "may be there or not"}[heard]


async def hint(context: ControlContext, peer: Peer, word: str) -> str:
    """Where else an agent of that name lives, as the end of a sentence; empty when nowhere, or not for this peer."""
    if not peer.admin:
        return ""
    rows = await context.registry.read(context.registry.agents.find, word, live_only=True)
    there = sorted({f"{row.registration.name}@{row.registration.host}" for row in rows if row.status in LIVE})
    return f"; on another host: {', '.join(there[:5])}" if there else ""


async def order(
    context: ControlContext,
    peer: Peer,
    agent: Agent,
    reason: Reason,
    options: KillOptions,
    *,
    limit: float | None,
    cleanup: float,
) -> Json:
    """Commit an order for another host's daemon; unless `limit` is None, look for its outcome for that many seconds.

    `cleanup`: seconds for what comes after the proof that all of it is dead.
    """
    registry, host, name = context.registry, agent.reg.host, f"{agent.reg.name}@{agent.reg.host}"
    by = f"{peer.by} of host {context.host}"
    why = options.text or f"asked for by {by}"
    request_id = secrets.token_hex(8)
    opened = await registry.write(
        registry.kills.open_request,
        request_id,
        agent.agent_id,
        reason,
        by=by,
        now=context.now(),
        identity=agent.identity,
        options=to_json(options, 0, why),
        why=why,
        owner_uid=agent.reg.owner_uid,
    )
    if opened:
        facts = {"agent_id": agent.agent_id, "name": agent.reg.name, "request_id": request_id}
        context.event("kill.requested", **facts, reason=reason, by=by, why=why, for_host=host)
    row = (await registry.read(registry.kills.request, request_id) if opened else None) or await _open(context, agent)
    result = {**kill_result(agent, row.request_id, None, options, now=context.now(), waited=False), "host": host}
    if limit is None:
        return result | {"message": f"an order for the daemon of host {host} is committed (agent-watchdog why {name})"}
    row, waits = await _followed(context, row, host, limit, cleanup)
    if waits is not None:
        message = f"requested, not finished yet: {waits} (agent-watchdog why {name})"
        return result | {"success": False, "error": "waiting", "message": message, "http_status": 202}
    outcome = {"success": row.status == "done", **row.outcome}
    if row.finished_at is None and row.step == KillStep.CLEANUP:
        outcome |= {"cleanup_left": []}  # which of its hooks, that daemon knows
    if row.status == "withdrawn":
        outcome = {"error": "withdrawn", "message": outcome.get("why"), **outcome}
    result = kill_result(agent, row.request_id, outcome, options, now=context.now(), waited=True, at=f"@{host}")
    return {**result, "host": host}


async def hold(context: ControlContext, peer: Peer, agent: Agent, reason: str, until: datetime | None) -> None:
    """Store a hold for another host's daemon, in place of earlier ones on the same agent."""
    registry = context.registry
    row = await registry.write(
        registry.history.add_hold, agent.agent_id, reason, peer.uid, context.now(), until, host=agent.reg.host
    )
    await unhold(context, agent, but=row.id)


async def unhold(context: ControlContext, agent: Agent, *, but: int | None = None) -> list[HoldRow]:
    """End the holds on one agent of another host, and give them back."""
    registry, ended = context.registry, []
    for row in await registry.read(registry.history.active_holds, agent.reg.host):
        its = row.agent_id == agent.agent_id and row.id != but
        if its and await registry.write(registry.history.end_hold, row.id, context.now()):
            ended.append(row)
    return ended


async def _host_of(context: ControlContext, peer: Peer, target: str) -> str:
    """The host of a whole agent id; everything else is of this one."""
    if not _ID.fullmatch(target) or context.fleet.get(target) is not None:
        return context.host
    row = await context.registry.read(context.registry.agents.get, target)
    if row is None or row.registration.host == context.host:
        return context.host
    if not peer.admin:
        raise _forbidden(peer)
    return row.registration.host


def _forbidden(peer: Peer) -> Forbidden:
    return Forbidden(
        f"only root and the admin group may act on agents of other hosts: uid {peer.uid} may be another user there"
    )


async def _open(context: ControlContext, agent: Agent) -> RequestRow:
    """The order that was open already."""
    for row in await context.registry.read(context.registry.kills.requests_of, agent.agent_id):
        if row.status in OPEN_STATUSES:
            return row
    raise Conflict(f"another order for {agent.reg.name}@{agent.reg.host} ended just now; ask again")


async def _followed(
    context: ControlContext, row: RequestRow, host: str, limit: float, cleanup: float
) -> tuple[RequestRow, str | None]:
    """The order when it is done or only its cleanup continues; else also why it is not done yet."""
    registry, began = context.registry, context.clock.mono()
    proved: float | None = None
    patience = max(TAKE_UP, 3 * context.settings.interval.total_seconds())
    try:
        while True:
            found = await registry.read(registry.kills.request, row.request_id)
            row = row if found is None else found
            if row.finished_at is not None or found is None:
                return row, None
            if row.step == KillStep.CLEANUP:
                proved = context.clock.mono() if proved is None else proved
                if context.clock.mono() - proved >= cleanup:
                    return row, None
            if await registry.read(registry.sync.daemon_heard, host) is not True:
                return row, f"no daemon of host {host} is connected to this registry; the order waits for it"
            agent = await registry.read(registry.agents.get, row.agent_id)
            if agent is not None and agent.status is Status.UNKILLABLE:
                return row, f"host {host} cannot kill all of it, and tries again"
            passed = context.clock.mono() - began
            if row.status == "open" and row.claimed_by is None and passed > patience:
                return row, f"the daemon of host {host} has not started on it yet (does it only observe?)"
            if passed > limit:
                return row, f"the daemon of host {host} is working on it"
            await asyncio.sleep(_LOOK)
    except RegistryUnavailable as error:
        return row, f"the order for host {host} is committed, but its outcome cannot be read now: {error}"
