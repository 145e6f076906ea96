"""The conversation of a stopped agent: captured first, reported with the result, and purged only on request."""

import sys
import uuid
from pathlib import Path

import pytest

from tests.e2e.test_claude_sessions import session
from tests.world import World, wait_for

ID = str(uuid.uuid4())  # unique per test process: a running process with the id prevents the purge
# As Claude Code does: at its exit it removes its own entry from the list.
AGENT = """
import os, signal, sys
import uuid
def end(*_):
    os.unlink(os.path.join(os.environ["CLAUDE_CONFIG_DIR"], "sessions", f"{os.getpid()}.json"))
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open("ready", "w").close()
while True: signal.pause()
"""


def claude(world: World, name: str) -> tuple[int, Path]:
    """An agent that looks like Claude Code, and its transcript."""
    home = world.dir / ".claude"
    (world.dir / "ready").unlink(missing_ok=True)
    process = world.registered(
        name, sys.executable, "-c", AGENT, environ={"CLAUDE_CONFIG_DIR": str(home)}, type="claude", task="T-1"
    )
    wait_for((world.dir / "ready").exists, "it is up")
    session(home, process.pid, sessionId=ID, cwd=str(world.dir))
    transcript = home / "projects" / "-srv-app" / f"{ID}.jsonl"
    transcript.parent.mkdir(parents=True, exist_ok=True)
    transcript.write_text("{}\n")
    return process.pid, transcript


@pytest.mark.faults
def test_a_stopped_conversation_can_be_resumed_until_it_is_purged(world: World) -> None:
    """The list is gone with the agent: the captured conversation is reported, also the second time; so is a purge."""
    world.start()
    _, transcript = claude(world, "alpha")
    resume = f"cd {world.dir} && claude --resume {ID}"
    refused = world.cli("purge", "alpha", "--yes", check=False)
    assert (refused.returncode, "stop it first" in refused.stderr) == (1, True)

    stopped = world.json("stop", "alpha", "--reason", "lunch")
    assert (stopped["status"], stopped["resumable"], stopped["resume"]) == ("stopped", True, resume)
    assert (stopped["stop_reason"], stopped["conversation"]["id"]) == ("lunch", ID)
    assert transcript.exists() and not list((world.dir / ".claude/sessions").iterdir())
    assert world.json("stop", "alpha")["stop_reason"] == "lunch"
    again = world.cli("stop", "alpha")
    assert "already stopped since" in again.stdout and "lunch" in again.stdout
    assert f"to resume: {resume}" in again.stdout

    wait_for(  # the Claude Code of a concurrent test, which does not report its session
        lambda: "does not say which session" not in world.cli("purge", "alpha", check=False).stderr, "no other runs", 60
    )
    shown = world.cli("purge", "alpha", check=False)
    assert (shown.returncode, str(transcript) in shown.stdout, transcript.exists()) == (1, True, True)
    purged = world.json("purge", "alpha", "--yes")
    assert (purged["action"], purged["paths"], purged["resumable"]) == ("purged", [str(transcript)], False)
    assert not transcript.exists()
    assert next(iter(Path(purged["trash"]).glob("*.jsonl"))).read_text() == "{}\n"
    assert world.wait_event("agent.purged", name="alpha")["by"].startswith("uid ")
    after = world.json("stop", "alpha")
    assert (after["success"], after["resumable"], after["resume"]) == (True, False, None)
    assert world.cli("purge", "alpha", "--yes").stdout.startswith("nothing is left of conversation")


@pytest.mark.faults
def test_a_daemon_killed_in_the_middle_of_a_stop_still_reports_the_conversation(world: World) -> None:
    """It was committed with the first step: when the next daemon comes, the list is gone."""
    world.configure(kill={"grace_seconds": 30, "stop_pause_seconds": 30})
    world.start()
    pid, _ = claude(world, "alpha")
    world.ask("POST", "/v1/agents/alpha/beat", {"state": "working"})  # it reads answers, so it is given time
    world.ask("POST", "/v1/stop", {"targets": ["alpha"], "wait": False})
    world.wait_event("stop.asked", name="alpha")
    world.crash()
    (world.dir / f".claude/sessions/{pid}.json").unlink()
    world.start()
    world.ask("POST", "/v1/kill", {"targets": ["alpha"], "force": True})
    world.wait_status("alpha", "stopped")
    assert world.json("stop", "alpha")["resume"].endswith(f"claude --resume {ID}")
