"""GET /agents, /agents/ID, /status, /metrics: what the daemon knows, as much of it as the peer may see."""

import importlib.metadata
import os
from collections import Counter
from datetime import timedelta

from aiohttp import web

from watchdog.agents import selectors
from watchdog.agents.agent import Agent
from watchdog.control import remote_hosts
from watchdog.control.context import ControlContext, context_of, peer_at
from watchdog.control.resolve import recheck_owner, resolve_ended, unwatched_of
from watchdog.control.schemas import flag
from watchdog.control.views import agent as views
from watchdog.control.views import failures
from watchdog.control.views.next_change import held_back
from watchdog.core.agent import Status
from watchdog.core.peer import Peer
from watchdog.errors import AgentNotFound, RegistryUnavailable
from watchdog.registry.rows import AgentRow, EventRow, RequestRow, RunRow
from watchdog.telemetry.catalogue import CATALOGUE
from watchdog.telemetry.metrics import CONTENT_TYPE

_EVENTS = 2000  # of one agent's history; a story that is longer is cut at its beginning


async def agents(request: web.Request) -> web.Response:
    """The living agents; with `all`, those that ended too. Of other users', what every user may know."""
    context, peer = context_of(request), peer_at(request)
    tag, name = request.query.get("tag"), request.query.get("name")
    chosen: list[Agent | AgentRow] = list(context.fleet)
    if flag(request, "all"):
        living = {agent.agent_id for agent in context.fleet}
        rows = await context.registry.read(context.registry.agents.newest, ended=True, tag=tag)
        chosen += [row for row in rows if row.agent_id not in living and row.registration.host == context.host]
    listed: list[views.Json] = []
    for agent in chosen:
        reg = agent.reg if isinstance(agent, Agent) else agent.registration
        # A tag is evidence: it must not be found out by asking for it.
        if (tag is None or (tag in reg.tags and peer.may(reg.owner_uid))) and name in (None, reg.name):
            shown = context.sweeper.present(agent) if isinstance(agent, Agent) else agent
            entry = views.listed(shown, peer, context.now())
            if peer.may(reg.owner_uid):
                entry["held"] = context.holds.reason_for(reg.agent_id, context.now())
                if isinstance(shown, Agent):
                    everybody = context.holds.reason_for(None, context.now())
                    entry["held_back"] = held_back(
                        shown, context.safeguards.on(reg.owner_uid), everybody, _spared(context, shown)
                    )
            listed.append(entry)
    await failures.add(context, listed, {hook.name for hook in context.settings.hooks})
    if tag is None:
        listed += [one for one in unwatched_of(context, peer) if name in (None, one["name"])]
    if flag(request, "all_hosts"):
        for entry in listed:
            entry["host"] = context.host
        listed += await remote_hosts.listed(context, peer, ended=flag(request, "all"), tag=tag, name=name)
    return web.json_response({"agents": listed})


async def agent(request: web.Request) -> web.Response:
    """One agent with its whole story; by id, or by name (the living one, else the newest)."""
    context, peer = context_of(request), peer_at(request)
    where = await remote_hosts.find_host(context, peer, request.match_info["agent_id"])
    view = await remote_hosts.view_of(context, where.host)
    one: Agent | AgentRow
    if where.host != context.host:
        one = await remote_hosts.one(context, view, where)
    else:
        try:
            one = selectors.resolve(context.fleet, peer, where.word)
            await recheck_owner(context, peer, one)
        except AgentNotFound:
            one = await resolve_ended(context, peer, where.word)
    agent_id, registry = one.agent_id, context.registry
    owner_uid = (one.reg if isinstance(one, Agent) else one.registration).owner_uid
    here = where.host == context.host
    doubts, observes = (context.safeguards.on(owner_uid), context.settings.observe) if here else ([], False)
    if isinstance(one, Agent) and here:
        one = context.sweeper.present(one)
    spared = _spared(context, one) if isinstance(one, Agent) and where.host == context.host else None
    everybody = view.holds.reason_for(None, context.now())
    rows: list[EventRow] = []
    requests: list[RequestRow] = []
    runs: list[RunRow] = []
    missing: views.Json = {}
    try:
        rows = await registry.read(registry.history.events, 0, agent_id=agent_id, limit=_EVENTS)
        requests = await registry.read(registry.kills.requests_of, agent_id)
        runs = await registry.read(registry.history.runs_of, agent_id)
    except RegistryUnavailable as error:  # what is in memory still explains a living agent
        if not isinstance(one, Agent):
            raise
        missing["history_problem"] = str(error) if peer.admin else "its log tells"  # the server's text names its users
    retries = {hook.name: hook.retries for hook in context.settings.hooks}
    ending = failures.ending(one, requests, runs, retries) if isinstance(one, Agent) else None
    failed = failures.in_words(runs, retries if here else None, ending=one.status is Status.ENDING)
    return web.json_response(
        {
            "agent": views.full(
                one,
                view.holds,
                context.now(),
                doubts,
                observes=observes,
                ending=ending,
                spared=spared,
                hooks_failed=failures.tried_again(failed),
            )
            | {"held_back": held_back(one, doubts, everybody, spared) if isinstance(one, Agent) else None}
            | await remote_hosts.differences(context, one)
            | {"cleanup_failed": failed},
            "children": [views.public(child) for child in view.fleet.children(agent_id)],
            "events": [views.event(row) for row in rows],
            "requests": [views.request(row) for row in requests],
            "cleanup": [views.run(row) for row in runs],
        }
        | missing
    )


async def status(request: web.Request) -> web.Response:
    """Whether the daemon does its work, in figures that every user may see."""
    context, peer = context_of(request), peer_at(request)
    now = context.now()
    facts = dict(context.status.facts())
    if facts.get("config_problems") and not peer.admin:
        facts["config_problems"] = ["see its log"]  # they quote the file
    if facts.get("registry_problem") and not peer.admin:
        facts["registry_problem"] = "see its log"  # a database server's message names its users
    troubles = facts.get("troubles")
    if isinstance(troubles, list) and not peer.admin:  # they name others' agents and paths
        facts["troubles"] = [
            {**one, "what": f"{one['event']} (its log has the details)", "todo": CATALOGUE[one["event"]].act}
            for one in troubles
        ]
    unreadable = facts.get("unreadable")
    if isinstance(unreadable, list):
        names = _names(context, peer)
        facts["unreadable"] = [
            one | {"agent": names.get(one["pid"])} for one in unreadable if peer.may(one["uid"])
        ]  # a pid and its uid are evidence
    living = {agent.agent_id: agent for agent in context.fleet}
    return web.json_response(
        {
            "version": importlib.metadata.version("agent-watchdogd"),
            "pid": os.getpid(),
            "uid": os.geteuid(),
            "host": context.host,
            "hostname": os.uname().nodename,
            "boot_id": context.boot_id,
            "socket": context.socket_path,
            "agents": len(context.fleet),
            "verdicts": _tally(context, "verdict"),
            "statuses": _tally(context, "status"),
            "open_kills": sum(agent.ending.request_id is not None for agent in context.fleet),
            "holds": [
                views.hold(row, peer, living.get(row.agent_id) if row.agent_id else None)
                for row in context.holds.current(now)
            ],
            "doubts": context.safeguards.on(),
            "unkillable": [
                views.unkillable(agent, peer) for agent in context.fleet if agent.status is Status.UNKILLABLE
            ],
            "elsewhere": [
                views.elsewhere(one) for one in context.fleet if one.owner.elsewhere and peer.may(one.reg.owner_uid)
            ],
            "limited": [
                one
                for one in context.callers.admission.limited()
                if peer.admin or one["uid"] == context.callers.admission.user_of(peer.uid)
            ],
            "subuid_problems": context.callers.admission.problems,
            "you": {"uid": peer.uid, "admin": peer.admin},
            **facts,
        }
    )


async def metrics(request: web.Request) -> web.Response:
    """Figures for Prometheus; no names in them, so every user may read."""
    return web.Response(body=context_of(request).status.figures(), headers={"Content-Type": CONTENT_TYPE})


def _names(context: ControlContext, peer: Peer) -> dict[int, str]:
    """Names of the agents that this peer may see, by the pids of their processes; main processes go first."""
    mine = [agent for agent in context.fleet if peer.may(agent.reg.owner_uid)]
    names = {member.identity.pid: agent.reg.name for agent in mine for member in agent.tree.members}
    return names | {agent.identity.pid: agent.reg.name for agent in mine if agent.identity is not None}


def _spared(context: ControlContext, agent: Agent) -> timedelta:
    """For how long the daemon's own doubts hold back a kill of this agent for silence."""
    limit = timedelta(seconds=context.settings.hold.max_seconds)
    since = agent.judged.kill_due_since
    return limit if since is None else limit - timedelta(seconds=context.clock.mono() - since)


def _tally(context: ControlContext, what: str) -> dict[str, int]:
    agents = map(context.sweeper.present, context.fleet) if what == "verdict" else context.fleet
    values = (agent.judged.verdict if what == "verdict" else agent.status for agent in agents)
    return dict(Counter(str(value) if value else "none" for value in values))
