"""Vendor hooks with a real daemon: a fake agent of a vendor in a real process tree calls them as documented."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.fake_vendor import AGENT, EVENT, FakeVendor
from tests.world import BIN, World, alive, wait_for

HOOK = f"{BIN}/agent-watchdog beat --from claude"


def agents(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.ask("GET", "/v1/agents?all")[1]["agents"]
    return found


def start_of(event: str, **fields: Any) -> dict[str, Any]:
    return {**EVENT, "hook_event_name": event, **fields}


def heard(world: World, agent: FakeVendor, event: dict[str, Any]) -> None:
    """Send the event until the daemon knows the agent.

    A hook waits only a moment for the daemon, so that it never delays its agent. On a busy machine the first event can
    pass before the agent is registered; a vendor's next one registers it.
    """
    wait_for(lambda: agent.does(event) and agents(world) and agents(world)[0]["beats"], "its first event is heard")


def test_a_session_without_run_is_reported_and_not_killed(world: World) -> None:
    """From its first event to its end; processes that it leaves running stay: no user gave it into our care."""
    world.start()
    with FakeVendor("claude", world.environ, HOOK) as agent:
        left = heard_out(world, agent)
    ended = wait_for(lambda: [a for a in agents(world) if a["status"] not in ("running", "ending")], "ended")[0]
    assert ended["status"] == "completed"
    assert alive(left)
    assert not [event for event in world.events() if event["event"] == "kill.signal_sent"]
    os.kill(left, signal.SIGKILL)  # ours, and it lives


def heard_out(world: World, agent: FakeVendor) -> int:
    """Send a session's events, each seen before the next; the pid of the process that it leaves running."""
    left = agent.does({"spawn": ["sleep", "300"]})["pid"]
    heard(world, agent, start_of("SessionStart", source="startup", transcript_path="/nowhere/t.jsonl"))
    found = agents(world)[0]
    keys = ("name", "pid", "type", "source", "state", "transcript")
    values = [f"claude-api-{agent.pid}", agent.pid, "claude", "hook", "idle", "/nowhere/t.jsonl"]
    assert [found[key] for key in keys] == values
    agent.does(start_of("UserPromptSubmit"))
    agent.does({**EVENT, "tool_name": "Bash", "tool_input": {"timeout": 5000}})
    wait_for(lambda: [agents(world)[0][key] for key in ("state", "tool")] == ["working", "Bash"], "its tool is seen")
    wait_for(lambda: left in members(world, agent.pid), "its child is seen")
    return int(left)


def members(world: World, pid: int) -> list[int]:
    """The processes of that agent's tree."""
    return [each["pid"] for each in world.ask("GET", f"/v1/agents/{pid}")[1]["agent"]["members"]]


def test_run_and_hooks_are_one_agent(world: World) -> None:
    """`run` of the program, or of a script that starts it: its hooks report about that agent, and register no other.

    The session's end ends its work, unless a script continues. Nothing declared them as Claude Code, whose limits they
    have from then on.
    """
    world.start()
    orders = world.dir / "orders"
    events = [start_of("SessionStart"), EVENT, start_of("SessionEnd", reason="other")]
    orders.write_text("".join(json.dumps(event) + "\n" for event in events))
    program = f'exec -a claude "{sys.executable}" "{AGENT}" "{HOOK}" <"{orders}"'
    runs = [world.run("straight", "bash", "-c", program), world.run("wrapped", "bash", "-c", f"({program}); :")]
    for run in runs:
        assert run.wait(60) == 0
    found = {agent["name"]: agent for agent in agents(world)}
    assert {name: (a["source"], a["type"], a["beats"], a["state"]) for name, a in found.items()} == {
        "straight": ("run", "claude", 3, "done"),
        "wrapped": ("run", "claude", 3, "working"),
    }


SCRIPT = """#!/bin/bash
for event in SessionStart UserPromptSubmit; do
  printf '{{"hook_event_name": "%s", "session_id": "s", "cwd": "/srv/api"}}' $event | {hook}
done
"""


def test_a_script_under_a_vendors_name_is_known_by_its_marker(world: World) -> None:
    """No process above its hooks is Claude Code's; their caller is still the main process of the run."""
    world.start()
    script = world.dir / "claude"
    script.write_text(SCRIPT.format(hook=HOOK))
    script.chmod(0o755)
    assert world.run("script", str(script)).wait(60) == 0
    (agent,) = agents(world)
    assert (agent["name"], agent["type"], agent["beats"], agent["state"]) == ("script", "claude", 2, "working")


def test_a_hook_that_counts_for_no_agent_is_in_the_why_of_the_surrounding_agent(world: World) -> None:
    """An unknown program, started by an orchestrator, whose state it does not report; reported once."""
    world.start()
    orders = world.dir / "orders"
    orders.write_text(f"{json.dumps(EVENT)}\n" * 2)
    program = f'exec -a other "{sys.executable}" "{AGENT}" "{HOOK}" <"{orders}"'
    assert world.run("outer", "bash", "-c", f"({program}); :").wait(60) == 0
    (agent,) = agents(world)
    assert (agent["name"], agent["beats"]) == ("outer", 0)
    rejected = [event["why"] for event in world.story("outer")["events"] if event["event"] == "beat.rejected"]
    assert rejected == ["a hook of claude ran in it, but no ancestor of this process is claude: its report is ignored"]


def test_a_session_within_a_session_is_its_child(world: World) -> None:
    """Neither has a marker: both started without `run`. The outer one is silent while it waits for the inner one."""
    world.start()
    orders = world.dir / "orders"
    orders.write_text(json.dumps({"loop": [0.2, "PreToolUse", "PostToolUse"]}) + "\n")
    inner = HOOK.replace("claude", "codex")
    program = f'exec -a codex "{sys.executable}" "{AGENT}" "{inner}" <"{orders}"'
    with FakeVendor("claude", world.environ, HOOK) as agent:
        heard(world, agent, EVENT)
        agent.does({"spawn": ["bash", "-c", f"{program}; :"]})
        found = wait_for(lambda: {a["type"]: a for a in agents(world)} if len(agents(world)) == 2 else None, "both")
        assert found["codex"]["parent_id"] == found["claude"]["agent_id"]
        os.kill(found["codex"]["pid"], signal.SIGKILL)


def test_the_end_of_one_of_many_sessions_is_not_the_end_of_their_process(world: World) -> None:
    """An app server: while another session is in a long tool nothing is done; after the last one it is over."""
    world.start()
    with FakeVendor("codex", world.environ, HOOK.replace("claude", "codex")) as agent:
        heard(world, agent, start_of("SessionStart", session_id="a"))
        before = agents(world)[0]["beats"]
        agent.does({**EVENT, "session_id": "b"})
        agent.does(start_of("SessionEnd", session_id="a", reason="other"))
        wait_for(lambda: agents(world)[0]["beats"] == before + 2, "all are heard")
        assert [agents(world)[0][key] for key in ("state", "tool")] == ["working", "Read"]
        agent.does(start_of("SessionEnd", session_id="b", reason="other"))
        wait_for(lambda: agents(world)[0]["state"] == "done", "its last session has ended")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a pid namespace")
def test_a_pid_of_another_pid_namespace_means_no_agent_here(world: World) -> None:
    """A container with our socket: its pids are small, and another agent may have that pid here."""
    world.start()
    agent = world.registered("alpha", *world.script("agent.py", "beat=0.3"))
    world.wait_event("agent.first_beat", name="alpha")
    ask = "from watchdog.client.client import request; print(request('POST', *{!r}, socket_path={!r})[0])"
    for call in (
        (f"/v1/agents/{agent.pid}/beat", {"state": "done"}),
        ("/v1/kill", {"targets": [str(agent.pid)]}),
        ("/v1/hold", {"targets": [str(agent.pid)]}),
    ):
        inside = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", ask.format(call, world.socket)]
        done = subprocess.run(inside, env=world.environ, capture_output=True, text=True, timeout=30, check=True)
        assert done.stdout == "404\n", call
    assert world.agents()["alpha"]["state"] == "working"
    assert agent.poll() is None


def test_a_cancelled_loop_ends_after_its_present_tool(world: World) -> None:
    """`cancel` becomes the vendor's own "stop now" at the next hook: no tool is started after it, no signal is sent."""
    world.start()
    orders = world.dir / "orders"
    orders.write_text(json.dumps({"loop": [0.2, "PreToolUse", "PostToolUse"]}) + "\n")
    program = f'exec -a claude "{sys.executable}" "{AGENT}" "{HOOK}" <"{orders}"'
    run = world.run("loop", "bash", "-c", program, options=("--task", "T-1"))
    wait_for(lambda: [a for a in agents(world) if a["beats"] > 2], "it works")
    assert world.cli("cancel", "T-1").returncode == 0
    assert run.wait(60) == 0
    said = (world.dir / "loop.out").read_text().splitlines()  # with the output of `run` on stderr
    answer = [json.loads(line) for line in said if line.startswith("{")][-1]
    assert answer["tools"] > 0
    assert json.loads(answer["stdout"])["continue"] is False
    assert not [event for event in world.events() if event["event"] == "kill.signal_sent"]
    assert world.sql("select status from orchestrator_task") == [("cancelled",)]
