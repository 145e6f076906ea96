"""`agent-watchdog mcp`: the SDK's own client drives each tool against a real daemon."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from tests.world import BIN, World, alive, wait_for

ENDS = {"stop_agent", "kill_agent", "cancel_task", "remove_agent"}
READS = {"list_agents", "agent_status", "why"}
Ask = Callable[..., Awaitable[Any]]


def converse(world: World, talk: Callable[[Client, Ask], Awaitable[None]], **environ: str) -> None:
    """One client on one server; `ask` gives a tool's answer, or its words where it refused."""

    async def whole() -> None:
        command = StdioServerParameters(
            command=str(BIN / "agent-watchdog"), args=["mcp"], env={**world.environ, **environ}
        )
        async with Client(command) as client:

            async def ask(tool: str, **arguments: Any) -> Any:
                answer = await client.call_tool(tool, arguments)
                if answer.is_error:
                    return getattr(answer.content[0], "text", None)
                said = answer.structured_content
                return said["result"] if said is not None and set(said) == {"result"} else said

            await talk(client, ask)

    asyncio.run(whole())


@pytest.mark.faults
def test_every_tool_does_what_its_verb_does(world: World) -> None:
    """Look at it, beat for it, stop, kill and cancel it, and close the row of one whose process is gone."""
    world.configure(kill={"stop_pause_seconds": 1})
    world.start()
    names = ("alpha", "beta", "gamma", "delta")
    made = {name: world.registered(name, "sleep", "600", task=f"T-{name}") for name in names}

    async def talk(client: Client, ask: Ask) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == ENDS | READS | {"beat"}
        hints = {name: tool.annotations for name, tool in tools.items()}
        assert {name for name, hint in hints.items() if hint is not None and hint.destructive_hint} == ENDS
        assert {name for name, hint in hints.items() if hint is not None and hint.read_only_hint} == READS

        assert {agent["name"] for agent in (await ask("list_agents"))["agents"]} == set(names)
        assert (await ask("agent_status", agent="alpha"))["pid"] == made["alpha"].pid
        assert (await ask("beat", agent="alpha", state="working", note="by mcp", progress=1))["success"]
        assert (await ask("agent_status", agent="alpha"))["note"] == "by mcp"

        stopped = await ask("stop_agent", agent="alpha", reason="enough")
        assert (stopped["success"], stopped["status"]) == (True, "stopped")
        again = await ask("stop_agent", agent="alpha", reason="enough")
        assert (again["success"], again["message"]) == (True, "already stopped")
        killed = await ask("kill_agent", agent=str(made["beta"].pid), reason="enough", force=True)
        assert (killed["status"], killed["kill_signal"]) == ("killed", "SIGKILL")
        assert (await ask("cancel_task", task="T-gamma", reason="another plan"))["agents_killed"] == 1
        assert not any(alive(made[name].pid) for name in ("alpha", "beta", "gamma"))

        assert "is alive" in await ask("remove_agent", agent="delta")
        assert "agent.ended" in await ask("why", agent="beta")
        assert {agent["name"] for agent in (await ask("list_agents"))["agents"]} == {"delta"}
        assert {agent["name"] for agent in (await ask("list_agents", connected=False))["agents"]} == set(names)

        for group in ("all", "tag:x", "stalled"):
            assert "name one" in await ask("kill_agent", agent=group, reason="too much")
        assert "agent_not_found" in await ask("kill_agent", agent="nobody", reason="nobody")
        assert "no agent:" in await ask("beat")
        assert alive(made["delta"].pid)
        made["delta"].kill()
        made["delta"].wait()
        assert (await ask("remove_agent", agent="delta"))["success"]

    converse(world, talk)


@pytest.mark.faults
def test_who_is_asked_to_stop_hears_it_in_the_answer_to_its_beat(world: World) -> None:
    """The server speaks for the agent that started it; without a daemon it says so, and goes on."""

    async def talk(client: Client, ask: Ask) -> None:
        assert "no daemon answers" in await ask("list_agents")
        world.start()
        agent = world.registered("self", "sleep", "600")
        marker = world.agents()["self"]["agent_id"]
        assert await ask("beat", agent=marker, state="working") == {"success": True}
        stop = subprocess.Popen([str(BIN / "agent-watchdog"), "stop", "self"], env=world.environ)
        world.wait_event("stop.asked", name="self")
        assert (await ask("beat", agent=marker))["stop"]["reason"].startswith("asked for by")
        agent.kill()
        assert stop.wait(20) == 0
        wait_for(lambda: world.agents()["self"]["status"] == "stopped" or None, "its row is closed")

    converse(world, talk)


def test_nobody_else_pays_for_the_sdk() -> None:
    """It costs over a second, and is an extra: the other verbs and the parser do not import it."""
    code = "import sys, watchdog.cli.verbs as v; v.build(); print([m for m in sys.modules if m.split('.')[0] == 'mcp'])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout == "[]\n"
