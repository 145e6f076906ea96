"""The control socket: HTTP and JSON on a unix socket, the only door into the daemon.

1. The kernel says who speaks (`peers`); a body never does.
2. Every route is there twice, bare and below /v1; below /v1 things are only ever added.
3. Errors are `{"error": code, "message": text}` with the error's own HTTP status; one bad request harms nobody else.
4. A slow or hostile client costs its own uid's connections: 32, the first byte within 5 s, bodies up to 64 KiB.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web

from watchdog.control import ending, events, holding, reading, registering
from watchdog.control.bodies import MAX_BODY
from watchdog.control.desk import DESK, PEER, Bell, Desk
from watchdog.control.peers import Gate, peer_of
from watchdog.control.results import denial
from watchdog.errors import Forbidden, WatchdogError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
__all__ = ["Bell", "ControlServer", "Desk", "application", "bind"]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/agents", registering.register),
    ("GET", "/agents", reading.agents),
    ("GET", "/agents/{agent_id}", reading.agent),
    ("PATCH", "/agents/{agent_id}", registering.change),
    ("POST", "/agents/{agent_id}/beat", registering.beat),
    ("POST", "/kill", ending.kill),
    ("POST", "/stop", ending.stop),
    ("POST", "/cancel", ending.cancel),
    ("POST", "/remove", holding.remove),
    ("POST", "/hold", holding.hold),
    ("POST", "/unhold", holding.unhold),
    ("GET", "/events", events.events),
    ("GET", "/status", reading.status),
    ("GET", "/metrics", reading.metrics),
)


def application(desk: Desk) -> web.Application:
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
    try:
        assert request.transport is not None
        peer = peer_of(request.transport.get_extra_info("socket"), desk.settings.control.admin_group)
    except (AssertionError, OSError):
        return _problem(400, "bad_request", "the kernel does not say who you are; are you still there?")
    request[PEER] = peer
    try:
        return await handler(request)
    except WatchdogError as error:
        if isinstance(error, Forbidden):
            denial(desk, peer, request.path, str(error))
        return _problem(error.http_status, error.code, str(error))
    except web.HTTPException as error:
        if error.status == 404:
            return _problem(404, "not_found", f"there is no {request.path}; see the README, \"HTTP\"")
        return _problem(error.status, "bad_request", f"{request.method} {request.path}: {error.reason}")
    except Exception as error:  # noqa: BLE001 - one request's failure must stay this request's
        desk.log.failure("control.failed", error, route=request.path, uid=peer.uid)
        return _problem(500, "internal_error", f"{type(error).__name__}; the daemon's log has more")


def _problem(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": code, "message": message}, status=status)


def bind(path: str) -> socket.socket:
    """A listening socket at `path`, connectable by everybody: the kernel says who comes, and the API decides.

    The caller holds the daemon's lock, so what lies there is stale and is replaced. Raises OSError.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        if os.path.lexists(path):
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, 0o666)  # a user's daemon has its directory at 0700 (invariant: only that uid gets here)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


class ControlServer:
    """Serves the application on one listening socket."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._runner = web.AppRunner(
            application(desk), access_log=None, keepalive_timeout=30.0, shutdown_timeout=2.0, handle_signals=False
        )
        self._server: asyncio.AbstractServer | None = None

    async def start(self, listener: socket.socket) -> None:
        """Begin to accept."""
        await self._runner.setup()
        inner = self._runner.server
        assert inner is not None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(Gate(inner), sock=listener)

    async def close(self) -> None:
        """Accept nobody any more, let followers go, finish what is being answered (2 s)."""
        if self._server is not None:
            self._server.close()
        self._desk.bell.close()
        await self._runner.cleanup()
