"""POST /sessions/beat: a beat of a session in a shared service, which also works for sessions of other agents.

The service is no agent (`core.services`). The beat counts for the agent whose client began the session, if only one can
have; else the session is an agent of its own, without a process, and of the clients that may have begun it it is only
known that they live. A hook beats only for agents of its own uid.
"""

from dataclasses import replace as replaced

from aiohttp import web

from watchdog.agents.agent import Agent
from watchdog.agents.process_claim import Look, look_at
from watchdog.control.callers import Talk
from watchdog.control.context import ControlContext, Json, context_of, peer_at
from watchdog.control.peers import too_often
from watchdog.control.routes.agents import heard
from watchdog.control.schemas import Speak, parse, read_body
from watchdog.core.admission import WAIT
from watchdog.core.agent import Beat, State, Status
from watchdog.core.beat import beat_of_json
from watchdog.core.kill import KillOptions, Reason
from watchdog.core.names import name_for
from watchdog.core.peer import Peer
from watchdog.core.process import Identity, Listed
from watchdog.core.registration import RegistrationRequest
from watchdog.core.services import CODEX
from watchdog.core.sessions import SESSION, Client, Session, Whose, whose
from watchdog.core.vendors import session_name
from watchdog.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    OwnerCallFailed,
    ProcessHidden,
    ProcessNotFound,
    RegistryUnavailable,
)
from watchdog.processes import procfs
from watchdog.processes.clients import ClientCandidate, clients, service_at
from watchdog.processes.identity import ThreadSeen
from watchdog.processes.reader import awaited

LOOK_SECONDS = 3.0  # for the owner's helper to look at a directory
MOST_SERVICES = 3  # in which one session is known, beside the one that sent the beat
MOST_OF_ONE = 32  # sessions of one agent: a client begins one after the other
_SPOKEN = frozenset({Status.STARTING, Status.RUNNING})
_OVER = "its agent was killed; the session has nothing more to do"


async def speak(request: web.Request) -> web.Response:
    """Take the beat as `beat` does, for the agent whose session it is."""
    context, peer = context_of(request), peer_at(request)
    body = parse(Speak, await read_body(request))
    said, _ = beat_of_json(body.beat)
    service, words = await _service(context, peer, body.pid)
    main = _whose_main(context, peer, service)
    if main is not None:
        return await heard(context, main, body.beat, said)  # a person runs the service on purpose: it is that agent
    key = peer.uid, body.session, service.pid, service.start_ticks
    talk = context.callers.talks.get(key)
    agent = _known(context, peer, body.session, service, talk)
    if agent is None or agent.status not in _SPOKEN:
        if not body.begins and (agent is not None or await _was_ended(context, talk)):
            return web.json_response({"stop": {"reason": _OVER, "deadline_seconds": 0.0}})
        async with context.registrar.turn(peer.uid):
            talk = context.callers.talks.get(key)
            agent = _known(context, peer, body.session, service, talk)
            if agent is None or agent.status not in _SPOKEN:
                agent, talk = await _found(context, peer, body, service, words)
                context.callers.remember(key, talk)
    for other in _perhaps(context, talk):
        _lives(context, other, agent)
    if agent.identity is None and said.session_ended is not None:
        options = KillOptions(by_root=peer.admin)
        await context.kill_worker.request(agent, Reason.GONE, options, peer.by, "its session has ended")
        return web.Response(status=204)
    return await heard(context, agent, body.beat, said)


async def _service(context: ControlContext, peer: Peer, pid: int) -> tuple[Identity, str]:
    """The service below which the hook runs, and what it is called.

    Raises ProcessNotFound, Forbidden (another uid's), BadRequest (it is none), Unseen.
    """
    try:
        found = await awaited(None, service_at, pid)
        seen = (await look_at([pid], context.host))[pid]
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessNotFound(f"pid: there is no process {pid}") from None
    except (OSError, ValueError) as error:
        raise ProcessHidden(f"pid: nothing is known of process {pid}: {error}") from error
    if isinstance(seen, ThreadSeen | ProcessLookupError):
        raise ProcessNotFound(f"pid: there is no process {pid}")
    if isinstance(seen, OSError):
        raise ProcessHidden(f"pid: nothing is known of process {pid}: {seen.strerror or seen}") from seen
    if seen.uids.one != peer.uid:
        raise Forbidden(f"pid: process {pid} runs with {seen.uids}, you are uid {peer.uid}; report only for your own")
    if found is None or found[0] != CODEX or seen.identity.start_ticks != found[1]:
        raise BadRequest(f"pid: process {pid} is not a service that sessions share")
    return seen.identity, found[0]


def _whose_main(context: ControlContext, peer: Peer, service: Identity) -> Agent | None:
    for agent in context.fleet:
        if agent.identity is not None and agent.identity.same_process(service) and peer.uid == agent.reg.owner_uid:
            return agent
    return None


def _known(context: ControlContext, peer: Peer, session: str, service: Identity, talk: Talk | None) -> Agent | None:
    """The agent that has it, also after a restart of ours. Of another service the same id is another session."""
    agent = None if talk is None else context.fleet.get(talk.agent_id)
    if agent is None:
        agents = (one for one in context.fleet if one.reg.owner_uid == peer.uid and _has(one, session, service))
        agent = next(agents, None)
    return agent if agent is not None and agent.reg.owner_uid == peer.uid else None


def _has(agent: Agent, session: str, service: Identity) -> bool:
    return any(it == session and one.same_process(service) for it, one in agent.reg.served)


async def _was_ended(context: ControlContext, talk: Talk | None) -> bool:
    """Whether a person had its agent killed, and so wants no more of its work."""
    if talk is None:
        return False
    try:
        row = await context.registry.read(context.registry.agents.get, talk.agent_id)
    except (Conflict, RegistryUnavailable):
        return False
    return row is not None and row.status in (Status.KILLED, Status.STOPPED)


async def _found(context: ControlContext, peer: Peer, body: Speak, service: Identity, words: str) -> tuple[Agent, Talk]:
    """Whose a session is that is heard of for the first time: its entry is committed. Its user's `turn` is held.

    It costs as much as a registration. Raises Limited, Unseen.
    """
    if not peer.admin and (left := context.registrar.take_share(peer.uid)) > WAIT:
        raise too_often(peer.uid, context.callers.admission.user_of(peer.uid), left)
    try:
        seen = await awaited(None, clients, peer.uid)
    except OSError as error:
        raise ProcessHidden(f"no process can be seen: {error}") from error
    seen = tuple([await _placed(context, peer, body.cwd, one) for one in seen])
    answer = _decided(context, peer, body, seen)
    entry = Listed(
        kind=SESSION,
        path=words,
        key=body.session,
        token=str(service.start_ticks),
        also=(service,),
        conversation=body.session,
    )
    agent = None if answer.agent is None else context.fleet.get(answer.agent)
    if agent is None:
        name = session_name(body.type, body.cwd, body.session)
        if context.fleet.named(name, peer.uid):
            name = name_for(name, body.session[:32])
        request = RegistrationRequest(name, type=body.type, source="hook", entry=entry)
        agent = (await context.registrar.register(request, peer)).agent
    else:
        entry = replaced(entry, also=(*await _still_there(context, agent, body.session, service), service))
        others = [one for one in agent.reg.entries if (one.kind, one.key) != (SESSION, body.session)]
        kept = [one for one in others if one.kind == SESSION][-MOST_OF_ONE + 1 :]
        agent.amend(replaced(agent.reg, entries=(*(one for one in others if one.kind != SESSION), *kept, entry)))
        await context.registry.write(context.registry.agent_details.set_entries, agent.agent_id, agent.reg.entries)
    context.event("session.found", agent_id=agent.agent_id, name=agent.reg.name, session=body.session, why=answer.why)
    return agent, Talk(agent.agent_id, answer.perhaps)


async def _still_there(context: ControlContext, agent: Agent, session: str, but: Identity) -> list[Identity]:
    """Other services that the agent has the same session in, and that live: two may work for one, and take turns."""
    known = [one for it, one in agent.reg.served if it == session and not one.same_process(but)]
    seen = await look_at([one.pid for one in known], context.host) if known else {}
    return [one for one in known if not _gone(one, seen[one.pid])][:MOST_SERVICES]


def _gone(known: Identity, seen: Look) -> bool:
    if isinstance(seen, OSError):
        return isinstance(seen, ProcessLookupError)  # else nothing is known of it now
    return isinstance(seen, ThreadSeen) or not seen.identity.same_process(known)


async def _placed(context: ControlContext, peer: Peer, directory: str, seen: ClientCandidate) -> ClientCandidate:
    """The client with its directory as its owner sees it: it may have got another name of the session's directory."""
    if not seen.told or seen.directory in (None, directory):
        return seen
    try:
        asked: list[Json] = [{"path": path} for path in (directory, seen.directory)]
        places = [await context.helpers.call_in_fresh_helper(peer.uid, "real_path", one, LOOK_SECONDS) for one in asked]
    except OwnerCallFailed:
        return seen._replace(directory=None)
    return seen._replace(directory=directory) if places[0] == places[1] else seen


def _decided(context: ControlContext, peer: Peer, body: Speak, seen: tuple[ClientCandidate, ...]) -> Whose:
    now = context.clock.now()
    since_boot = now.wall.timestamp() - now.boot
    found = [
        Client(
            _agent_of(context, peer, one),
            since_boot + one.chain[0][1] / procfs.TICKS_PER_SECOND,
            one.directory,
            one.named,
        )
        for one in seen
    ]
    return whose(Session(body.session, body.cwd, body.fresh), found)


def _agent_of(context: ControlContext, peer: Peer, seen: ClientCandidate) -> str | None:
    """In whose tree a client is: the nearest main process above it, else by the last scan of the trees."""
    mine = [agent for agent in context.fleet if agent.reg.owner_uid == peer.uid and agent.status in _SPOKEN]
    mains = {(a.identity.pid, a.identity.start_ticks): a.agent_id for a in mine if a.identity is not None}
    for process in seen.chain:
        if process in mains:
            return mains[process]
    return next((agent.agent_id for agent in mine if seen.chain[0] in agent.processes), None)


def _perhaps(context: ControlContext, talk: Talk | None) -> list[Agent]:
    found = [context.fleet.get(one) for one in (() if talk is None else talk.perhaps)]
    return [one for one in found if one is not None and one.status in _SPOKEN]


def _lives(context: ControlContext, agent: Agent, session: Agent) -> None:
    """One whose session it may be: that it has begun is certain, that it works is not, and so its silence is none."""
    now = context.clock.now()
    agent.perhaps[session.agent_id] = session.reg.name
    for gone in [one for one in agent.perhaps if context.fleet.get(one) is None]:
        del agent.perhaps[gone]
    beat = Beat(promises=False)
    if not agent.reg.conversations:
        note = f"which session is its own is not known ({', '.join(sorted(agent.perhaps.values()))}?)"
        beat = replaced(beat, state=State.IDLE, note=note)
    agent.beat(beat, now.mono, now.wall)
