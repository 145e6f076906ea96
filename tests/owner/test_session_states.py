"""What Claude Code's own session file says of a process now, as its owner's helper reads it."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_claude_sessions import session
from tests.world import wait_for
from watchdog.core.agent import State
from watchdog.owner.conversations import start_of
from watchdog.owner.session_states import session_state, turn_state


@pytest.fixture
def sleepers(tmp_path: Path) -> Iterator[list[list[int]]]:
    """Three processes that have Claude Code's directory here: pid and start ticks."""
    where = {**os.environ, "CLAUDE_CONFIG_DIR": str(tmp_path)}
    processes = [subprocess.Popen(["sleep", "300"], env=where) for _ in range(3)]
    for one in processes:  # `Popen` is back before the environment is there
        wait_for(Path(f"/proc/{one.pid}/environ").read_bytes, "its environment is there")
    yield [[one.pid, start_of(one.pid)] for one in processes]
    for one in processes:
        one.kill()
        one.wait(60)


def test_it_tells_the_state_and_since_when(tmp_path: Path, sleepers: list[list[int]]) -> None:
    """In the daemon's words, and in seconds."""
    session(tmp_path, sleepers[0][0], status="idle", statusUpdatedAt=1795973104413)
    assert session_state(sleepers) == {"state": State.IDLE, "since": 1795973104.413}


def test_the_main_process_comes_first_else_the_only_one(tmp_path: Path, sleepers: list[list[int]]) -> None:
    """`run` of a script that starts it: the file is its child's; of two nothing tells which one speaks."""
    main, child, other = sleepers
    assert session_state(sleepers) is None
    session(tmp_path, child[0], status="idle")
    found = session_state(sleepers)
    assert found is not None
    assert found["state"] == State.IDLE
    session(tmp_path, other[0], status="idle")
    assert session_state(sleepers) is None
    session(tmp_path, main[0], status="busy")
    found = session_state(sleepers)
    assert found is not None
    assert found["state"] == State.WORKING


def test_another_process_of_that_number_is_not_meant(tmp_path: Path, sleepers: list[list[int]]) -> None:
    """The file names the start of its process; so does the question. A broken file says nothing."""
    (pid, ticks), *_ = sleepers
    file = session(tmp_path, pid, status="idle")
    assert session_state([[pid, ticks + 1]]) is None
    session(tmp_path, pid, status="idle", procStart="1")
    assert session_state([[pid, ticks]]) is None
    file.write_text("{")
    assert session_state([[pid, ticks]]) is None
    assert session_state([]) is None


def test_the_end_of_a_turn_stands_before_all_of_a_session_once_more(tmp_path: Path) -> None:
    """As Gemini CLI writes it after Esc at a dialog; a file that is none of a session says nothing."""
    file = tmp_path / "session.jsonl"
    esc = {"timestamp": "2026-11-29T23:43:36.930Z", "type": "info", "content": "Request cancelled."}
    whole = {"$set": {"messages": [{"type": "user", "content": [{"text": "please " * 100_000}]}]}}
    file.write_text("".join(f"{json.dumps(line)}\n" for line in (esc, whole)))
    assert turn_state("gemini", str(file)) == {"state": "idle", "since": 1795995816.93}
    assert turn_state("codex", str(file)) is None
    assert turn_state("gemini", str(tmp_path)) is None
