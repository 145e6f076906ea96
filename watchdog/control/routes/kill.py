"""POST /kill, /stop, /cancel: from targets to results, with the keys of the kill-stalled-agent command.

Nothing is killed here: for each agent the kill worker gets a durable request, and its outcome is the result. One bad
target does not stop the others. Parents are killed before their children; children keep running unless asked for.
"""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta

from aiohttp import web

from watchdog.agents.agent import ZERO, Agent
from watchdog.agents.selectors import silent
from watchdog.control import remote_hosts
from watchdog.control.context import ControlContext, Json, context_of, peer_at
from watchdog.control.remote_hosts import HostView, TargetOnHost
from watchdog.control.resolve import (
    includes_orphans,
    is_group,
    is_wide,
    members,
    recheck_owner,
    resolve_ended,
    unwatched,
    with_orphans,
)
from watchdog.control.routes.agents import take_from_other_daemon
from watchdog.control.routes.purge import PURGED
from watchdog.control.schemas import Kill, Stop, parse, read_body
from watchdog.control.views.results import Patience, dry, ended_already, failure, is_dead, kill_result, preview, summary
from watchdog.core.agent import ENDED
from watchdog.core.kill import KillOptions, Reason
from watchdog.core.peer import Peer
from watchdog.errors import AgentNotFound, BadRequest, Forbidden, Held, ProcessNotFound, WatchdogError
from watchdog.processes.ancestry import lineage, marker
from watchdog.processes.reader import awaited
from watchdog.registry.rows import AgentRow

SLACK = timedelta(minutes=10)  # that a kill may take beyond its own times: it waits its turn, or for the registry


@dataclass
class Chosen:
    """What the targets mean: the agents to kill, their hosts, and the results that are ready already."""

    agents: dict[str, Agent] = field(default_factory=dict)
    hosts: dict[str, HostView] = field(default_factory=dict)
    results: list[Json] = field(default_factory=list)


@dataclass(frozen=True)
class KillCall:
    """One request as understood. `go`: kill what a wide target means even if the caller runs in an agent's tree."""

    reason: Reason
    options: KillOptions
    children: bool
    wait: bool
    dry_run: bool
    route: str
    go: bool
    silent_for: timedelta | None = None


async def kill(request: web.Request) -> web.Response:
    """Kill agents: TERM, grace, KILL, proof."""
    body = parse(Kill, await read_body(request))
    limit = None if body.stall_after_seconds is None else timedelta(seconds=body.stall_after_seconds)
    if limit is not None and "stalled" not in body.targets:
        raise BadRequest("stall_after_seconds: goes with the target `stalled` only")
    grace = None if body.grace_seconds is None else timedelta(seconds=body.grace_seconds)
    options = KillOptions(force=body.force, grace=ZERO if body.force else grace, cleanup=body.cleanup, text=body.reason)
    call = KillCall(Reason.OPERATOR, options, body.children, body.wait, body.dry_run, request.path, body.go, limit)
    context, peer = context_of(request), peer_at(request)
    return _respond(body.targets, await _kill_targets(context, peer, body.targets, call), body.dry_run, context)


async def stop(request: web.Request) -> web.Response:
    """Ask agents to exit if they can hear it, then as `kill`; their outcome is `stopped`."""
    body = parse(Stop, await read_body(request))
    return await _stop_targets(request, body, body.targets, cancel=False)


async def cancel(request: web.Request) -> web.Response:
    """Stop the agents that work on a task, and mark the task as cancelled."""
    body = parse(Stop, await read_body(request))
    targets = [target if target.startswith("task:") else f"task:{target}" for target in body.targets]
    return await _stop_targets(request, body, targets, cancel=True)


async def _stop_targets(request: web.Request, body: Stop, targets: list[str], *, cancel: bool) -> web.Response:
    context, peer = context_of(request), peer_at(request)
    options = KillOptions(text=body.reason or ("task cancelled" if cancel else ""), cancel=cancel)
    call = KillCall(Reason.STOP, options, body.children, body.wait or cancel, body.dry_run, request.path, body.go)
    results = await _kill_targets(context, peer, targets, call)
    if cancel and not body.dry_run:
        await _mark_cancelled(context, peer, results, body.reason)
    return _respond(targets, results, body.dry_run, context)


async def _kill_targets(context: ControlContext, peer: Peer, targets: list[str], call: KillCall) -> list[Json]:
    """Find the agents, then kill them by generation: a parent that respawns its children is killed before them."""
    context.callers.charge_named(peer, len(targets))
    chosen = Chosen()
    for target in targets:
        await _choose(context, peer, target, call, chosen)
    chosen.results = list({str(result["agent_id"]): result for result in chosen.results}.values())  # each once
    if call.children:
        _with_children(context, peer, chosen)
    if call.dry_run:
        if chosen.agents:
            await context.scan(peer)
        agents = [(agent, _without_pid(agent, call)) for agent in chosen.agents.values()]
        return chosen.results + [
            dry(context.sweeper.present(a), context.now()) if why is None else failure(a.agent_id, why, a)
            for a, why in agents
        ]
    if not call.go and any(map(is_wide, targets)) and (tree := await _agent_around(context, peer)) is not None:
        await context.scan(peer)
        now, shown = context.now(), [context.sweeper.present(agent) for agent in chosen.agents.values()]
        return chosen.results + [preview(agent, tree, now) for agent in shown]
    context.callers.charge(peer, "kill", len(chosen.agents))
    patience = Patience(peer)
    for generation in _generations(chosen.agents):
        told = await asyncio.gather(*(_kill_one(context, peer, agent, call, patience) for agent in generation))
        patience.spend(told)
        chosen.results += [_with_children_left(context, peer, one, chosen) for one in told]
    return chosen.results


async def _choose(context: ControlContext, peer: Peer, target: str, call: KillCall, chosen: Chosen) -> None:
    """Put one target's agents, or its result, into `chosen`."""
    if not call.dry_run:  # if root names the pid of an agent that another daemon watches, it becomes ours first
        await take_from_other_daemon(context, peer, target)
    where = TargetOnHost(target, context.host)
    try:
        where = await remote_hosts.find_host(context, peer, target)
        view = chosen.hosts.get(where.host) or await remote_hosts.view_of(context, where.host)
        chosen.hosts[where.host] = view
        if where.word == "stalled" and call.silent_for is not None:
            agents = silent(members(context, peer, view, "all"), call.silent_for)
        elif view.host == context.host and includes_orphans(where.word):
            agents = await with_orphans(context, peer, view, where.word)
        else:
            agents = members(context, peer, view, where.word)
    except AgentNotFound as error:
        chosen.results.append(await _not_living(context, peer, target, where, error, call.route))
        return
    except WatchdogError as error:
        if isinstance(error, Forbidden):
            context.callers.deny(peer, call.route, str(error))
        chosen.results.append(failure(target, error))
        return
    for agent in agents:
        held = view.holds.reason_for(agent.agent_id, context.now())
        if held is None:
            chosen.agents[agent.agent_id] = agent
        else:
            text = f"{agent.reg.name} is held: {held}; lift it first: agent-watchdog unhold {agent.reg.name}"
            chosen.results.append(failure(agent.agent_id, Held(text), agent))


async def _kill_one(context: ControlContext, peer: Peer, agent: Agent, call: KillCall, patience: Patience) -> Json:
    """Commit a kill request and, if the caller waits, give its outcome; `patience` limits the wait for its cleanup."""
    orphaned = agent.status in ENDED  # it has ended, and a process of its tree still lives
    reason = Reason.ORPHANED if orphaned else call.reason
    ask = agent.policy.stop_pause if reason is Reason.STOP else None
    options = replace(call.options, ask=ask, by_root=peer.admin)
    grace = agent.policy.grace if options.grace is None else options.grace
    cleanup = patience.for_cleanup(agent.reg.owner_uid)
    try:
        limit = (ask or ZERO) + 2 * grace + agent.policy.verify + SLACK
        if agent.reg.host != context.host:
            wait = limit.total_seconds() if call.wait else None
            return await remote_hosts.order(context, peer, agent, call.reason, options, limit=wait, cleanup=cleanup)
        await recheck_owner(context, peer, agent)
        if (unknown := _without_pid(agent, call)) is not None:
            raise unknown
        why = options.text or f"asked for by {peer.by}"
        request_id = await context.kill_worker.request(agent, reason, options, peer.by, why)
        if not call.wait:
            return kill_result(agent, request_id, None, options, now=context.now(), waited=False)
        outcome = await context.kill_worker.finished(request_id, limit.total_seconds(), cleanup)
    except WatchdogError as error:
        if isinstance(error, Forbidden):
            context.callers.deny(peer, call.route, str(error))
        return failure(agent.agent_id, error, agent)
    return kill_result(agent, request_id, outcome, options, now=context.now(), waited=True)


async def _not_living(
    context: ControlContext, peer: Peer, target: str, where: TargetOnHost, error: AgentNotFound, route: str
) -> Json:
    """For an agent that has ended already, that is a success; anything else is not found."""
    word = where.word
    try:
        if word.startswith("task:"):
            rows = await context.registry.read(context.registry.agents.by_task, word[5:], live_only=False)
            rows = [row for row in rows if row.status in ENDED and row.registration.host == where.host]
            rows = [row for row in rows if peer.may(row.registration.owner_uid)]
            if not rows:
                error = AgentNotFound(f"no agent has or had task {word[5:]!r} (see: agent-watchdog list --all)")
            return await _already(context, rows[0]) if rows else failure(target, error)
        if is_group(word) or "@" in word:  # no name has an @, so its host is unknown
            return failure(target, error)
        if where.host != context.host:
            return await _already(context, await remote_hosts.ended(context, where))
        if (one := unwatched(context, peer, word)) is not None:
            hint = f"; use this instead: {one['stop']}" if one.get("stop") else ""
            refusal = ProcessNotFound(f"{word} is listed in {one['source']} and is not watched: {one['why']}{hint}")
            return failure(target, refusal) | {"owner_uid": one["owner_uid"]}  # of the user who wrote these words
        return await _already(context, await resolve_ended(context, peer, word))
    except WatchdogError as other:
        if isinstance(other, Forbidden):
            context.callers.deny(peer, route, str(other))
        return failure(target, other)


async def _already(context: ControlContext, row: AgentRow) -> Json:
    """Its result, with what the order that killed it has: when, why, and how its conversation is resumed."""
    orders = await context.registry.read(context.registry.kills.requests_of, row.agent_id)
    purged = await context.registry.read(context.registry.history.last_event, row.agent_id, {PURGED})
    return ended_already(row, next((o for o in reversed(orders) if o.outcome), None), purged=purged is not None)


def _with_children(context: ControlContext, peer: Peer, chosen: Chosen) -> None:
    """Add the child agents of the chosen ones, and their children."""
    waiting = list(chosen.agents)
    while waiting:
        view = chosen.hosts[chosen.agents[waiting[-1]].reg.host]
        for child in view.fleet.children(waiting.pop()):
            held = view.holds.reason_for(child.agent_id, context.now())
            if child.agent_id not in chosen.agents and peer.may(child.reg.owner_uid) and held is None:
                chosen.agents[child.agent_id] = child
                waiting.append(child.agent_id)


def _with_children_left(context: ControlContext, peer: Peer, result: Json, chosen: Chosen) -> Json:
    """With a note on the child agents of a killed agent that keep running."""
    children = context.fleet.children(str(result["agent_id"])) if is_dead(result) else []
    left = [one.reg.name for one in children if one.agent_id not in chosen.agents and peer.may(one.reg.owner_uid)]
    if left:
        names = ", ".join(sorted(left))
        result["how"] = f"{result.get('how') or result['message']}; child agents still running (--children): {names}"
    return result


def _generations(agents: dict[str, Agent]) -> list[list[Agent]]:
    """The agents by how many of the chosen are above them, the topmost first. A ring of parents counts as one."""
    by_depth: dict[int, list[Agent]] = {}
    for agent in agents.values():
        depth, seen, above = 0, {agent.agent_id}, agent.reg.parent_id
        while above in agents and above not in seen:
            depth += 1
            seen.add(above)
            above = agents[above].reg.parent_id
        by_depth.setdefault(depth, []).append(agent)
    return [by_depth[depth] for depth in sorted(by_depth)]


async def _agent_around(context: ControlContext, peer: Peer) -> str | None:
    """In words, the agent in whose process tree the caller runs; None: in none.

    An agent that says `kill all` rarely knows which agents it means, so it is shown that first. Its tree: by the
    identities that the last scan saw, by descent from them, and by the marker. A caller that cannot be looked at
    (another pid namespace, hidepid, gone already) may be an agent's.
    """
    try:
        above, mark = await awaited(None, lineage, peer.pid), await awaited(None, marker, peer.pid)
    except OSError:
        return "of a process that the daemon cannot see"
    for agent in context.fleet:
        if agent.agent_id == mark or not agent.processes.isdisjoint(above):
            return f"of agent {agent.reg.name if peer.may(agent.reg.owner_uid) else agent.agent_id}"
    return None


def _without_pid(agent: Agent, call: KillCall) -> ProcessNotFound | None:
    """The refusal of a kill whose agent has no known process: nothing could be proved dead."""
    if (
        call.reason is not Reason.OPERATOR
        or agent.identity is not None
        or agent.tree.members
        or agent.reg.conversations
    ):
        return None  # a session in a shared service has no process while it runs no command
    name = agent.reg.name
    return ProcessNotFound(f"no pid is known for {name}; use this instead: agent-watchdog stop {name}")


async def _mark_cancelled(context: ControlContext, peer: Peer, results: list[Json], reason: str) -> None:
    """Cancel each task whose agents are all dead, if it is still theirs."""
    why = f"cancelled by {peer.by}" + (f": {reason}" if reason else "")
    alive = {result.get("task_id") for result in results if not is_dead(result)}
    for result in results:
        task_id, agent_id = result.get("task_id"), str(result["agent_id"])
        if not isinstance(task_id, str) or task_id in alive:
            continue
        if (became := await _cancelled(context, peer, task_id, agent_id, why)) is not None:
            result["how"] = f"task {task_id} {became}; its agent: {result['how'] or result['message']}"


async def _cancelled(context: ControlContext, peer: Peer, task_id: str, agent_id: str, why: str) -> str | None:
    """Cancel the task of an agent that is dead; what became of the task, None if there is none."""
    registry, now = context.registry, context.now()
    task = await registry.read(registry.history.task, task_id)
    if task is not None and task.status == "cancelled":
        return "is cancelled"  # when its agent was closed, or before
    if not await registry.write(registry.history.update_task, task_id, "cancelled", why, agent_id, now):
        return None if task is None else "now belongs to another agent and stays as it is"
    agent = await registry.read(registry.agents.get, agent_id)
    owner = agent.registration.owner_uid if agent else None
    evidence = {"task_id": task_id}
    await registry.write(
        registry.history.add_event, "task.cancelled", agent_id, peer.by, why, now, evidence=evidence, owner_uid=owner
    )
    context.event("task.cancelled", task_id=task_id, agent_id=agent_id, by=peer.by, why=why)
    return "is cancelled"


def _respond(targets: list[str], results: list[Json], dry_run: bool, context: ControlContext) -> web.Response:
    """For one target that can only mean one agent, its result with its own HTTP status; else a summary, 200."""
    if len(targets) == 1 and not is_group(targets[0].partition("@")[0]) and len(results) == 1:
        status = results[0].pop("http_status", 200)
        assert isinstance(status, int)
        return web.json_response(results[0], status=status)
    for result in results:
        result.pop("http_status", None)
    return web.json_response(summary(targets, results, dry_run, context))
