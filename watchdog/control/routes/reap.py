"""POST /reap: what dead agents have left, shown or cleaned up; each owner sees and clears only their own.

Tests: tests/e2e/test_reap.py.
"""

from aiohttp import web

from watchdog.control.context import context_of, peer_at
from watchdog.control.schemas import Reap, parse, read_body


async def reap(request: web.Request) -> web.Response:
    """Look now; unless it is a dry run, have each leftover dealt with, and say what came of it."""
    body = parse(Reap, await read_body(request))
    context, peer = context_of(request), peer_at(request)
    async with context.callers.with_helper():
        found = await context.reaper.reap(peer.may, peer.by, dry_run=body.dry_run)
    failed = [one for one in found if one["outcome"] in ("failed", "timeout")]
    answer = {
        "success": not failed,
        "action": "would_reap" if body.dry_run or context.settings.observe else "reap",
        "findings": found,
        "timestamp": context.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return web.json_response(answer)
