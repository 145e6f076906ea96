"""POST /agents, PATCH /agents/ID, POST /agents/ID/beat: an agent comes, gets its pid, speaks.

The row is committed before the answer. What the kernel says (uid, identity) comes from the kernel, never from a body.
"""

import os
import re
import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from aiohttp import web

from watchdog.agents.fleet import ZERO, Agent
from watchdog.agents.process_claim import ProcessClaim, has_ended, identify_pid, refuse_twice
from watchdog.agents.selectors import is_number
from watchdog.agents.shared_paths import refuse_temp_dir, sharing_worktree, within
from watchdog.agents.tracker import WRAPPER
from watchdog.control.context import ControlContext, Json, desk_of, peer_at
from watchdog.control.resolve import own_agent, parent_of
from watchdog.control.schemas import Change, Register, decoded, parse, read_body
from watchdog.core.admission import Kind
from watchdog.core.agent import LIVE, Beat, Registration, Status
from watchdog.core.beat import beat_of_json
from watchdog.core.custody import Holder
from watchdog.core.kill import KillOptions, Reason
from watchdog.core.ownership import ROOT
from watchdog.core.peer import Peer
from watchdog.core.process import Listed
from watchdog.core.sd_notify import printable
from watchdog.core.sessions import SESSION
from watchdog.core.verdict import span
from watchdog.errors import (
    AgentNotFound,
    BadRequest,
    Conflict,
    Elsewhere,
    Limited,
    ProcessNotFound,
    RegistryUnavailable,
    WatchdogError,
)
from watchdog.host.fd_limit import scarce
from watchdog.registry.rows import AgentRow
from watchdog.registry.store import Store

_OF_RUN = re.compile("notify/run-[0-9a-f]{32}")  # `cli.run.inbox`
_SPOKEN = frozenset({Status.QUEUED, Status.STARTING, Status.RUNNING})  # in these a beat counts


async def register(request: web.Request) -> web.Response:
    """Take an agent in: 201, or 200 when the same client says the same again."""
    desk, peer = desk_of(request), peer_at(request)
    body = parse(Register, await read_body(request))
    looked = await _refuse_elsewhere(desk, peer, body)
    if body.replace and (body.agent_id is None or desk.fleet.get(body.agent_id) is None):
        await _replace(desk, peer, body)  # takes as long as a kill: others register meanwhile
    async with desk.registering(await _owner(desk, peer, body, looked)):
        known = await _known(desk, peer, body)
        if known is not None:
            return web.json_response(_answer(desk, known, []), status=200)
        agent, notes = await take_in(desk, peer, body)
        if body.taken_from is not None:
            why = f"nobody listens at {body.taken_from} any more, where it was watched; its silence begins anew"
            desk.event("agent.taken_over", agent_id=agent.agent_id, name=agent.reg.name, why=why)
        if body.source == "run" and body.pid is None and await has_ended(peer.pid, desk.host):
            await _gone(desk, peer, agent, "its `run` ended while the registry was busy")
    return web.json_response(_answer(desk, agent, notes), status=201)


async def _owner(desk: ControlContext, peer: Peer, body: Register, looked: ProcessClaim | None) -> int:
    """Whose agent it will be. Only an admin registers another uid's process. Raises as `identify_pid` does."""
    if body.pid is None or not peer.admin:
        return peer.uid
    return (looked or await identify_pid(body.pid, peer, desk.fleet, desk.host, for_agent=body.agent_id)).uid


async def _refuse_elsewhere(desk: ControlContext, peer: Peer, body: Register) -> ProcessClaim | None:
    """One agent, one daemon: a process that another one watches is left to it, but for what root orders of us.

    What a look at the process found, if there was one. A `run` is asked nothing: it stays with its daemon by itself,
    and comes to us when that one is gone. Raises Elsewhere.
    """
    if body.pid is None or body.source == "run":
        return None
    try:
        taken = await identify_pid(body.pid, peer, desk.fleet, desk.host, for_agent=body.agent_id)
    except WatchdogError:
        return None  # it is said below, or the process is an agent of ours
    ordered = body.source == "register" and (peer.uid == ROOT or (peer.admin and os.geteuid() == ROOT))
    holder = await desk.custodians.holder_of(taken.identity, taken.uid, ordered=ordered)
    if holder is not None:
        raise Elsewhere(f"pid: process {body.pid} is agent {holder.name} of {holder}; one agent has one daemon")
    return taken


async def take_for_order(desk: ControlContext, peer: Peer, word: str) -> None:
    """Root orders something of an agent that another daemon watches: it becomes ours for that, whatever is claimed.

    Nothing happens where that word means no such process: only agents are ended by orders.
    """
    pid = desk.custodians.pid_of(word) if peer.admin and os.geteuid() == ROOT else None
    if pid is None:
        return
    try:
        taken = await identify_pid(pid, peer, desk.fleet, desk.host)
        holder = await desk.custodians.holder_of(taken.identity, taken.uid)
        if holder is None:
            return
        async with desk.registering(taken.uid):
            for name in (holder.name, f"agent-{pid}"):
                with suppress(BadRequest, Conflict):
                    await take_in(desk, peer, Register(name=name, pid=pid), taken)
                    break
        await desk.custodians.holder_of(taken.identity, taken.uid, ordered=True)
    except WatchdogError:
        return  # it is an agent of ours, or no process: what follows says so


async def change(request: web.Request) -> web.Response:
    """A pid became known, or `run` tells how the process ended, or that the agent's socket is gone or there again."""
    desk, peer = desk_of(request), peer_at(request)
    body = parse(Change, await read_body(request))
    agent = await own_agent(desk, peer, request.match_info["agent_id"])
    if body.channel_lost is not None:
        if agent.reg.source != "run":
            raise BadRequest("channel_lost: only `run` owns its agent's socket, and can tell that of it")
        if body.channel_lost:
            agent.lose_channel()
        else:
            agent.find_channel()
        await _pass_on(desk, agent, {"channel_lost": body.channel_lost})
        return web.json_response(_answer(desk, agent, []))
    if body.pid is None:
        agent.exit_code, agent.exit_signal = body.exit_code, body.exit_signal
        await _pass_on(desk, agent, body.model_dump(exclude_none=True))
        if agent.identity is None and agent.reg.source == "run":
            await _gone(desk, peer, agent, "its `run` tells that it has ended; its pid was never known")
        desk.look_soon()
        return web.json_response(_answer(desk, agent, []))
    taken = await identify_pid(body.pid, peer, desk.fleet, desk.host, for_agent=agent.agent_id)
    async with desk.registering(taken.uid):
        refuse_twice(taken, peer, desk.fleet, agent.agent_id)  # a hook or a source may have told of it since
        await _identify(desk, peer, agent, taken)
    if agent.reg.source == "run":
        agent.find_channel()  # its `run` speaks to us
        await _pass_on(desk, agent, {"pid": body.pid})
    if agent.reg.source == "run" and taken.name == WRAPPER:  # still held back, before it executes its command
        await desk.place(agent)
    return web.json_response(_answer(desk, agent, []))


async def _gone(desk: ControlContext, peer: Peer, agent: Agent, why: str) -> None:
    """No pid will show us the end of this one, and nobody will tell of it again."""
    if desk.holds.reason_for(agent.agent_id, desk.now()) is None:
        await desk.request_kill(agent, Reason.GONE, KillOptions(by_root=peer.admin), peer.by, why)


async def _pass_on(desk: ControlContext, agent: Agent, change: Json) -> None:
    """What `run` tells of an agent that is another daemon's, to that one; it asks again if that is lost."""
    if agent.elsewhere is not None:
        with suppress(WatchdogError):
            await desk.custodians.pass_on(agent.elsewhere, "PATCH", f"/v1/agents/{agent.elsewhere.agent_id}", change)


async def _beat_elsewhere(desk: ControlContext, holder: Holder, target: str, body: object) -> web.Response:
    """A word of an agent that another daemon watches: that one's answer. Raises DaemonUnreachable."""
    status, answer = await desk.custodians.pass_on(holder, "POST", f"/v1/agents/{target}/beat", body)
    return web.Response(status=204) if status == 204 else web.json_response(answer, status=status)


async def beat(request: web.Request) -> web.Response:
    """One word of an agent: 204, or 200 with `stop` while it is asked to end by itself.

    `age_seconds` (from `run`, after we were away): the beat is that old. What it says holds, its lease and tool limit
    less that age; it can only shorten the silence that was watched, never lengthen it.
    """
    desk, peer = desk_of(request), peer_at(request)
    raw, target = await read_body(request), request.match_info["agent_id"]
    try:
        agent = await own_agent(desk, peer, target)
    except (AgentNotFound, ProcessNotFound):
        holder = desk.custodians.left_to(int(target)) if is_number(target) else None
        if holder is None or peer.uid not in (ROOT, os.geteuid()):
            raise
        return await _beat_elsewhere(desk, holder, target, decoded(raw))
    if agent.status not in _SPOKEN and agent.asked is None:
        raise Conflict(f"agent {agent.agent_id} ({agent.reg.name}) is being ended; heartbeats change nothing any more")
    body = decoded(raw)
    if isinstance(body, dict) and isinstance(body.get("unheard"), str):
        await _unheard(desk, agent, peer.by, body["unheard"])
        return web.Response(status=204)
    said, age = beat_of_json(body)
    # `run` says it, and gives nobody our answer
    return await heard(desk, agent, body, said, age, own=isinstance(body, dict) and "age_seconds" not in body)


async def heard(
    desk: ControlContext, agent: Agent, body: object, said: Beat, age: timedelta = ZERO, *, own: bool = True
) -> web.Response:
    """Take a word of that agent, which is so old, and answer it. `body`: as it was sent, for another daemon that
    watches the agent; `own`: who said it reads the answer.
    """
    now, silence, looks, touched = desk.clock.now(), agent.silence, agent.late_looks, agent.touched
    former = agent.reg
    if agent.beats == 0:
        desk.event("agent.first_beat", agent_id=agent.agent_id, name=agent.reg.name)
    said = agent.beat(said, now.mono, now.wall - age, now.mono - age.total_seconds())
    if age > ZERO:
        aged = max(ZERO, age - max(agent.lease_left, agent.tool_left))
        agent.silence = min(silence, aged)
        if aged >= silence:  # said since the last reckoning: from then on, and no sooner than it was silent already
            said_at = now.mono - (aged - silence).total_seconds()
            agent.touched = said_at if touched is None else max(touched, said_at)
        if agent.silence >= agent.after:
            agent.late_looks = looks  # as silent as before: what was confirmed stays so
        if said.silent_for is not None:
            agent.lease_left = max(ZERO, agent.lease_left - age)
        if said.tool_limit is not None:
            agent.tool_left = max(ZERO, agent.tool_left - age)
    await desk.learnt(agent, former)
    if own and not agent.hears:
        agent.hears = agent.changed = True
    if agent.elsewhere is not None:
        return await _beat_elsewhere(desk, agent.elsewhere, agent.elsewhere.agent_id, body)
    if agent.asked is None:
        return web.Response(status=204)
    agent.asked.heard = agent.asked.heard or own
    left = max(0.0, agent.asked.until - now.mono)
    return web.json_response({"stop": {"reason": agent.asked.reason, "deadline_seconds": round(left, 1)}})


async def _unheard(desk: ControlContext, agent: Agent, by: str, why: str) -> None:
    """A vendor hook spoke in it that is not of it, as far as is known: no beat. Told once, for its `why`."""
    why = printable(why)
    if agent.first_refusal(f"unheard {why}", "unheard "):
        desk.event("beat.rejected", agent_id=agent.agent_id, name=agent.reg.name, why=why)
        with suppress(RegistryUnavailable):
            add, owner = desk.store.store.add_event, agent.reg.owner_uid
            await desk.store.write(add, "beat.rejected", agent.agent_id, by, why, desk.now(), owner_uid=owner)


async def _known(desk: ControlContext, peer: Peer, body: Register) -> Agent | None:
    """The agent when this registration was heard before (an answer can be lost); Conflict when the id is another's."""
    if body.agent_id is None:
        return None
    agent = desk.fleet.get(body.agent_id)
    if agent is None:
        row = await desk.store.read(desk.store.store.agent, body.agent_id)
        if row is None:
            return None
        if not peer.may(row.registration.owner_uid):
            raise Conflict(f"agent_id: {body.agent_id} is known already; take another")
        raise Conflict(f"agent_id: {body.agent_id} has ended ({row.status}); an id is never used again")
    same = peer.may(agent.reg.owner_uid) and body.name == agent.reg.name
    if same and body.pid is not None:
        taken = await identify_pid(body.pid, peer, desk.fleet, desk.host, for_agent=agent.agent_id)
        if agent.identity is None:
            await _identify(desk, peer, agent, taken)
        if agent.reg.source == "run":
            agent.find_channel()  # its `run` has come (back) to us
        same = agent.identity is not None and agent.identity.same_process(taken.identity)
    if not same:
        raise Conflict(f"agent_id: {body.agent_id} is known already, with another owner, name or process; take another")
    return agent


async def take_in(
    desk: ControlContext, peer: Peer, body: Register, taken: ProcessClaim | None = None, entry: Listed | None = None
) -> tuple[Agent, list[str]]:
    """Check against the kernel and the other agents, commit, then let the house know. `registering` is held.

    1. Whose is the pid (`taken`: was just asked); the owner is its uid, else the peer's.
    2. Name, parent and temp dir fit with the agents that live.
    3. Socket, row, task row; a row that cannot be committed takes its socket with it.
    4. `admit`.
    """
    if taken is not None:  # looked at before its owner's turn came: its hook may have registered it since
        refuse_twice(taken, peer, desk.fleet)
    elif body.pid is not None:
        taken = await identify_pid(body.pid, peer, desk.fleet, desk.host)
    owner = peer.uid if taken is None else taken.uid
    _refuse_many(desk, peer, owner)
    desk.fleet.refuse_taken(body.name, owner)
    parent = None if body.parent is None else parent_of(desk, peer, body.parent, owner)
    _refuse_paths(desk, body, owner, parent)
    reg = replace(_registration(desk, body, owner, parent, taken), entries=() if entry is None else (entry,))
    status = Status.QUEUED if body.queued else Status.STARTING if taken is None else Status.RUNNING
    if entry is not None and entry.kind == SESSION:
        status = Status.RUNNING  # it has no process of its own, and needs none
    policy = desk.settings.policy_for(reg)
    agent = Agent(reg, policy, status, promised=body.stall_after_seconds is not None)
    agent.notify_socket = body.notify_socket or desk.open_notify(reg.agent_id, owner)
    store, now = desk.store, desk.now()
    try:
        agent.reg = await store.write(_commit, store.store, peer, reg, status, now, agent.notify_socket)
    except BaseException:
        if body.notify_socket is None:
            desk.close_notify(reg.agent_id)
        raise
    desk.admit(agent)
    notes = _notes(desk, agent)
    if agent.reg.task_id != reg.task_id:
        notes.append(f"task {reg.task_id} is of another user's agent; this one is watched without a task")
    desk.event(
        "agent.registered",
        agent_id=reg.agent_id,
        name=reg.name,
        owner_uid=owner,
        by=peer.by,
        pid=taken.identity.pid if taken else None,
        status=status.value,
        after_seconds=agent.after.total_seconds(),
        **({"note": "; ".join(notes)} if notes else {}),
    )
    desk.look_soon()
    return agent, notes


def _registration(
    desk: ControlContext, body: Register, owner: int, parent: str | None, taken: ProcessClaim | None
) -> Registration:
    return Registration(
        agent_id=body.agent_id or uuid.uuid4().hex,
        name=body.name,
        owner_uid=owner,
        host=desk.host,
        boot_id=desk.boot_id,
        agent_type=body.type,
        tags=tuple(dict.fromkeys(body.tags)),
        task_id=body.task,
        parent_id=parent,
        identity=taken.identity if taken else None,
        stall_after=_duration(body.stall_after_seconds),
        interval=_duration(body.interval_seconds),
        ttl=_duration(body.ttl_seconds),
        worktree=_path(body.worktree),
        temp_dir=_path(body.temp_dir),
        beat_file=_path(body.beat_file),
        log=_path(body.log),
        transcript=_path(body.transcript),
        source=body.source,
        command=body.command or (taken.name if taken else None),
        created_at=desk.now(),
    )


def _duration(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _path(path: str | None) -> str | None:
    """Without doubled and trailing slashes, so that two spellings of one path compare equal."""
    return None if path is None else "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _refuse_many(desk: ControlContext, peer: Peer, owner: int) -> None:
    """Each agent costs descriptors; one user must not take them all. Root and admins register what they want."""
    if peer.admin:
        return
    if not desk.admission.may_register(owner, (agent.reg.owner_uid for agent in desk.fleet)):
        desk.admission.refused(owner, Kind.AGENTS)
        user = desk.admission.user_of(owner)
        raise Conflict(
            f"uid {owner} (user {user}) has as many living agents as one may; end some (agent-watchdog remove)"
        )
    if not desk.admission.exempt(owner) and scarce():
        desk.admission.refused(owner, Kind.AGENTS)
        raise Limited("few file descriptors are left; they are for agents that are registered already; try again", 10)


def _refuse_paths(desk: ControlContext, body: Register, owner: int, parent: str | None) -> None:
    """A temp dir is removed when its agent ends, so it belongs to one; only `run` brings a socket of its own."""
    wanted = _path(body.temp_dir)
    if wanted is not None:
        refuse_temp_dir(desk.fleet, wanted, owner, parent, desk.settings.cleanup.roots)
    socket = _path(body.notify_socket)
    if socket is not None and body.source != "run":
        raise BadRequest("notify_socket: only `run` owns its agent's socket; leave it out, and the daemon makes one")
    own = f"{_path(desk.runtime_dir)}/"
    name = None if socket is None or not socket.startswith(own) else socket.removeprefix(own)
    if name is not None and name != f"notify/{body.agent_id}" and not _OF_RUN.fullmatch(name):  # by id: up to 0.1
        raise BadRequest(f"notify_socket: {socket} is no {own}notify/run-ID; that directory holds nothing else")


def _commit(
    store: Store, peer: Peer, reg: Registration, status: Status, now: datetime, notify_socket: str | None
) -> Registration:
    """In the writer's thread: the row, and the task's; the registration as it is stored.

    A task that another user's agent works or worked on stays that user's: its outcome is that agent's. Its id may as
    well have been taken by somebody who guessed it, so an agent is watched all the same, without a task. It is looked
    at here, as registrations of two owners do not wait for each other, and writes do.
    """
    worker = None if reg.task_id is None else _worker(store, reg.task_id)
    if worker is not None and not peer.may(worker.registration.owner_uid):
        reg = replace(reg, task_id=None)
    store.add_agent(reg, status, now, peer.by, notify_socket)
    if reg.task_id is not None:
        store.assign_task(reg.task_id, reg.agent_id, now)
    return reg


def _worker(store: Store, task_id: str) -> AgentRow | None:
    """The agent that works or worked last on a task; of one that waits for another try, as much."""
    row = store.task(task_id)
    if row is None:
        return None
    worker = None if row.assigned_agent is None else store.agent(row.assigned_agent)
    return worker or next(iter(store.agents_by_task(task_id, live_only=False)), None)


def _notes(desk: ControlContext, agent: Agent) -> list[str]:
    """What the client should know of its registration: its limit was raised, or somebody works in its worktree."""
    notes = []
    asked = agent.reg.stall_after or agent.policy.after
    if agent.after > asked:
        notes.append(
            f"the limit of {span(asked)} is less than two beats of {span(agent.reg.interval or ZERO)}; "
            f"raised to {span(agent.after)} for this agent"
        )
    if others := sharing_worktree(desk.fleet, agent):
        notes.append(
            f"{agent.reg.worktree} is also the worktree of {', '.join(others)}; it stays until the last has ended"
        )
    temp, roots = agent.reg.temp_dir, desk.settings.cleanup.roots
    made_by_run = temp is not None and os.path.basename(temp).startswith("agent-watchdog-")  # with a mark in it
    if temp is not None and not made_by_run and not any(within(temp, root) for root in roots):
        notes.append(f"temp_dir: {temp} lies below none of cleanup.roots ({', '.join(roots)}), so it is never removed")
    return notes


async def _replace(desk: ControlContext, peer: Peer, body: Register) -> None:
    """End the owner's living agent of that name, as a kill does; Conflict when it did not die."""
    name = body.name
    owner = peer.uid if body.pid is None else (await identify_pid(body.pid, peer, desk.fleet, desk.host)).uid
    for agent in desk.fleet.named(name, owner):
        held = desk.holds.reason_for(agent.agent_id, desk.now())
        if held is not None:
            raise Conflict(f"replace: {name} is held: {held}")
        text = f"replaced by a new agent of the same name ({peer.by})"
        same_place = agent.reg.worktree is not None and agent.reg.worktree == _path(body.worktree)
        reason = Reason.STOP if same_place else Reason.OPERATOR  # after a stop the worktree stays
        request_id = await desk.request_kill(agent, reason, KillOptions(text=text, by_root=peer.admin), peer.by, text)
        limit = 2 * agent.policy.grace + agent.policy.verify + timedelta(seconds=30)
        outcome = await desk.finished(request_id, limit.total_seconds())
        if outcome is None or not outcome.get("success"):
            why = "it is still being ended" if outcome is None else outcome.get("message")
            raise Conflict(f"replace: the old {name} ({agent.agent_id}) has not ended: {why}")


async def _identify(desk: ControlContext, peer: Peer, agent: Agent, taken: ProcessClaim) -> None:
    """Commit the pid of an agent that had none; the same process again changes nothing. `registering` is held."""
    if agent.identity is not None:
        if agent.identity.same_process(taken.identity):
            return
        raise Conflict(f"pid: agent {agent.agent_id} has process {agent.identity.pid} already; register a new agent")
    if agent.status not in _SPOKEN:
        raise Conflict(f"agent {agent.agent_id} ({agent.reg.name}) is being ended and takes no pid")
    store, now = desk.store, desk.now()
    before = agent.reg.owner_uid
    if taken.uid != before:
        if before != ROOT:  # never from user to user, and never to root
            words = f"process {taken.identity.pid} runs as uid {taken.uid}, agent {agent.agent_id} is uid {before}'s"
            raise Conflict(f"pid: {words} for good; register a new agent")
        desk.fleet.refuse_taken(agent.reg.name, taken.uid)
    known = agent.agent_id, taken.identity, Status.RUNNING, now, peer.by, taken.uid
    done = await store.write(store.store.set_identity, *known)
    if not done or agent.status not in LIVE:
        raise Conflict(f"agent {agent.agent_id} takes no pid any more; it has ended or has another")
    agent.identify(taken.identity, taken.uid)
    agent.reg = replace(agent.reg, command=agent.reg.command or taken.name)
    if agent.status in (Status.QUEUED, Status.STARTING):
        agent.status = Status.RUNNING
    desk.identified(agent)
    desk.event("agent.pid_known", agent_id=agent.agent_id, name=agent.reg.name, pid=taken.identity.pid, by=peer.by)
    desk.look_soon()


def _answer(desk: ControlContext, agent: Agent, notes: list[str]) -> Json:
    env = {
        "AGENT_WATCHDOG_ID": agent.agent_id,
        "NOTIFY_SOCKET": agent.notify_socket or "",
        "AGENT_WATCHDOG_SOCKET": desk.socket_path,
    }
    answer: Json = {"agent_id": agent.agent_id, "name": agent.reg.name, "status": agent.status.value, "env": env}
    if notes:
        answer["notes"] = notes
    return answer
