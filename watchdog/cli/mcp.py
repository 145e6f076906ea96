"""`mcp`: the verbs as tools of an MCP server, for agents and orchestrators.

Tests: tests/e2e/test_mcp.py.
"""

import argparse
import sys
from functools import partial

from watchdog.cli.output import warn
from watchdog.cli.verb import Verbs, add_verb, socket_of

_MCP = """\
Serve MCP on stdin and stdout: list_agents, agent_status, why, stop_agent, kill_agent, cancel_task, remove_agent, beat.
The server has the rights of the uid that starts it. Tools that end an agent are marked as destructive
(destructiveHint), and take one agent each.

  claude mcp add watchdog -- agent-watchdog mcp

Needs the extra `mcp` (make install EXTRAS=mcp).
"""


def add_verbs(verbs: Verbs) -> None:
    """Add the parser."""
    parser = add_verb(verbs, "mcp", "serve the verbs as MCP tools on stdin and stdout", _MCP, json=False)
    parser.set_defaults(call=mcp)


def mcp(arguments: argparse.Namespace) -> int:
    """Serve until stdin ends."""
    try:
        from watchdog.cli.mcp_tools import serve  # lazily: the SDK costs over a second
    except ImportError as error:  # missing, or version 1, whose names differ
        fix = "make install EXTRAS=mcp (pip: agent-watchdogd[mcp])"
        warn(f"mcp: the official SDK, 2.1 or newer, is not installed here: {fix}; {error}")
        return 78
    if sys.stdin is None or sys.stdout is None:
        warn("mcp: speaks on stdin and stdout, of which one is closed; an MCP client starts it with both")
        return 64
    serve(partial(socket_of, arguments))
    return 0
