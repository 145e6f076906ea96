"""The control socket: HTTP and JSON on a unix socket, the only way into the daemon.

1. The kernel says who the caller is (`peers`); a body never does.
2. Every route exists twice, bare and below /v1; below /v1 things are only ever added.
3. Errors are `{"error": code, "message": text}` with the error's own HTTP status; one bad request harms no other
   client.
4. A slow or hostile client uses up its own user's share (`admission`): connections (32 of a uid and 32 that follow, the
   first byte within 5 s), requests a second, bodies up to 64 KiB. No agent is judged silent whose uid was refused a
   connection (`ControlContext.unheard`). Heartbeats are never refused for being too many, only taken a second later.
5. A request is served in its user's lane (`lanes`); those of root and the admins go first.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

from aiohttp import web
from pydantic import BaseModel

from watchdog.concurrency import threads
from watchdog.concurrency.lanes import Lane, enter
from watchdog.config.paths import make_way
from watchdog.control.context import CONTEXT, ControlContext, peer_at
from watchdog.control.peers import BACKLOG, ConnectionLimiter, Guarded, Listener, too_often
from watchdog.control.routes import (
    agents,
    custody,
    events,
    hold,
    kill,
    purge,
    reap,
    reload,
    restore,
    session_beat,
)
from watchdog.control.routes import (
    status as reading,
)
from watchdog.control.schemas import MAX_BODY, gone
from watchdog.core.admission import WAIT, LimitKind, cost_of
from watchdog.core.peer import Peer
from watchdog.errors import BadRequest, Forbidden, Limited, NoSpace, WatchdogError
from watchdog.telemetry import logger

OPTIONAL = frozenset({("POST", "/agents"), ("POST", "/hold")})  # refused to users while the disk is full
LAST_LOOK = 1.0  # seconds that the removal of our socket may take
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
__all__ = ["application", "bind", "serve"]


class Route(NamedTuple):
    """One line of the table. `does`: its text in documents. `body`: its schema, if that is not in `schemas`."""

    method: str
    path: str
    handler: Handler
    does: str
    body: type[BaseModel] | None = None


# A verb has a module in control/routes/ and its lines here; the table in agents.md is generated from them.
ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/agents",
        agents.register,
        "register an agent: 201, or 200 if the same client repeats the request; answers with its `env`",
    ),
    Route("GET", "/agents", reading.agents, "living agents, or with `?all` the ended too; `?all_hosts`, `?tag=T`"),
    Route("GET", "/agents/{agent_id}", reading.agent, "one agent with its whole history, by id or name"),
    Route("PATCH", "/agents/{agent_id}", agents.change, "give its pid (or how it exited)"),
    Route("POST", "/agents/{agent_id}/beat", agents.beat, "a beat; `{}` is a plain one"),
    Route("POST", "/sessions/beat", session_beat.speak, "a beat from a hook below a shared service, whose `pid` it is"),
    Route("POST", "/kill", kill.kill, "kill agents: TERM, grace, KILL, proof, cleanup"),
    Route("POST", "/stop", kill.stop, "ask agents to exit, then as `/kill`; outcome `stopped`"),
    Route("POST", "/cancel", kill.cancel, "stop the agents that work on tasks, and cancel the tasks"),
    Route("POST", "/remove", hold.remove, "close the rows of agents whose process is gone"),
    Route("POST", "/purge", purge.purge, "show, or with `yes` move to the trash, an ended agent's conversation"),
    Route("POST", "/reap", reap.reap, "clean up now what dead agents left"),
    Route("POST", "/reload", reload.reload, "read the configuration again (admins); `problems` has each fault"),
    Route("GET", "/restore", restore.listed, "worktrees in the trash; `?place=DIR`"),
    Route("POST", "/restore", restore.restore, "restore one: `id`, `place`, `dry_run`"),
    Route("POST", "/hold", hold.hold, "no kills of these agents; without targets, of any agent (admins)"),
    Route("POST", "/unhold", hold.unhold, "lift holds; without targets the one on all agents, and the daemon's own"),
    Route(
        "GET",
        "/events",
        events.events,
        "JSON lines in order, at least once, also over restarts: `?after=N`, `?agent=ID`, `?follow`",
    ),
    Route("GET", "/custody", custody.held, "which living processes are agents of this daemon (daemons ask each other)"),
    Route("GET", "/status", reading.status, "whether the daemon does its work, in figures"),
    Route("GET", "/metrics", reading.metrics, "figures for Prometheus"),
)


def application(context: ControlContext) -> web.Application:
    """The application with all routes; it answers only requests that came over a unix socket."""
    app = web.Application(middlewares=[_each_request], client_max_size=MAX_BODY)
    app[CONTEXT] = context
    for route in ROUTES:
        for prefix in ("", "/v1"):
            app.router.add_route(route.method, prefix + route.path, route.handler)
    return app


@web.middleware
async def _each_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Learn who the caller is, admit the request, call its handler; turn errors into JSON."""
    context = request.app[CONTEXT]
    peer = None
    try:
        peer = peer_at(request)
        await _admit(context, peer, request)
        if not peer.admin and (request.method, request.path.removeprefix("/v1")) in OPTIONAL:
            _refuse_without_space(context, peer)
        with logger.caused_by(None if peer.admin else peer.uid):
            answer = await handler(request)
        if isinstance(answer, web.Response) and isinstance(answer.body, bytes):
            context.callers.charge_answer(peer, len(answer.body))
        return answer
    except Limited as error:
        return _problem(error.http_status, error.code, str(error), {"Retry-After": str(error.retry_after)})
    except WatchdogError as error:
        if isinstance(error, Forbidden) and peer is not None:
            with logger.caused_by(peer.uid):
                context.callers.deny(peer, request.path, str(error))
        return _problem(error.http_status, error.code, str(error))
    except web.HTTPException as error:
        if error.status == 404:
            return _problem(404, "not_found", f'there is no {request.path}; see agents.md, "HTTP"')
        return _problem(error.status, "bad_request", f"{request.method} {request.path}: {error.reason}")
    except Exception as error:  # one request's failure must stay this request's
        if isinstance(error, ConnectionError) and gone(request):
            raise  # no client to answer: `Speaker` ends the connection
        with logger.caused_by(peer.uid if peer else None):
            context.log.event("control.failed", exc_info=error, route=request.path, uid=peer.uid if peer else None)
        return _problem(500, "internal_error", f"{type(error).__name__}; the daemon's log has more")


async def _admit(context: ControlContext, peer: Peer, request: web.Request) -> None:
    """Serve it in its user's lane, at the pace that users have; charge it, unless it was paid for with its connection.

    Raises Limited.
    """
    if peer.admin:
        return
    user = context.callers.admission.user_of(peer.uid)
    enter(Lane(user))
    guard = None if request.transport is None else request.transport.get_protocol()
    if not (isinstance(guard, Guarded) and guard.paid()):
        await _pay(context, peer, user, request)
    await context.callers.begin(user)


async def _pay(context: ControlContext, peer: Peer, user: int, request: web.Request) -> None:
    kind, cost = cost_of(request.method, request.path_qs)
    seconds = context.callers.admission.take(peer.uid, kind, cost)
    if seconds > 0:
        await asyncio.sleep(min(seconds, WAIT))
    if seconds > WAIT:
        context.callers.admission.refused(peer.uid, kind)
        if kind is not LimitKind.BEATS:
            raise too_often(peer.uid, user, seconds)


def _refuse_without_space(context: ControlContext, peer: Peer) -> None:
    why = context.status.no_space(peer.uid)
    if why is not None:
        raise NoSpace(f"{why}; no new agent or hold is accepted until there is space again")


def _problem(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": code, "message": message}, status=status, headers=headers)


class Speaker(web.RequestHandler):
    """aiohttp's side of one connection.

    What is not HTTP is answered in JSON, too. It is the client's fault, so it gives no traceback in our log.
    """

    __slots__ = ()

    def log_exception(self, *words: object, exc_info: object = None, **more: object) -> None:
        """Log faults of the daemon. A client that leaves while it is answered, or sends a broken body, is none."""
        if not isinstance(exc_info, ConnectionError | web.RequestPayloadError):
            super().log_exception(*words, exc_info=exc_info, **more)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what never became a request; then the connection is closed."""
        if status >= 500 or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        lines = (message or "").strip().splitlines()
        answer = _problem(status, BadRequest.code, f"this is not an HTTP request: {lines[0] if lines else status}")
        answer.force_close()
        return answer


def bind(path: str) -> socket.socket:
    """A listening socket at `path`, open to every user: the kernel says who connects, and the API decides.

    The caller holds the daemon's lock, so a socket there is stale and is replaced; a directory is moved aside. Raises
    OSError.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        make_way(path, os.path.dirname(path))
        listener.bind(path)
        # The directory's mode (a user's daemon: 0700) and the API say who may connect, not this file.
        os.chmod(path, 0o666)  # noqa: S103  every user may connect; unix(7) asks for write permission
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


@asynccontextmanager
async def serve(context: ControlContext, listener: socket.socket | None = None) -> AsyncIterator[None]:
    """Answer on `listener` (None: one bound at the context's own path) for as long as the body runs.

    In the end no new client is accepted, followers are disconnected, requests in work have 2 s to finish, and the
    socket's file is removed if it was made here.
    """
    ours: os.stat_result | None = None
    made = bind(context.socket_path) if listener is None else None
    listener = made or listener
    assert listener is not None
    runner = web.AppRunner(application(context), access_log=None, shutdown_timeout=2.0)
    try:
        if made is not None:
            ours = os.stat(context.socket_path)
        await runner.setup()
        inner = runner.server
        assert inner is not None
        loop = asyncio.get_running_loop()

        def speaker() -> Speaker:
            # None: no line for each request; AppRunner would hand it on like this.
            return Speaker(inner, loop=loop, access_log=None, keepalive_timeout=30.0)  # type: ignore[arg-type]

        gate = ConnectionLimiter(
            speaker,
            unheard=context.unheard,
            admission=context.callers.admission,
            admin_group=lambda: context.settings.control.admin_group,
        )
        listener = Listener.of(listener, gate)
        server = await loop.create_unix_server(gate, sock=listener)
        listener.listen(BACKLOG)  # the kernel's queue alone: asyncio keeps accepting 100 at a time, its default
        try:
            yield
        finally:
            server.close()
            context.recorder.new_events.close()
    finally:
        await runner.cleanup()
        listener.close()
        with suppress(OSError, threads.Unanswered):  # it was removed, or its directory hangs
            threads.call_now(context.socket_path, partial(_remove, context.socket_path, ours), LAST_LOOK)


def _remove(path: str, ours: os.stat_result | None) -> None:
    """Remove our socket, unless another file is there now. Raises OSError."""
    if ours is not None and os.path.samestat(ours, os.stat(path)):
        os.unlink(path)
