"""`agent-watchdog mcp`: the SDK's own client calls each tool against a real daemon.

What brings the SDK is imported where it is used: it takes 0.4 s, and every worker collects this file.
"""

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.world import BIN, PATIENCE, World, alive, wait_for
from watchdog.client import client

ENDS = {"stop_agent", "kill_agent", "cancel_task", "remove_agent"}
READS = {"list_agents", "agent_status", "why"}
Ask = Callable[..., Awaitable[Any]]


def converse(world: World, talk: Callable[[Any, Ask], Awaitable[None]], **environ: str) -> None:
    """One client on one server; `ask` gives a tool's answer, or its error text."""
    from mcp import Client, StdioServerParameters

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


def call(number: int, tool: str, **arguments: Any) -> bytes:
    """One call as a line on the server's stdin."""
    params = {"name": tool, "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode() + b"\n"


HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a test", "version": "0"}}
GREETING = b"".join(
    json.dumps({"jsonrpc": "2.0", **said}).encode() + b"\n"
    for said in ({"id": 0, "method": "initialize", "params": HELLO}, {"method": "notifications/initialized"})
)


@pytest.mark.faults
def test_every_tool_does_what_its_verb_does(world: World) -> None:
    """List it, beat for it, stop, kill and cancel it, and close the row of one whose process is gone."""
    world.configure(kill={"stop_pause_seconds": 1})
    world.start()
    names = ("alpha", "beta", "gamma", "delta")
    made = {name: world.registered(name, "sleep", "600", task=f"T-{name}") for name in names}

    async def talk(client: Any, ask: Ask) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == ENDS | READS | {"beat"}
        hints = {name: tool.annotations for name, tool in tools.items()}
        assert {name for name, hint in hints.items() if hint is not None and hint.destructive_hint} == ENDS
        assert {name for name, hint in hints.items() if hint is not None and hint.read_only_hint} == READS

        assert {agent["name"] for agent in (await ask("list_agents"))["agents"]} == set(names)
        assert (await ask("agent_status", agent="alpha"))["pid"] == made["alpha"].pid
        assert (await ask("beat", agent="alpha", state="working", note="by mcp", progress=1))["success"]
        assert (await ask("agent_status", agent="alpha"))["note"] == "by mcp"

        assert "no JSON" in await ask("beat", agent="alpha", progress="nan")
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
def test_an_agent_asked_to_stop_gets_that_in_the_answer_to_its_beat(world: World) -> None:
    """The server speaks for the agent that started it; without a daemon it reports that, and continues."""

    async def talk(client: Any, ask: Ask) -> None:
        assert "no daemon answers" in await ask("list_agents")
        world.start()
        agent = world.registered("self", "sleep", "600")
        marker = world.agents()["self"]["agent_id"]
        assert await ask("beat", agent=marker, state="working") == {"success": True}
        stop = subprocess.Popen([str(BIN / "agent-watchdog"), "stop", "self"], env=world.environ)
        world.wait_event("stop.asked", name="self")
        assert (await ask("beat", agent=marker))["stop"]["reason"].startswith("asked for by")
        agent.kill()
        assert stop.wait(60) == 0
        wait_for(lambda: world.agents()["self"]["status"] == "stopped" or None, "its row is closed")

    converse(world, talk)


@pytest.mark.faults
def test_a_beat_finds_its_agent_also_without_the_environment(world: World) -> None:
    """Codex's and the SDK's own client pass no environment on: then it is the agent among our ancestors."""
    world.configure(stall={"after_seconds": 600})
    world.start()
    os.mkfifo(world.dir / "in")
    world.registered("self", "sh", "-c", "unset AGENT_WATCHDOG_ID; agent-watchdog mcp <in >out; sleep 600")

    with (world.dir / "in").open("wb") as said:
        said.write(GREETING + call(1, "beat", note="from below"))
        said.flush()
        answer = wait_for(lambda: _answers(world.dir / "out").get(1), "an answer")

    assert answer["result"]["structuredContent"] == {"success": True}
    assert world.agents()["self"]["note"] == "from below"


def _answers(path: Path) -> dict[int, Any]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {one["id"]: one for one in map(json.loads, lines)}


def test_a_tool_takes_only_its_documented_arguments(tmp_path: Path) -> None:
    """A dry run that a tool does not have must not kill an agent; nor must one word mean many agents."""
    from mcp import Client

    from watchdog.cli.mcp_tools import server

    places = iter([tmp_path / "none", tmp_path / "later"])  # a daemon may be started after this server

    async def whole() -> None:
        async with Client(server(lambda: str(next(places)))) as client:

            async def refused(tool: str, **arguments: Any) -> str:
                answer = await client.call_tool(tool, arguments)
                assert answer.is_error
                return str(getattr(answer.content[0], "text", None))

            listed = (await client.list_tools()).tools
            assert [tool.input_schema["additionalProperties"] for tool in listed] == [False] * len(listed)
            assert "dry_run" in await refused("kill_agent", agent="alpha", reason="?", dry_run=True)
            for group in ("all@host", "stalled@host", "orphans@host", "task:T-1@host"):
                for tool in ("kill_agent", "stop_agent"):
                    assert "name one" in await refused(tool, agent=group, reason="too much")
            assert "none" in await refused("beat", agent="alpha", note="[1]")  # text, also where it parses as JSON
            assert "later" in await refused("list_agents")

    asyncio.run(whole())


def test_a_daemon_that_hangs_delays_no_other_call_and_no_exit(tmp_path: Path) -> None:
    """Waiting orders leave room for other calls, and connections for their uid's beats; the server exits with stdin."""
    path = tmp_path / "control.sock"
    with closing(socket.socket(socket.AF_UNIX)) as daemon:
        daemon.bind(str(path))
        daemon.listen(128)
        command = [str(BIN / "agent-watchdog"), "--socket", str(path), "mcp"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asked:
            assert asked.stdin is not None
            assert asked.stdout is not None
            asked.stdin.write(GREETING + b"".join(call(n, "kill_agent", agent="a", reason="r") for n in range(1, 51)))
            asked.stdin.flush()
            assert json.loads(asked.stdout.readline())["id"] == 0
            waiting = [daemon.accept()[0] for _ in range(16)]
            assert not select.select([daemon], [], [], 0.2)[0]
            asked.stdin.write(call(99, "agent_status", agent="a"))
            asked.stdin.flush()
            with daemon.accept()[0] as looked:
                assert looked.recv(4096).startswith(b"GET /v1/agents/a ")
                looked.sendall(b'HTTP/1.1 200 OK\r\n\r\n{"agent": {"name": "a"}}')
            assert json.loads(asked.stdout.readline())["id"] == 99
            asked.stdin.close()
            assert asked.wait(60) == 0
        for one in waiting:
            one.close()


def test_an_interrupt_ends_it_while_it_waits_on_stdin(tmp_path: Path) -> None:
    """Ctrl-C of a person who tries it in a terminal; it dies of it, as the other verbs do."""
    command = [str(BIN / "agent-watchdog"), "--socket", str(tmp_path / "control.sock"), "mcp"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # `make test &` ignores it
    ) as asked:
        assert asked.stdin is not None
        assert asked.stdout is not None
        asked.stdin.write(GREETING)
        asked.stdin.flush()
        assert json.loads(asked.stdout.readline())["id"] == 0

        asked.send_signal(signal.SIGINT)

        try:
            assert asked.wait(60) == -signal.SIGINT
        finally:
            asked.kill()


def test_a_missing_reader_or_stdin_gives_an_exit_status_and_no_traceback(tmp_path: Path) -> None:
    """74 where the answer cannot be written, 64 where there is no stdin at all."""
    command = [str(BIN / "agent-watchdog"), "--socket", str(tmp_path / "control.sock"), "mcp"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as asked:
        assert asked.stdout is not None
        asked.stdout.close()
        _, err = asked.communicate(GREETING, timeout=PATIENCE)
    assert (asked.returncode, err) == (74, b"")

    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, check=False, timeout=PATIENCE
    )
    assert (closed.returncode, closed.stderr.count(b"\n")) == (64, 1)


def test_without_the_sdk_it_says_what_to_install() -> None:
    """Also with an SDK that is too old."""
    hidden = "import sys; sys.modules['mcp.server.mcpserver'] = None"
    code = f"{hidden}; from watchdog.cli.main import main; sys.exit(main(['mcp']))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stdout) == (78, "")
    assert "make install EXTRAS=mcp" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_verbs_do_not_import_the_sdk() -> None:
    """It costs over a second, and is an extra: the other verbs and the parser do not import it."""
    code = "import sys, watchdog.cli.verbs as v; v.build(); print([m for m in sys.modules if m.split('.')[0] == 'mcp'])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout == "[]\n"


def test_a_thousand_agents_are_listed_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, in answers that a model can read, though one agent ended and one was added between two pages."""
    from mcp import Client

    from watchdog.cli.mcp_tools import server

    long = {"why": "w" * 5000, "note": "n" * 5000, "transcript": "/t" * 2000, "entries": [{"path": "/p" * 2000}]}
    agents = [{"agent_id": f"{n:032x}", "name": f"a{n}", "status": "running", **long} for n in range(1000)]
    monkeypatch.setattr(client, "request", lambda *_, **__: (200, {"agents": list(reversed(agents))}))

    async def whole() -> None:
        async with Client(server(lambda: "/nowhere")) as asking:
            seen, cursor, sizes = list[str](), "", list[int]()
            while True:
                answer = await asking.call_tool("list_agents", {"cursor": cursor} if cursor else {})
                said = answer.structured_content
                assert said is not None and said["total"] == 1000
                sizes.append(len(json.dumps(said)))
                seen += [agent["name"] for agent in said["agents"]]
                if len(seen) == 100:
                    agents[0] = {"agent_id": "0" * 31 + "x", "name": "new", "status": "running"}
                cursor = said.get("nextCursor", "")
                if not cursor:
                    break
            assert sorted(seen) == sorted(f"a{n}" for n in range(1000))
            assert max(sizes) < 100_000

    asyncio.run(whole())


def test_a_call_that_is_cancelled_leaves_no_thread_waiting(tmp_path: Path) -> None:
    """The daemon hangs; a client that cancelled its call disconnects, long before the limit of an order."""
    from watchdog.cli.mcp_tools import Tools

    path = tmp_path / "control.sock"
    with closing(socket.socket(socket.AF_UNIX)) as daemon:
        daemon.bind(str(path))
        daemon.listen(8)
        daemon.settimeout(20)

        async def whole() -> None:
            order = asyncio.create_task(Tools(lambda: str(path)).kill_agent("alpha", "enough"))
            connection = (await asyncio.to_thread(daemon.accept))[0]
            with closing(connection):
                connection.settimeout(20)
                assert await asyncio.to_thread(connection.recv, 65536)
                order.cancel()
                assert await asyncio.to_thread(connection.recv, 65536) == b"", "it has hung up"

        asyncio.run(whole())
