"""The control socket: HTTP and JSON on a unix socket, the only door into the daemon.

1. The kernel says who speaks (`peers`); a body never does.
2. Every route is there twice, bare and below /v1; below /v1 things are only ever added.
3. Errors are `{"error": code, "message": text}` with the error's own HTTP status; one bad request harms nobody else.
4. A slow or hostile client costs its own user's share (`admission`): connections (32 of a uid and 32 that follow, the
   first byte within 5 s), requests a second, bodies up to 64 KiB. No agent is judged silent whose uid was refused a
   connection (`ControlContext.unheard`). A heartbeat is never refused for its number, only taken a second later.
5. A request works in its user's lane (`lanes`); root's and the admins' go first.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

from aiohttp import web

from watchdog.concurrency import threads
from watchdog.concurrency.lanes import Lane, enter
from watchdog.config.paths import make_way
from watchdog.control.context import DESK, ControlContext, peer_at
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
from watchdog.control.views.results import denial
from watchdog.core.admission import WAIT, LimitKind, cost_of
from watchdog.core.peer import Peer
from watchdog.errors import BadRequest, Forbidden, Limited, NoSpace, WatchdogError
from watchdog.telemetry import logger

OPTIONAL = frozenset({("POST", "/agents"), ("POST", "/hold")})  # what a user can do without while the disk is full
LAST_LOOK = 1.0  # seconds that the removal of our socket may take
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
__all__ = ["application", "bind", "serve"]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/agents", agents.register),
    ("GET", "/agents", reading.agents),
    ("GET", "/agents/{agent_id}", reading.agent),
    ("PATCH", "/agents/{agent_id}", agents.change),
    ("POST", "/agents/{agent_id}/beat", agents.beat),
    ("POST", "/sessions/beat", session_beat.speak),
    ("POST", "/kill", kill.kill),
    ("POST", "/stop", kill.stop),
    ("POST", "/cancel", kill.cancel),
    ("POST", "/remove", hold.remove),
    ("POST", "/purge", purge.purge),
    ("POST", "/reap", reap.reap),
    ("POST", "/reload", reload.reload),
    ("GET", "/restore", restore.listed),
    ("POST", "/restore", restore.restore),
    ("POST", "/hold", hold.hold),
    ("POST", "/unhold", hold.unhold),
    ("GET", "/events", events.events),
    ("GET", "/custody", custody.held),
    ("GET", "/status", reading.status),
    ("GET", "/metrics", reading.metrics),
)


def application(desk: ControlContext) -> web.Application:
    """The application with all routes; it answers only requests that came over a unix socket."""
    app = web.Application(middlewares=[_errors], client_max_size=MAX_BODY)
    app[DESK] = desk
    for method, path, handler in ROUTES:
        for prefix in ("", "/v1"):
            app.router.add_route(method, prefix + path, handler)
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Say who asks; turn what goes wrong into JSON, and keep it with this request."""
    desk = request.app[DESK]
    peer = None
    try:
        peer = peer_at(request)
        await _admit(desk, peer, request)
        if not peer.admin and (request.method, request.path.removeprefix("/v1")) in OPTIONAL:
            _refuse_without_space(desk, peer)
        with logger.caused_by(None if peer.admin else peer.uid):
            answer = await handler(request)
        if isinstance(answer, web.Response) and isinstance(answer.body, bytes):
            desk.charge_answer(peer, len(answer.body))
        return answer
    except Limited as error:
        return _problem(error.http_status, error.code, str(error), {"Retry-After": str(error.retry_after)})
    except WatchdogError as error:
        if isinstance(error, Forbidden) and peer is not None:
            with logger.caused_by(peer.uid):
                denial(desk, peer, request.path, str(error))
        return _problem(error.http_status, error.code, str(error))
    except web.HTTPException as error:
        if error.status == 404:
            return _problem(404, "not_found", f'there is no {request.path}; see agents.md, "HTTP"')
        return _problem(error.status, "bad_request", f"{request.method} {request.path}: {error.reason}")
    except Exception as error:  # one request's failure must stay this request's
        if isinstance(error, ConnectionError) and gone(request):
            raise  # nobody to answer: `Speaker` ends the connection
        with logger.caused_by(peer.uid if peer else None):
            desk.log.event("control.failed", exc_info=error, route=request.path, uid=peer.uid if peer else None)
        return _problem(500, "internal_error", f"{type(error).__name__}; the daemon's log has more")


async def _admit(desk: ControlContext, peer: Peer, request: web.Request) -> None:
    """Work in the peer's lane and at users' pace, and pay for a request that was not the first of its connection.

    Raises Limited.
    """
    if peer.admin:
        return
    user = desk.admission.user_of(peer.uid)
    enter(Lane(user))
    guard = None if request.transport is None else request.transport.get_protocol()
    if not (isinstance(guard, Guarded) and guard.paid()):
        await _pay(desk, peer, user, request)
    await desk.pace.begin(user)


async def _pay(desk: ControlContext, peer: Peer, user: int, request: web.Request) -> None:
    kind, cost = cost_of(request.method, request.path_qs)
    seconds = desk.admission.take(peer.uid, kind, cost)
    if seconds > 0:
        await asyncio.sleep(min(seconds, WAIT))
    if seconds > WAIT:
        desk.admission.refused(peer.uid, kind)
        if kind is not LimitKind.BEATS:
            raise too_often(peer.uid, user, seconds)


def _refuse_without_space(desk: ControlContext, peer: Peer) -> None:
    why = desk.no_space(peer.uid)
    if why is not None:
        raise NoSpace(f"{why}; no new agent and no hold before there is room again")


def _problem(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": code, "message": message}, status=status, headers=headers)


class Speaker(web.RequestHandler):
    """aiohttp's side of one connection; what is no HTTP is answered in JSON too, and is the client's fault, not a
    traceback in our log for each line that a stranger writes."""

    __slots__ = ()

    def log_exception(self, *words: object, exc_info: object = None, **more: object) -> None:
        """Log a fault of ours. A client that leaves while it is answered, or sends a broken body, is normal."""
        if not isinstance(exc_info, ConnectionError | web.RequestPayloadError):
            super().log_exception(*words, exc_info=exc_info, **more)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what never became a request; the connection ends with it."""
        if status >= 500 or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        lines = (message or "").strip().splitlines()
        answer = _problem(status, BadRequest.code, f"this is no HTTP request: {lines[0] if lines else status}")
        answer.force_close()
        return answer


def bind(path: str) -> socket.socket:
    """A listening socket at `path`, connectable by everybody: the kernel says who comes, and the API decides.

    The caller holds the daemon's lock, so what lies there is stale and is replaced; a directory is moved aside. Raises
    OSError.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        make_way(path, os.path.dirname(path))
        listener.bind(path)
        # Who may come is the directory's mode (a user's daemon: 0700) and the API's to say, not this file's.
        os.chmod(path, 0o666)  # noqa: S103  everybody may connect; unix(7) asks for write permission
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


@asynccontextmanager
async def serve(desk: ControlContext, listener: socket.socket | None = None) -> AsyncIterator[None]:
    """Answer on `listener` (None: one bound at the desk's own path) for as long as the body runs.

    At the end nobody new is accepted, followers are let go, and what is being answered has 2 s to finish; the socket's
    file is removed when it was made here.
    """
    ours: os.stat_result | None = None
    made = bind(desk.socket_path) if listener is None else None
    listener = made or listener
    assert listener is not None
    runner = web.AppRunner(application(desk), access_log=None, shutdown_timeout=2.0)
    try:
        if made is not None:
            ours = os.stat(desk.socket_path)
        await runner.setup()
        inner = runner.server
        assert inner is not None
        loop = asyncio.get_running_loop()

        def speaker() -> Speaker:
            # None: no line for each request; AppRunner would hand it on like this.
            return Speaker(inner, loop=loop, access_log=None, keepalive_timeout=30.0)  # type: ignore[arg-type]

        gate = ConnectionLimiter(
            speaker,
            unheard=desk.unheard,
            admission=desk.admission,
            admin_group=lambda: desk.settings.control.admin_group,
        )
        listener = Listener.of(listener, gate)
        server = await loop.create_unix_server(gate, sock=listener)
        listener.listen(BACKLOG)  # asyncio accepts as many at a time as it was told for a backlog: its own 100
        try:
            yield
        finally:
            server.close()
            desk.recorder.new_events.close()
    finally:
        await runner.cleanup()
        listener.close()
        with suppress(OSError, threads.Unanswered):  # somebody removed it, or its directory hangs
            threads.call_now(desk.socket_path, partial(_remove, desk.socket_path, ours), LAST_LOOK)


def _remove(path: str, ours: os.stat_result | None) -> None:
    """What else lies there now is not ours to remove. Raises OSError."""
    if ours is not None and os.path.samestat(ours, os.stat(path)):
        os.unlink(path)
