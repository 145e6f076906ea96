"""GET /custody: the agents that this daemon holds, for another daemon that knows one of their processes (`custody`).

A peer gets its own agents, root and admins all; of each the process and the name.

Tests: tests/control/test_server.py, tests/e2e/test_one_daemon.py, tests/e2e/test_orders_of_daemons.py.
"""

from aiohttp import web

from watchdog.control.context import context_of, peer_at


async def held(request: web.Request) -> web.Response:
    """Which living processes are agents of ours. One that another daemon holds is not."""
    context, peer = context_of(request), peer_at(request)
    agents = [
        {
            "pid": agent.identity.pid,
            "start_ticks": agent.identity.start_ticks,
            "agent_id": agent.agent_id,
            "name": agent.reg.name,
        }
        for agent in context.fleet
        if agent.identity is not None and agent.owner.elsewhere is None and peer.may(agent.reg.owner_uid)
    ]
    return web.json_response({"host": context.host, "boot_id": context.boot_id, "held": agents})
