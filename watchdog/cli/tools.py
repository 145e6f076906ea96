"""The MCP server of `agent-watchdog mcp`: what an agent or an orchestrator may ask of the watchdog, as tools.

It is one more client of the control socket. The kernel says who it is there: a uid sees and ends its own agents, root
all, and whoever runs in an agent's tree is shown what a group of targets means before it is done. Each tool that ends
somebody takes one agent or task, never a group. Imported by the verb alone: the SDK costs over a second.
"""

import os
import urllib.parse
from typing import Any, Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from watchdog.cli.story import story
from watchdog.control import client
from watchdog.errors import WatchdogError

Json = dict[str, Any]
State = Literal["working", "idle", "waiting", "blocked", "done"]

_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_SAYS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
_ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
_INSTRUCTIONS = """\
agent-watchdog watches AI coding agents on this machine and ends the stalled ones with their whole process trees.
An agent is named by its name, its id (or 8 characters of it) or the pid of its main process. Look (list_agents,
agent_status, why) before you end anybody. stop_agent lets an agent finish its present tool call, and is to be
preferred to kill_agent. Work in its worktree is kept either way.
"""
_SECONDS = 10.0
_END_SECONDS = 900.0


class Tools:
    """The tools, bound to one control socket."""

    def __init__(self, socket_path: str) -> None:
        self._socket = socket_path

    def list_agents(self, connected: bool = True, tag: str | None = None) -> Json:
        """Agents that are watched: status, verdict, silence and why. connected=false: those that have ended, too."""
        query = {key: value for key, value in (("all", "" if connected else "1"), ("tag", tag)) if value}
        return self._ask("GET", f"/v1/agents?{urllib.parse.urlencode(query)}")

    def agent_status(self, agent: str) -> Json:
        """One agent now: status, verdict, heartbeat, processes, signals, and what would change the verdict."""
        found = self._ask("GET", f"/v1/agents/{_quoted(agent)}")["agent"]
        assert isinstance(found, dict)
        return found

    def why(self, agent: str) -> str:
        """One agent's whole story as text: who did what to it, when, why, and with which evidence."""
        return "\n".join(story(self._ask("GET", f"/v1/agents/{_quoted(agent)}")))

    def stop_agent(self, agent: str, reason: str, children: bool = False) -> Json:
        """Have an agent stop: asked, then its exit keys, then TERM and KILL. It can be resumed where its tool can."""
        return self._end("/v1/stop", agent, {"reason": reason, "children": children})

    def kill_agent(self, agent: str, reason: str, force: bool = False, children: bool = False) -> Json:
        """End an agent and its whole process tree, proved; force: KILL at once, work in memory is lost."""
        return self._end("/v1/kill", agent, {"reason": reason, "force": force, "children": children})

    def cancel_task(self, task: str, reason: str) -> Json:
        """Stop whoever works on a task; the task becomes `cancelled`."""
        return self._checked(*self._request("POST", "/v1/cancel", {"targets": [task], "reason": reason}, _END_SECONDS))

    def remove_agent(self, agent: str, with_messages: bool = False) -> Json:
        """Close the row of an agent whose process is gone; a living one is refused."""
        return self._end("/v1/remove", agent, {"with_messages": with_messages})

    def beat(
        self,
        state: State | None = None,
        note: str | None = None,
        progress: float | None = None,
        silent_for_seconds: float | None = None,
        agent: str | None = None,
    ) -> Json:
        """Say that an agent (you, unless told) makes progress. A `stop` in the answer: end after this tool call."""
        who = agent or os.environ.get("AGENT_WATCHDOG_ID", "")
        if not who:
            raise ToolError("no agent: this server was not started by a watched agent, and `agent` is not given")
        said = {"state": state, "note": note, "progress": progress, "silent_for_seconds": silent_for_seconds}
        words = {key: value for key, value in said.items() if value is not None}
        return {"success": True, **self._ask("POST", f"/v1/agents/{_quoted(who)}/beat", words)}

    def _end(self, path: str, agent: str, body: Json) -> Json:
        if agent in ("all", "stalled", "orphans") or ":" in agent:
            raise ToolError(f"{agent!r} may mean many agents; name one (list_agents has their names and ids)")
        return self._checked(*self._request("POST", path, {"targets": [agent], **body}, _END_SECONDS))

    def _checked(self, status: int, answer: Json) -> Json:
        if not answer.get("success"):
            results = answer.get("results")
            bad = [answer] if not results else [result for result in results if not result.get("success")]
            raise ToolError("; ".join(f"{one.get('error')}: {one.get('message')}" for one in bad))
        return answer

    def _ask(self, method: str, path: str, body: object | None = None) -> Json:
        status, answer = self._request(method, path, body, _SECONDS)
        if status >= 300:
            raise ToolError(f"{answer.get('error')}: {answer.get('message')}")
        return answer

    def _request(self, method: str, path: str, body: object | None, seconds: float) -> tuple[int, Json]:
        try:
            return client.request(method, path, body, socket_path=self._socket, timeout=seconds)
        except WatchdogError as error:
            raise ToolError(str(error)) from error


def _quoted(word: str) -> str:
    return urllib.parse.quote(word, safe="")


def server(socket_path: str) -> MCPServer[object]:
    """The server with its tools; nothing is asked of the daemon before a tool is called."""
    made = MCPServer[object]("agent-watchdog", instructions=_INSTRUCTIONS, log_level="WARNING")
    tools = Tools(socket_path)
    for tool in (tools.list_agents, tools.agent_status, tools.why):
        made.tool(annotations=_READS)(tool)
    for ending in (tools.stop_agent, tools.kill_agent, tools.cancel_task, tools.remove_agent):
        made.tool(annotations=_ENDS)(ending)
    made.tool(annotations=_SAYS)(tools.beat)
    return made


def serve(socket_path: str) -> None:
    """Answer on stdin and stdout until the client closes them."""
    server(socket_path).run("stdio")
