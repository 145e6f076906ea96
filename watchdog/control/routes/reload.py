"""POST /reload: read the configuration again, and say what came of it. SIGHUP does the same without an answer.

Tests: tests/e2e/test_reload.py.
"""

from aiohttp import web

from watchdog.control.context import context_of, peer_at
from watchdog.errors import Forbidden


async def reload(request: web.Request) -> web.Response:
    """For admins; a file that cannot be used is an answer, too: `success` is false, and `problems` has each fault."""
    context, peer = context_of(request), peer_at(request)
    if not peer.admin:
        raise Forbidden("only root, the daemon's own uid and admins may reload its configuration")
    return web.json_response(await context.reload.ask())
