"""POST /reap: what dead agents have left, shown or cleaned up; each owner sees and clears only their own."""

from aiohttp import web

from watchdog.concurrency.lanes import lane
from watchdog.control.context import desk_of, peer_at
from watchdog.control.schemas import Reap, parse, read_body


async def reap(request: web.Request) -> web.Response:
    """Look now; unless it is a dry run, have each leftover dealt with, and say what came of it."""
    body = parse(Reap, await read_body(request))
    desk, peer = desk_of(request), peer_at(request)
    async with desk.helping.turn(lane().user):
        found = await desk.reaper.reap(peer.may, peer.by, dry_run=body.dry_run)
    failed = [one for one in found if one["outcome"] in ("failed", "timeout")]
    answer = {
        "success": not failed,
        "action": "would_reap" if body.dry_run or desk.settings.observe else "reap",
        "findings": found,
        "timestamp": desk.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return web.json_response(answer)
