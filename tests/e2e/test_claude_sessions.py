"""Claude Code's own list of its sessions: ten running ones are in `list`, reported, and never killed."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fake_vendor import EVENT, FakeVendor
from tests.world import BIN, World, alive, started_at, wait_for
from watchdog.owner.sources.claude import discover


def session(directory: Path, pid: int, **told: Any) -> Path:
    """A session's file, as Claude Code 2.1 writes it; fields given as None are left out."""
    folder = directory / "sessions"
    folder.mkdir(parents=True, exist_ok=True)
    usual = {
        "pid": pid,
        "sessionId": "5e551011",
        "cwd": "/srv/my.api",
        "startedAt": 1,
        "procStart": started_at(pid),
        "version": "2.1.197",
        "kind": "interactive",
        "status": "busy",
        "updatedAt": 2,
    }
    path = folder / f"{pid}.json"
    path.write_text(json.dumps({key: value for key, value in {**usual, **told}.items() if value is not None}))
    return path


def claudes(world: World) -> dict[int, dict[str, Any]]:
    found: list[dict[str, Any]] = world.ask("GET", "/v1/agents")[1]["agents"]
    return {agent["pid"]: agent for agent in found}


def test_ten_running_sessions_are_reported_and_never_killed(world: World) -> None:
    """Neither their silence nor their leftovers lead to a kill; a file that outlived its session has no effect."""
    home = world.dir / ".claude"
    with world.config.open("a") as config:
        config.write(f'[[source]]\nkind = "claude"\npath = "{home}"\n')
    processes = [world.spawn("sleep", "300") for _ in range(11)]
    *sessions, stale = (process.pid for process in processes)
    for pid in sessions:
        session(home, pid)
    session(home, sessions[0], status="waiting", waitingFor="permission prompt")
    session(home, stale, procStart="7")
    transcript = home / "projects" / "-srv-my-api" / "5e551011.jsonl"
    transcript.parent.mkdir(parents=True)
    transcript.touch()
    world.start()
    found = wait_for(lambda: seen if len(seen := claudes(world)) == 10 else None, "all ten")
    assert set(found) == set(sessions)
    first, second = found[sessions[0]], found[sessions[1]]
    assert (second["name"], second["type"], second["source"]) == (f"claude-my.api-{sessions[1]}", "claude", "claude")
    assert (second["state"], second["promised"], second["transcript"]) == ("working", False, str(transcript))
    assert (first["state"], first["note"]) == ("waiting", "permission prompt")

    session(home, sessions[0], status="idle")
    wait_for(lambda: claudes(world)[sessions[0]]["state"] == "idle", "what it says now")
    processes[2].kill()
    processes[2].wait()
    wait_for(lambda: sessions[2] not in claudes(world), "its end is seen")
    assert all(alive(process.pid) for process in processes if process is not processes[2])
    assert not [event for event in world.events() if event["event"] in ("kill.requested", "kill.signal_sent")]


def test_a_session_whose_hooks_beat_is_judged_by_them_alone(world: World) -> None:
    """It stays the one agent that it is."""
    home = world.dir / ".claude"
    with world.config.open("a") as config:
        config.write(f'[[source]]\nkind = "claude"\npath = "{home}"\n')
    world.start()
    with FakeVendor("claude", world.environ, f"{BIN}/agent-watchdog beat --from claude") as agent:
        session(home, agent.pid, status="idle")
        wait_for(lambda: claudes(world).get(agent.pid), "it is told of")
        agent.does(EVENT)
        wait_for(lambda: claudes(world)[agent.pid]["tool"] == "Read", "its hook is heard")
        now = claudes(world)[agent.pid]
        assert (now["source"], now["state"], now["promised"]) == ("claude", "working", True)


def test_its_file_begins_and_ends_a_wait_without_a_hook(world: World) -> None:
    """A person's answer to a subagent's question fires no hook; a file older than the hook's report has no effect."""
    home = world.dir / ".claude"
    world.configure(log={"level": "debug"})
    with world.config.open("a") as config:
        config.write(f'[[source]]\nkind = "claude"\npath = "{home}"\n')
    world.start()
    asked = {**EVENT, "hook_event_name": "Notification", "notification_type": "permission_prompt"}

    def said(agent: FakeVendor, status: str, ahead: float, state: str) -> None:
        session(home, agent.pid, status=status, statusUpdatedAt=round((time.time() + ahead) * 1000))
        wait_for(lambda: claudes(world)[agent.pid]["state"] == state, f"{status} is heard")

    with FakeVendor("claude", world.environ, f"{BIN}/agent-watchdog beat --from claude") as agent:
        session(home, agent.pid, status="busy", statusUpdatedAt=round((time.time() - 60) * 1000))
        wait_for(lambda: agent.does(EVENT) and claudes(world).get(agent.pid, {}).get("promised"), "its hook is heard")
        wait_for(lambda: agent.does(asked) and claudes(world)[agent.pid]["state"] == "waiting", "it asks")
        world.wait_sweeps(3)
        assert claudes(world)[agent.pid]["state"] == "waiting"
        said(agent, "busy", 1, "working")
        said(agent, "waiting", 60, "waiting")
        assert claudes(world)[agent.pid]["promised"] is True


def test_a_file_is_read_by_what_it_has(tmp_path: Path) -> None:
    """A file of an unknown form; without proof its process must at least be Claude Code's."""
    with FakeVendor("claude", dict(os.environ), "true") as agent, subprocess.Popen(["sleep", "300"]) as other:
        try:
            ticks = int(started_at(agent.pid) or 0)
            session(tmp_path, agent.pid, procStart=int(ticks))
            (one,) = discover(str(tmp_path))
            assert (one.pid, one.uid, one.ticks, one.transcript) == (agent.pid, os.getuid(), ticks, None)
            for text in ("{}", '{"cwd": 7, "status": [], "sessionId": "../../x", "procStart": "Mon Nov"}'):
                (tmp_path / "sessions" / f"{agent.pid}.json").write_text(text)
                (one,) = discover(str(tmp_path))
                assert (one.ticks, one.cwd, one.state) == (ticks, None, None)
            session(tmp_path, other.pid, procStart=None)
            session(tmp_path, 2**22 + 1)
            for text in ('{"pid": 1}', '{"kind": "daemon"}'):
                (tmp_path / "sessions" / f"{agent.pid}.json").write_text(text)
                assert discover(str(tmp_path)) == []
            for text in ("", "[]", '"x"', "{", "[" * 60000):  # its session is not gone
                (tmp_path / "sessions" / f"{agent.pid}.json").write_text(text)
                (one,) = discover(str(tmp_path))
                assert (one.key, one.pid, bool(one.unread)) == (f"{agent.pid}.json", None, True)
            (tmp_path / "sessions" / f"{agent.pid}.json").unlink()
            os.mkfifo(tmp_path / "sessions" / f"{agent.pid}.json")
            (tmp_path / "sessions" / f"{other.pid}.json").unlink()
            (tmp_path / "sessions" / f"{other.pid}.json").symlink_to(tmp_path / "elsewhere")
            (one,) = discover(str(tmp_path))
            assert one.unread and one.pid is None
        finally:
            other.kill()
    assert discover(str(tmp_path / "nowhere")) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another uid")
def test_another_uids_file_has_no_effect(world: World) -> None:
    """Its uid must be its process's: anyone who can write into the directory could name any pid."""
    home = world.dir / ".claude"
    with world.config.open("a") as config:
        config.write(f'[[source]]\nkind = "claude"\npath = "{home}"\n')
    mine, forged = world.spawn("sleep", "300"), world.spawn("sleep", "300")
    session(home, mine.pid)
    os.chown(session(home, forged.pid), 65534, -1)
    world.start()
    wait_for(lambda: claudes(world), "its own")
    assert set(claudes(world)) == {mine.pid}
