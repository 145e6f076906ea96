"""Esc in Claude Code, a failed turn in Codex: no hook reports it, but the program's own session file does.

The next hook's report counts again.
"""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_claude_sessions import session
from tests.fake_vendor import EVENT, FakeVendor
from tests.world import BIN, World, wait_for

HOOK = f"{BIN}/agent-watchdog beat --from claude"


def now() -> int:
    return int(time.time() * 1000)


def state(world: World, agent: FakeVendor) -> dict[str, Any]:
    found: list[dict[str, Any]] = [one for one in world.agents().values() if one["pid"] == agent.pid]
    return found[0] if found else {}


def event(name: str, **fields: Any) -> dict[str, Any]:
    return {**EVENT, "hook_event_name": name, **fields}


@pytest.mark.parametrize("listed", [False, True], ids=["hooks", "source"])
def test_esc_ends_its_activity(world: World, listed: bool) -> None:
    """V3: with and without that list as a [[source]]: at its prompt it is idle, for ever; a prompt wakes it again."""
    home = world.dir / ".claude"
    with world.config.open("a") as config:
        config.write('[[policy]]\nmatch = { type = "claude" }\nladder = ["kill"]\nafter_seconds = 3\n')
        if listed:
            config.write(f'[[source]]\nkind = "claude"\npath = "{home}"\n')
    world.start()
    with FakeVendor("claude", world.environ, HOOK) as agent:
        session(home, agent.pid, status="busy", statusUpdatedAt=now())
        wait_for(lambda: agent.does(event("UserPromptSubmit")) and state(world, agent).get("beats"), "it is heard")
        session(home, agent.pid, status="idle", statusUpdatedAt=now())
        wait_for(lambda: state(world, agent)["state"] == "idle", "its file was read")
        session(home, agent.pid, status="busy", statusUpdatedAt=now())
        agent.does(event("UserPromptSubmit"))
        wait_for(lambda: state(world, agent)["state"] == "working", "a hook's word counts again")
        session(home, agent.pid, status="waiting", statusUpdatedAt=now(), waitingFor="permission prompt")
        wait_for(lambda: state(world, agent)["state"] == "waiting", "a dialog that no hook told of")
        heard = state(world, agent)["beats"]
        agent.does(event("PermissionRequest", tool_name="Bash", tool_input={"command": "make"}))
        wait_for(lambda: state(world, agent)["beats"] > heard, "the dialog is told of")
        session(home, agent.pid, status="idle", statusUpdatedAt=now())
        wait_for(lambda: state(world, agent)["state"] == "idle", "Esc at a permission dialog")
        assert state(world, agent)["verdict"] == "waiting"
        assert not world.count("kill.requested")


def test_an_outdated_file_hides_no_stall(world: World) -> None:
    """It has said `idle` since before the prompt: an agent that then falls silent is stalled."""
    home = world.dir / ".claude"
    with world.config.open("a") as config:
        config.write('[[policy]]\nmatch = { type = "claude" }\nladder = ["warn"]\nafter_seconds = 3\n')
    world.start()
    with FakeVendor("claude", world.environ, HOOK) as agent:
        session(home, agent.pid, status="idle", statusUpdatedAt=now() - 60_000)
        wait_for(lambda: agent.does(event("UserPromptSubmit")) and state(world, agent).get("beats"), "it is heard")
        wait_for(lambda: state(world, agent)["verdict"] == "stalled", "it is stalled")


def rollout(path: Path, *kinds: str) -> None:
    """As Codex writes its file of a session."""
    at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    with path.open("a") as file:
        for kind in kinds:
            file.write(json.dumps({"timestamp": at, "type": "event_msg", "payload": {"type": kind}}) + "\n")


def test_a_turn_of_codex_that_fails_is_over(world: World) -> None:
    """No hook follows: it waits at its prompt, for ever, and a prompt wakes it; one that hangs in a turn is stalled."""
    path = world.dir / "rollout-1.jsonl"
    with world.config.open("a") as config:
        config.write('[[policy]]\nmatch = { type = "codex" }\nladder = ["warn"]\nafter_seconds = 3\n')
    world.start()
    said = event("UserPromptSubmit", transcript_path=str(path))
    with FakeVendor("codex", world.environ, f"{BIN}/agent-watchdog beat --from codex") as agent:
        rollout(path, "task_started")
        wait_for(lambda: agent.does(said) and state(world, agent).get("beats"), "it is heard")
        rollout(path, "task_complete")
        wait_for(lambda: state(world, agent)["state"] == "idle", "its file was read")
        wait_for(lambda: state(world, agent)["verdict"] == "waiting", "it waits for its next prompt")
        rollout(path, "task_started")
        agent.does(said)
        wait_for(lambda: state(world, agent)["state"] == "working", "a hook's word counts again")
        wait_for(lambda: state(world, agent)["verdict"] == "stalled", "it is stalled")
