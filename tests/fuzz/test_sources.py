"""Each reader of a foreign registry, on files and databases that nearly are what it expects.

Entries, or a refusal that the helper's protocol knows (OSError, OwnerCallFailed, PathRefused); within seconds, and as
JSON that the daemon can read.
"""

import contextlib
import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.fuzz.documents import fuzz, objects, texts
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner.sources import source_discover

pytestmark = pytest.mark.fuzz

SECONDS = 60.0  # a reader that takes longer hangs; the product ends one after 3 s
KEYS = (
    *("name", "pid", "sessionId", "cwd", "startedAt", "status", "state", "agent_id", "session", "socket", "tmux", "id"),
    *("members", "agents", "connected", "project", "task_id", "command", "heartbeat", "last_heartbeat", "started_at"),
    *("pane", "window", "tool", "created_at", "process_id", "log", "exit_code", "directory", "updated_at", "health"),
)
WORDS = ("running", "active", "1", "claude", "/tmp", "2026-01-01T00:00:00Z", "completed", "%1", "tmux")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "place"
    made.mkdir()
    yield made


def yaml() -> st.SearchStrategy[bytes]:
    """JSON is YAML; beside it anchors, tags, blocks and bombs."""
    bomb = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [" % (98 + n, 98 + n) + b",".join([b"*%c" % (97 + n)] * 9) + b"]\n" for n in range(9)
    )
    odd = (
        bomb,
        b"!!python/object/apply:os.system ['id']",
        b"sessions:\n- *x",
        b"? {a: b}\n",
        b"%YAML 9.9\n---\n",
        b"\t",
    )
    row = objects(KEYS, WORDS).map(lambda one: json.dumps({"sessions": [one]}).encode())
    return st.one_of(row, texts(objects(("sessions", *KEYS), WORDS)), st.sampled_from(odd))


def database(path: Path, data: bytes) -> None:
    """Tables of the names that are known, with columns and values out of the document; or the bytes as they are."""
    path.unlink(missing_ok=True)
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, dict):
        path.write_bytes(data)
        return
    with (
        contextlib.closing(sqlite3.connect(path)) as made,
        contextlib.suppress(sqlite3.Error, OverflowError, UnicodeError),
    ):
        for table in ("instances", "agents", "agent_lifecycle", "orchestrator_task", "sessions"):
            names = list(dict.fromkeys(["name", "created_at", *map(str, rows)]))
            columns = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
            made.execute(f"CREATE TABLE {table} ({columns})")
            values = [rows.get(name) for name in names]
            plain = [
                one if one is None or isinstance(one, str | int | float | bytes) else json.dumps(one) for one in values
            ]
            made.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(names))})", plain)
        made.commit()


def _json(place: Path, *names: str) -> Callable[[bytes], None]:
    def put(data: bytes) -> None:
        for name in names:
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    return put


LAYOUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "claude": (("sessions/1.json", "sessions/x.json"), ()),
    "agent_relay": (
        ("connections.json", "state.json", "agents.json", "x/agents.json", "x/state.json"),
        ("messages.sqlite",),
    ),
    "agent_sessions": (("agent_sessions.yaml", "agent-sessions.yaml", "jobs/1/status.json"), ()),
    "fleet_tasks": (("1/status.json", "t1/task.json", "t1/task.pid", "task-1/status.json", "members.json"), ()),
    "hcom": (("pids.json", "launched.json", ".tmp/launched_pids.json"), ("hcom.db",)),
    "orchestrator_db": (("status/a.json",), ("o.db",)),
}
WHERE = {"agent_sessions": "agent_sessions.yaml", "orchestrator_db": "o.db"}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_registry_is_read_or_refused(kind: str, place: Path) -> None:
    files, databases = LAYOUTS[kind]

    def check(data: bytes) -> None:
        shutil.rmtree(place)
        place.mkdir()
        for name in files:
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        for name in databases:
            database(place / name, data)
        begun = time.monotonic()
        try:
            found = source_discover(kind, str(place / WHERE.get(kind, "")).rstrip("/"))
        except (OSError, OwnerCallFailed, PathRefused):
            found = []
        json.dumps(found)
        assert time.monotonic() - begun < SECONDS

    documents = yaml() if kind == "agent_sessions" else texts(objects(KEYS, WORDS))
    fuzz(f"source_{kind}", documents, check, share=1 / 4)
