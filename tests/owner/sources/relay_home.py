"""A directory as agent-relay 1.6 keeps it: lists as it prints them, its database, processes as it starts them."""

import json
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

PROJECT = "9db20446ead4"
LAYOUT = """
CREATE TABLE messages (id TEXT PRIMARY KEY, ts INTEGER NOT NULL, sender TEXT NOT NULL, recipient TEXT NOT NULL,
    kind TEXT NOT NULL, body TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'unread');
CREATE TABLE sessions (id TEXT PRIMARY KEY, agent_name TEXT NOT NULL, cli TEXT, project_id TEXT, project_root TEXT,
    started_at INTEGER NOT NULL, ended_at INTEGER, message_count INTEGER DEFAULT 0, summary TEXT, resume_token TEXT,
    closed_by TEXT);
CREATE TABLE presence (agent_name TEXT PRIMARY KEY, status TEXT NOT NULL DEFAULT 'offline', status_text TEXT,
    last_activity INTEGER NOT NULL, typing_in TEXT);
CREATE TABLE agent_summaries (agent_name TEXT PRIMARY KEY, project_id TEXT, last_updated INTEGER NOT NULL);
CREATE TABLE read_state (agent_name TEXT NOT NULL, channel TEXT NOT NULL, last_read_ts INTEGER NOT NULL,
    PRIMARY KEY (agent_name, channel));
"""


def printed(data: object) -> str:
    """As `JSON.stringify(data, null, 2)` does."""
    return json.dumps(data, indent=2, ensure_ascii=False)


class RelayHome:
    """`~/.agent-relay` with one project."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "relay"
        self.data = self.root / PROJECT
        self.team = self.data / "team"
        (self.team / "worker-logs").mkdir(parents=True)
        project = {"projectRoot": "/srv/w", "projectId": PROJECT, "createdAt": "2030-01-02T03:04:05.000Z"}
        (self.data / ".project").write_text(printed(project))
        self.database = sqlite3.connect(self.data / "messages.sqlite", isolation_level=None)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.executescript(LAYOUT)

    def connected(self, *names: str) -> Path:
        """Those who have a connection."""
        path = self.team / "connected-agents.json"
        path.write_text(printed({"agents": list(names), "users": ["me"], "updatedAt": 1_900_000_000_000}))
        return path

    def registered(self, *names: str) -> Path:
        """Those who ever had one."""
        path = self.team / "agents.json"
        agents = [
            {"id": f"agent-{name}", "name": name, "cli": "claude", "workingDirectory": "/srv/w", "messagesSent": 0}
            for name in names
        ]
        path.write_text(printed({"agents": agents}))
        return path

    def workers(self, *workers: dict[str, Any]) -> Path:
        """Those whom it spawned itself."""
        path = self.team / "workers.json"
        path.write_text(printed({"workers": [{"cli": "claude", "task": "x", **one} for one in workers]}))
        return path

    def session(self, name: str, number: int = 1) -> None:
        """One connection of that name, which is open."""
        self.database.execute(
            "INSERT INTO sessions (id, agent_name, started_at) VALUES (?, ?, ?)", (f"s-{name}-{number}", name, number)
        )

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """All of a table."""
        return self.database.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()

    def wrapper(self, name: str, harness: str = "sleep 60", *words: str) -> subprocess.Popen[bytes]:
        """`relay-pty`, with the words that it is given, around something that runs."""
        log = str(self.team / "worker-logs" / f"{name}.log")
        told = ["--name", name, "--log-file", log, *words, "--", "claude"]
        return subprocess.Popen(["relay-pty", "-c", f"{harness} & wait; sleep 60", *told], executable="/bin/bash")
