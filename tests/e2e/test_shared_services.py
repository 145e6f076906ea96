"""An app server shared by many sessions: each session is an agent, or part of one; the server belongs to no agent."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_service import FakeCodex, event
from tests.fake_vendor import AGENT, EVENT
from tests.world import BIN, PATIENCE, World, alive, wait_for
from watchdog.sweep.process_watch import SCAN_EVERY

FIRST, SECOND, THIRD = (f"01a2285{n}-0000-4000-8000-{os.urandom(6).hex()}" for n in (1, 2, 3))


@pytest.fixture
def codex(world: World) -> Iterator[FakeCodex]:
    made = FakeCodex(world)
    yield made
    made.close()


def fresh() -> str:
    """A session id with the present time as its start."""
    stamp = f"{int(time.time() * 1000):012x}"
    return f"{stamp[:8]}-{stamp[8:]}-7000-8000-{os.urandom(6).hex()}"


def begin(codex: FakeCodex, session: str, directory: Path, agent: str) -> None:
    """Send its first event until the daemon knows its agent: a hook waits only a moment for the daemon."""
    start = event(session, directory, "SessionStart", source="startup")
    wait_for(lambda: codex.does(start) and beats(codex.world, agent), f"{agent} is heard")


def beats(world: World, name: str) -> int:
    found = world.agents().get(name)
    return 0 if found is None else int(found["beats"])


def members(world: World, name: str) -> set[int]:
    """Its present tree: a search for orphans scans all trees again, which a sweep does once a minute."""
    assert world.ask("POST", "/v1/reap", {"dry_run": True})[0] == 200
    return {each["pid"] for each in world.ask("GET", f"/v1/agents/{name}")[1]["agent"]["members"]}


def two(codex: FakeCodex) -> tuple[Path, Path, int, int]:
    """Two clients in their own directories, each with a session whose command runs."""
    world = codex.world
    world.configure(log={"level": "debug"})
    world.start()
    one, other = codex.start("one", serves=True), codex.start("two")
    begin(codex, FIRST, one, "one")
    begin(codex, SECOND, other, "two")
    tools = codex.tool(FIRST), codex.tool(SECOND)
    limit = SCAN_EVERY + PATIENCE  # both rest: nothing triggers a scan before the minute is over
    for name, tool in zip(("one", "two"), tools, strict=True):
        wait_for(lambda: tool in members(world, name), f"the command of {name} is seen", limit)  # noqa: B023 - at once
    assert not {codex.pid, tools[1]} & members(world, "one")
    assert not {codex.pid, tools[0]} & members(world, "two")
    return one, other, *tools


def test_the_end_of_the_first_leaves_the_server_and_the_others_command(world: World, codex: FakeCodex) -> None:
    """V1a: its client exits by itself; its own command is killed with it."""
    _, _, mine, theirs = two(codex)
    client = world.agents()["one"]["pid"]
    os.kill(client, signal.SIGTERM)
    world.wait_status("one", "failed", "completed")
    assert not alive(mine)
    assert alive(codex.pid)
    assert alive(theirs)
    assert world.signalled() <= {client, mine} | members_ever(world, "one")
    assert world.agents()["two"]["status"] == "running"


def members_ever(world: World, name: str) -> set[int]:
    """The members that were killed."""
    answer = world.story(name)["requests"]
    return {each["pid"] for request in answer for each in request["outcome"].get("processes", [])}


def denied(codex: FakeCodex, hook: dict[str, object]) -> None:
    """Whether the session's next calls are denied: a hook without a timely answer lets its program continue, once."""
    wait_for(lambda: "deny" in codex.does(hook)["stdout"], "a tool call is denied")


def test_killing_one_kills_its_client_and_its_own_commands(world: World, codex: FakeCodex) -> None:
    """V1b: proven dead; the other session's command lives, and the answer names the shared service.

    Its work is over.
    """
    _, other, mine, theirs = two(codex)
    done = world.json("kill", "two")
    assert done["success"], done
    assert not alive(theirs)
    assert alive(mine)
    assert alive(codex.pid)
    assert f"codex app-server[{codex.pid}]" in done["how"]
    denied(codex, event(SECOND, other, "PreToolUse", tool_name="Bash", tool_input={"command": "make"}))
    assert not codex.does(event(FIRST, other, "PreToolUse", tool_name="Bash", tool_input={}))["stdout"]


def test_a_reap_leaves_them_alone(world: World, codex: FakeCodex) -> None:
    """All of it has the marker of an agent that has ended, and none of it is an orphan."""
    _, _, _, theirs = two(codex)
    own = world.agents()["one"]["cgroup"]
    assert own is None or own in Path(f"/proc/{codex.pid}/cgroup").read_text()  # the server never left it
    world.cli("kill", "one")
    nobodys = codex.tool(THIRD)
    found = world.cli("reap").stdout
    assert "outlived" not in found, found
    assert all(map(alive, (codex.pid, theirs, nobodys)))


def test_stopping_one_leaves_the_other_and_the_server(world: World, codex: FakeCodex) -> None:
    """Its session, and only that one, gets the request at its next hook; then its client and its command are killed."""
    one, other, mine, theirs = two(codex)
    done = world.json("stop", "two")
    assert done["success"], done
    assert not alive(theirs)
    assert all(map(alive, (mine, codex.pid, world.agents()["one"]["pid"])))
    tool = {"tool_name": "Bash", "tool_input": {"command": "make"}}
    denied(codex, event(SECOND, other, "PreToolUse", **tool))
    assert not codex.does(event(FIRST, one, "PreToolUse", **tool))["stdout"]


def test_a_resumed_session_does_not_belong_to_its_killed_agent(world: World, codex: FakeCodex) -> None:
    """The server keeps the marker of the killed agent: its leftovers are searched for, and this is none."""
    one, _, _, _ = two(codex)
    world.json("kill", "one")
    name = f"codex-one-{FIRST[-8:]}"
    prompt = event(FIRST, one, "UserPromptSubmit", prompt="go on")
    wait_for(lambda: codex.does(prompt) and beats(world, name), "it is heard")
    tool = codex.tool(FIRST)
    wait_for(lambda: tool in members(world, name), "its command is seen")
    world.cli("reap")
    assert alive(tool)
    assert world.agents()[name]["status"] == "running"


ANOTHER = """
import os, subprocess, sys, time
environ = {{"CODEX_THREAD_ID": {session!r}, "WORLD": os.environ["WORLD"]}}
tool = subprocess.Popen(["sleep", "300"], env=environ, start_new_session=True)
open({told!r}, "w").write(f"{{tool.pid}}\\n")
time.sleep(300)
"""


def test_the_same_session_in_another_server_is_not_touched(world: World, codex: FakeCodex) -> None:
    """From a copied home directory, or of agents that another daemon watches: an id alone proves nothing."""
    _, _, mine, _ = two(codex)
    told = world.dir / "told"
    (world.dir / "another.py").write_text(ANOTHER.format(session=FIRST, told=str(told)))
    python = os.path.realpath(sys.executable)
    server = f"exec -a codex setsid bash -c 'exec -a codex \"{python}\" another.py app-server --listen unix://'"
    world.spawn("bash", "-c", f'cd "{world.dir}"; {server}')
    wait_for(lambda: told.exists() and told.read_text().endswith("\n"), "it is up")
    theirs = int(told.read_text())
    assert theirs not in members(world, "one")
    world.json("kill", "one")
    assert not alive(mine)
    assert alive(theirs)
    assert "outlived" not in world.cli("reap").stdout
    assert alive(theirs)


CLAUDES = """
import os, subprocess
session = subprocess.Popen(["claude", {agent!r}, {hook!r}], executable={python!r}, start_new_session=True)
open("up", "w").write(f"{{os.getpid()}} {{session.pid}}")
session.wait()
"""


def test_a_background_service_of_claude_belongs_to_no_agent_and_its_sessions_are_agents(world: World) -> None:
    """V1b: `claude --bg` exits at once; its service, and the session there, continue and are reported."""
    world.start()
    hook = f"{BIN}/agent-watchdog beat --from claude"
    python, up = os.path.realpath(sys.executable), world.dir / "up"
    (world.dir / "daemon").write_text(CLAUDES.format(agent=str(AGENT), hook=hook, python=python))
    os.mkfifo(world.dir / "orders")
    service = f"(exec -a claude setsid --fork bash -c 'exec -a claude \"{python}\" daemon run <orders >answers')"
    world.run("bg", "bash", "-c", f"{service}; until test -s up; do sleep 0.01; done")
    with (world.dir / "orders").open("w") as orders:
        world.wait_status("bg", "completed")
        server, session = (int(word) for word in up.read_text().split())
        assert alive(server)
        assert alive(session)

        def told() -> dict[str, Any] | None:
            orders.write(json.dumps({**EVENT, "hook_event_name": "UserPromptSubmit"}) + "\n")
            orders.flush()
            return next((one for one in world.agents().values() if one["pid"] == session), None)

        found = wait_for(told, "its session is told of")
        assert (found["source"], found["parent_id"]) == ("hook", None)
        assert server not in members(world, found["name"])
        world.json("kill", found["name"])
        assert not alive(session)
    assert not world.signalled() & {server}


def test_a_session_counts_for_the_agent_whose_client_began_it(world: World, codex: FakeCodex) -> None:
    """V2: under --stall-after it has started; its silence counts from its own last beat, not the other's."""
    world.configure(stall={"after_seconds": 3, "start_limit_seconds": 4})
    world.start()
    one = codex.start("one", "--stall-after", "600s", serves=True)
    begin(codex, FIRST, one, "one")
    codex.does(event(FIRST, one, "UserPromptSubmit", prompt="mend it"))
    found = wait_for(lambda: world.agents()["one"]["state"] == "working" and world.agents()["one"], "it works")
    assert found["type"] == "codex"
    other = codex.start("two", "--stall-after", "2s")
    begin(codex, SECOND, other, "two")
    codex.does(event(SECOND, other, "UserPromptSubmit", prompt="mend it"))
    ended = world.wait_event("kill.requested", name="two")
    assert ended["reason"] == "stalled"
    assert world.agents()["one"]["status"] == "running"


def test_a_session_without_a_watched_client_is_its_own_agent(world: World, codex: FakeCodex) -> None:
    """Its client is not watched: it is reported, can be killed by name, and its end closes its row."""
    world.start()
    codex.start("one", serves=True)
    name = f"codex-elsewhere-{THIRD[-8:]}"
    begin(codex, THIRD, Path("/srv/elsewhere"), name)
    found = world.agents()[name]
    assert (found["status"], found["pid"], found["source"]) == ("running", None, "hook")
    tool = codex.tool(THIRD)
    wait_for(lambda: tool in members(world, name), "its command is seen")
    world.json("kill", name)
    assert not alive(tool)
    assert alive(codex.pid)
    begin(codex, FIRST, Path("/srv/elsewhere"), f"codex-elsewhere-{FIRST[-8:]}")
    codex.does(event(FIRST, Path("/srv/elsewhere"), "SessionEnd", reason="other"))
    world.wait_status(f"codex-elsewhere-{FIRST[-8:]}", "completed")
    assert world.agents()["one"]["status"] == "running"


def test_a_session_that_two_clients_may_have_begun_ends_with_neither(world: World, codex: FakeCodex) -> None:
    """Both count as alive, though they promised beats; a kill reports which agent stands for the session."""
    world.configure(stall={"after_seconds": 3, "start_limit_seconds": 4}, log={"level": "debug"})
    world.start()
    place = codex.start("one", "--stall-after", "2s", place="api", serves=True)
    codex.start("two", "--stall-after", "2s", place="api")
    session = fresh()
    name = f"codex-api-{session[-8:]}"
    begin(codex, session, place, name)
    tool = codex.tool(session)
    for each in ("one", "two"):
        wait_for(lambda: beats(world, each), f"{each} is known to live")  # noqa: B023 - used at once
    world.wait_sweeps(12)  # six seconds: longer than each of its limits
    assert {world.agents()[each]["status"] for each in ("one", "two")} == {"running"}
    done = world.json("kill", "two")
    assert name in done["how"]
    assert alive(tool)
    world.json("kill", name)
    assert not alive(tool)


def test_a_later_client_did_not_begin_an_older_session(world: World, codex: FakeCodex) -> None:
    """One directory, one after the other: the first one's session is older than the second client."""
    world.start()
    place = codex.start("one", place="api", serves=True)
    session = fresh()
    time.sleep(1.2)  # the start of a process is compared with a tolerance of a second
    codex.start("two", place="api")
    begin(codex, session, place, "one")
    assert not beats(world, "two")


def test_a_session_ends_with_its_server(world: World, codex: FakeCodex) -> None:
    """The server was restarted or has crashed: a session without its own client is over, a client is not."""
    _, _, _, _ = two(codex)
    name = f"codex-elsewhere-{THIRD[-8:]}"
    begin(codex, THIRD, Path("/srv/elsewhere"), name)
    os.kill(codex.pid, signal.SIGKILL)
    world.wait_status(name, "completed")
    world.wait_sweeps(2)
    assert {world.agents()[each]["status"] for each in ("one", "two")} == {"running"}


def test_a_restarted_daemon_knows_the_agent_of_a_session(world: World, codex: FakeCodex) -> None:
    """Before its next beat: killing its agent kills its commands all the same."""
    _, _, mine, theirs = two(codex)
    world.stop()
    world.start()
    world.json("kill", "two")
    assert not alive(theirs)
    assert alive(mine)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a process of another uid")
def test_beats_for_another_users_service_do_not_count(world: World, codex: FakeCodex) -> None:
    """Not even root's: its hooks report about root's own agents."""
    world.start()
    place = codex.start("one", serves=True)
    begin(codex, FIRST, place, "one")
    before = beats(world, "one")
    theirs = world.spawn(
        *("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "bash", "-c"),
        f'exec -a codex {os.path.realpath(sys.executable)} -c "import time; time.sleep(300)" app-server --listen unix://',
    )
    wait_for(lambda: b"app-server" in Path(f"/proc/{theirs.pid}/cmdline").read_bytes()[:99], "it is there")
    body = {"session": FIRST, "type": "codex", "cwd": str(place), "pid": theirs.pid, "beat": {"state": "working"}}
    assert world.ask("POST", "/v1/sessions/beat", body)[0] == 403
    assert beats(world, "one") == before


def test_beats_for_a_process_that_is_no_service_do_not_count(world: World, codex: FakeCodex) -> None:
    """Nor below the daemon itself, nor below a process that does not exist."""
    world.start()
    codex.start("one", serves=True)
    body: dict[str, Any] = {"session": FIRST, "type": "codex", "cwd": "/", "beat": {"state": "working"}}
    assert world.ask("POST", "/v1/sessions/beat", {**body, "pid": os.getpid()})[0] == 400
    assert world.ask("POST", "/v1/sessions/beat", {**body, "pid": 4194304})[0] == 404
