"""POST /agents, PATCH /agents/ID, POST /agents/ID/beat: an agent is registered, gets its pid, sends a beat.

`agents.registration` registers; here is what only a client over HTTP needs: the same request again, another daemon's
agents, and replacing a former agent. The row is committed before the answer.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from aiohttp import web

from watchdog.agents.agent import ZERO, Agent
from watchdog.agents.process_claim import ProcessClaim, has_ended, identify_pid, refuse_twice
from watchdog.agents.registration import one_spelling
from watchdog.agents.selectors import is_number
from watchdog.agents.tracker import WRAPPER
from watchdog.control.context import ControlContext, Json, context_of, peer_at
from watchdog.control.resolve import own_agent
from watchdog.control.schemas import Change, decoded, parse, parse_registration, read_body
from watchdog.core.agent import Beat, Status
from watchdog.core.beat import beat_of_json
from watchdog.core.custody import Holder
from watchdog.core.kill import KillOptions, Reason
from watchdog.core.ownership import ROOT
from watchdog.core.peer import Peer
from watchdog.core.registration import RegistrationRequest
from watchdog.core.sd_notify import printable
from watchdog.errors import (
    AgentNotFound,
    BadRequest,
    Conflict,
    Elsewhere,
    ProcessNotFound,
    RegistryUnavailable,
    WatchdogError,
)

_SPOKEN = frozenset({Status.QUEUED, Status.STARTING, Status.RUNNING})  # in these a beat counts


async def register(request: web.Request) -> web.Response:
    """Register an agent: 201, or 200 when the same client repeats the request."""
    context, peer = context_of(request), peer_at(request)
    body = parse_registration(await read_body(request))
    looked = await _refuse_elsewhere(context, peer, body)
    if body.replace and (body.agent_id is None or context.fleet.get(body.agent_id) is None):
        await _replace(context, peer, body)  # takes as long as a kill: others register meanwhile
    async with context.registrar.turn(await _owner(context, peer, body, looked)):
        known = await _known(context, peer, body)
        if known is not None:
            return web.json_response(_answer(context, known), status=200)
        registered = await context.registrar.register(body, peer)
        agent = registered.agent
        if body.taken_from is not None:
            why = f"no daemon listens any more at {body.taken_from}, where it was watched; its silence starts from zero"
            context.event("agent.taken_over", agent_id=agent.agent_id, name=agent.reg.name, why=why)
        if body.source == "run" and body.pid is None and await has_ended(peer.pid, context.host):
            await _gone(context, peer, agent, "its `run` ended while the registry was busy")
    return web.json_response(_answer(context, agent, registered.notes), status=201)


async def _owner(context: ControlContext, peer: Peer, body: RegistrationRequest, looked: ProcessClaim | None) -> int:
    """Whose agent it will be. Only an admin registers another uid's process. Raises as `identify_pid` does."""
    if body.pid is None or not peer.admin:
        return peer.uid
    return (looked or await identify_pid(body.pid, peer, context.fleet, context.host, for_agent=body.agent_id)).uid


async def _refuse_elsewhere(context: ControlContext, peer: Peer, body: RegistrationRequest) -> ProcessClaim | None:
    """One agent, one daemon: a process that another daemon watches is left to it, unless root orders otherwise.

    Returns what reading the process found; None if it was not read. A `run` is not asked: it stays with its daemon by
    itself, and comes to us when that one is gone. Raises Elsewhere.
    """
    if body.pid is None or body.source == "run":
        return None
    try:
        taken = await identify_pid(body.pid, peer, context.fleet, context.host, for_agent=body.agent_id)
    except WatchdogError:
        return None  # it is said below, or the process is an agent of ours
    ordered = body.source == "register" and (peer.uid == ROOT or (peer.admin and os.geteuid() == ROOT))
    holder = await context.discovery.custodians.holder_of(taken.identity, taken.uid, ordered=ordered)
    if holder is not None:
        raise Elsewhere(f"pid: process {body.pid} is agent {holder.name} of {holder}; one agent has one daemon")
    return taken


async def take_from_other_daemon(context: ControlContext, peer: Peer, word: str) -> None:
    """Root orders something for a pid that another daemon watches as an agent: it becomes ours, whoever claims it.

    Nothing happens if the word means no such process: orders are for agents only.
    """
    pid = context.discovery.custodians.pid_of(word) if peer.admin and os.geteuid() == ROOT else None
    if pid is None:
        return
    try:
        taken = await identify_pid(pid, peer, context.fleet, context.host)
        holder = await context.discovery.custodians.holder_of(taken.identity, taken.uid)
        if holder is None:
            return
        async with context.registrar.turn(taken.uid):
            for name in (holder.name, f"agent-{pid}"):
                with suppress(BadRequest, Conflict):
                    await context.registrar.register(RegistrationRequest(name, pid=pid), peer, taken)
                    break
        await context.discovery.custodians.holder_of(taken.identity, taken.uid, ordered=True)
    except WatchdogError:
        return  # it is an agent of ours, or no process: what follows says so


async def change(request: web.Request) -> web.Response:
    """A pid became known, or `run` tells how the process ended, or that the agent's socket is gone or there again."""
    context, peer = context_of(request), peer_at(request)
    body = parse(Change, await read_body(request))
    agent = await own_agent(context, peer, request.match_info["agent_id"])
    if body.channel_lost is not None:
        if agent.reg.source != "run":
            raise BadRequest("channel_lost: only `run` owns its agent's socket, and can report that")
        if body.channel_lost:
            agent.heartbeat.silence.lose_channel()
        else:
            agent.heartbeat.silence.find_channel()
        await _pass_on(context, agent, {"channel_lost": body.channel_lost})
        return web.json_response(_answer(context, agent))
    if body.pid is None:
        agent.exit.learn(body.exit_code, body.exit_signal)
        await _pass_on(context, agent, body.model_dump(exclude_none=True))
        if agent.identity is None and agent.reg.source == "run":
            await _gone(context, peer, agent, "its `run` reports that it has ended; its pid was never known")
        context.look_soon()
        return web.json_response(_answer(context, agent))
    taken = await identify_pid(body.pid, peer, context.fleet, context.host, for_agent=agent.agent_id)
    async with context.registrar.turn(taken.uid):
        refuse_twice(taken, peer, context.fleet, agent.agent_id)  # a hook or a source may have registered it since
        await context.registrar.identify(agent, taken, peer)
    if agent.reg.source == "run":
        agent.heartbeat.silence.find_channel()  # its `run` reaches us
        await _pass_on(context, agent, {"pid": body.pid})
    if agent.reg.source == "run" and taken.name == WRAPPER:  # still held back, before it executes its command
        await context.placement.place(agent)
    return web.json_response(_answer(context, agent))


async def _gone(context: ControlContext, peer: Peer, agent: Agent, why: str) -> None:
    """No pid will show us the end of this one, and no other report of it will come."""
    if context.holds.reason_for(agent.agent_id, context.now()) is None:
        await context.kill_worker.request(agent, Reason.GONE, KillOptions(by_root=peer.admin), peer.by, why)


async def _pass_on(context: ControlContext, agent: Agent, change: Json) -> None:
    """What `run` tells of an agent that is another daemon's, to that one; it asks again if that is lost."""
    if agent.owner.elsewhere is not None:
        with suppress(WatchdogError):
            await context.discovery.forwarder.pass_on(
                agent.owner.elsewhere, "PATCH", f"/v1/agents/{agent.owner.elsewhere.agent_id}", change
            )


async def _beat_elsewhere(context: ControlContext, holder: Holder, target: str, body: object) -> web.Response:
    """Pass on the beat of an agent that another daemon watches; that daemon's answer. Raises DaemonUnreachable."""
    status, answer = await context.discovery.forwarder.pass_on(holder, "POST", f"/v1/agents/{target}/beat", body)
    return web.Response(status=204) if status == 204 else web.json_response(answer, status=status)


async def beat(request: web.Request) -> web.Response:
    """One beat of an agent: 204, or 200 with `stop` while it is asked to exit.

    `age_seconds` (from `run`, after no daemon was there): the beat is that old. It counts, its lease and tool limit
    less that age; it can only shorten the silence that was watched, never lengthen it.
    """
    context, peer = context_of(request), peer_at(request)
    raw, target = await read_body(request), request.match_info["agent_id"]
    try:
        agent = await own_agent(context, peer, target)
    except (AgentNotFound, ProcessNotFound):
        holder = context.discovery.custodians.left_to(int(target)) if is_number(target) else None
        if holder is None or peer.uid not in (ROOT, os.geteuid()):
            raise
        return await _beat_elsewhere(context, holder, target, decoded(raw))
    if agent.status not in _SPOKEN and agent.ending.asked is None:
        raise Conflict(f"agent {agent.agent_id} ({agent.reg.name}) is being killed; heartbeats no longer change that")
    body = decoded(raw)
    if isinstance(body, dict) and isinstance(body.get("unheard"), str):
        await _unheard(context, agent, peer.by, body["unheard"])
        return web.Response(status=204)
    said, age = beat_of_json(body)
    # `run` sends it, and passes our answer to no one
    return await heard(context, agent, body, said, age, own=isinstance(body, dict) and "age_seconds" not in body)


async def heard(
    context: ControlContext, agent: Agent, body: object, said: Beat, age: timedelta = ZERO, *, own: bool = True
) -> web.Response:
    """Take a beat of that agent, which is `age` old, and answer it. `body`: as it was sent, for another daemon that
    watches the agent; `own`: its sender reads the answer.
    """
    now, former = context.clock.now(), agent.reg
    if agent.heartbeat.rhythm.beats == 0:
        context.event("agent.first_beat", agent_id=agent.agent_id, name=agent.reg.name)
    agent.beat(said, now.mono, now.wall, age)
    await context.learnt(agent, former)
    if own:
        agent.heartbeat.note_reader()
    if agent.owner.elsewhere is not None:
        return await _beat_elsewhere(context, agent.owner.elsewhere, agent.owner.elsewhere.agent_id, body)
    if agent.ending.asked is None:
        return web.Response(status=204)
    if own:
        agent.ending.heard()
    asked = agent.ending.asked
    left = max(0.0, asked.until - now.mono)
    return web.json_response({"stop": {"reason": asked.reason, "deadline_seconds": round(left, 1)}})


async def _unheard(context: ControlContext, agent: Agent, by: str, why: str) -> None:
    """A vendor hook spoke in it that is not of it, as far as is known: no beat. Told once, for its `why`."""
    why = printable(why)
    if agent.reported.first_refusal(f"unheard {why}", "unheard "):
        context.event("beat.rejected", agent_id=agent.agent_id, name=agent.reg.name, why=why)
        with suppress(RegistryUnavailable):
            add, owner = context.registry.history.add_event, agent.reg.owner_uid
            await context.registry.write(add, "beat.rejected", agent.agent_id, by, why, context.now(), owner_uid=owner)


async def _known(context: ControlContext, peer: Peer, body: RegistrationRequest) -> Agent | None:
    """The agent when this registration was heard before (an answer can be lost); Conflict when the id is another's."""
    if body.agent_id is None:
        return None
    agent = context.fleet.get(body.agent_id)
    if agent is None:
        row = await context.registry.read(context.registry.agents.get, body.agent_id)
        if row is None:
            return None
        if not peer.may(row.registration.owner_uid):
            raise Conflict(f"agent_id: {body.agent_id} already exists; choose another")
        raise Conflict(f"agent_id: {body.agent_id} has ended ({row.status}); an id is never used again")
    same = peer.may(agent.reg.owner_uid) and body.name == agent.reg.name
    if same and body.pid is not None:
        taken = await identify_pid(body.pid, peer, context.fleet, context.host, for_agent=agent.agent_id)
        if agent.identity is None:
            await context.registrar.identify(agent, taken, peer)
        if agent.reg.source == "run":
            agent.heartbeat.silence.find_channel()  # its `run` has come (back) to us
        same = agent.identity is not None and agent.identity.same_process(taken.identity)
    if not same:
        raise Conflict(f"agent_id: {body.agent_id} already exists, with another owner, name or process; choose another")
    return agent


async def _replace(context: ControlContext, peer: Peer, body: RegistrationRequest) -> None:
    """End the owner's living agent of that name, as a kill does; Conflict when it did not die."""
    name = body.name
    owner = peer.uid if body.pid is None else (await identify_pid(body.pid, peer, context.fleet, context.host)).uid
    for agent in context.fleet.named(name, owner):
        held = context.holds.reason_for(agent.agent_id, context.now())
        if held is not None:
            raise Conflict(f"replace: {name} is held: {held}")
        text = f"replaced by a new agent of the same name ({peer.by})"
        same_place = agent.reg.worktree is not None and agent.reg.worktree == one_spelling(body.worktree)
        reason = Reason.STOP if same_place else Reason.OPERATOR  # after a stop the worktree stays
        request_id = await context.kill_worker.request(
            agent, reason, KillOptions(text=text, by_root=peer.admin), peer.by, text
        )
        limit = 2 * agent.policy.grace + agent.policy.verify + timedelta(seconds=30)
        outcome = await context.kill_worker.finished(request_id, limit.total_seconds())
        if outcome is None or not outcome.get("success"):
            why = "it is still being killed" if outcome is None else outcome.get("message")
            raise Conflict(f"replace: the old {name} ({agent.agent_id}) has not ended: {why}")


def _answer(context: ControlContext, agent: Agent, notes: Sequence[str] = ()) -> Json:
    env = {
        "AGENT_WATCHDOG_ID": agent.agent_id,
        "NOTIFY_SOCKET": agent.notify_socket or "",
        "AGENT_WATCHDOG_SOCKET": context.socket_path,
    }
    answer: Json = {"agent_id": agent.agent_id, "name": agent.reg.name, "status": agent.status.value, "env": env}
    if notes:
        answer["notes"] = list(notes)
    return answer
