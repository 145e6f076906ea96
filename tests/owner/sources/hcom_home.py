"""A directory as hcom keeps it: the layout of its database (schemas 18 and 20), its pid file, a launch script."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

PROCESS = "00000000-0000-4000-8000-000000000001"
BORN = 1_900_000_000.0

LAYOUT = """
CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp TEXT NOT NULL, type TEXT NOT NULL,
    instance TEXT NOT NULL, data TEXT NOT NULL);
CREATE TABLE notify_endpoints (instance TEXT NOT NULL, kind TEXT NOT NULL, port INTEGER NOT NULL,
    updated_at REAL NOT NULL, PRIMARY KEY (instance, kind));
CREATE TABLE process_bindings (process_id TEXT PRIMARY KEY, session_id TEXT, instance_name TEXT,
    updated_at REAL NOT NULL);
CREATE TABLE session_bindings (session_id TEXT PRIMARY KEY, instance_name TEXT NOT NULL, created_at REAL NOT NULL,
    FOREIGN KEY (instance_name) REFERENCES instances(name) ON DELETE CASCADE);
CREATE TABLE instances (name TEXT PRIMARY KEY, session_id TEXT UNIQUE, parent_session_id TEXT, parent_name TEXT,
    tag TEXT, last_event_id INTEGER DEFAULT 0, status TEXT DEFAULT 'active', status_time INTEGER DEFAULT 0,
    last_seen INTEGER DEFAULT 0, status_context TEXT DEFAULT '', status_detail TEXT DEFAULT '',
    last_stop INTEGER DEFAULT 0, directory TEXT, created_at REAL NOT NULL, transcript_path TEXT DEFAULT '',
    tcp_mode INTEGER DEFAULT 0, wait_timeout INTEGER, background INTEGER DEFAULT 0,
    background_log_file TEXT DEFAULT '', name_announced INTEGER DEFAULT 0, agent_id TEXT UNIQUE,
    running_tasks TEXT DEFAULT '', origin_device_id TEXT DEFAULT '', hints TEXT DEFAULT '', subagent_timeout INTEGER,
    tool TEXT DEFAULT 'claude', launch_args TEXT DEFAULT '', terminal_preset_requested TEXT DEFAULT '',
    terminal_preset_effective TEXT DEFAULT '', idle_since TEXT DEFAULT '', pid INTEGER DEFAULT NULL,
    launch_context TEXT DEFAULT '',
    FOREIGN KEY (parent_session_id) REFERENCES instances(session_id) ON DELETE SET NULL);
CREATE TABLE kv (key TEXT PRIMARY KEY, value TEXT);
CREATE VIRTUAL TABLE events_fts USING fts5(searchable, tokenize='unicode61');
CREATE TRIGGER events_fts_insert AFTER INSERT ON events BEGIN
    INSERT INTO events_fts(rowid, searchable) VALUES (new.id, COALESCE(json_extract(new.data, '$.text'), '') || ' '
        || COALESCE(new.instance, '') || ' ' || COALESCE(json_extract(new.data, '$.action'), '') || ' '
        || COALESCE(json_extract(new.data, '$.reason'), ''));
END;
"""
SINCE_20 = """
CREATE TABLE claude_actor_capabilities (token TEXT PRIMARY KEY, session_id TEXT NOT NULL, tool_use_id TEXT NOT NULL,
    agent_id TEXT NOT NULL DEFAULT '', instance_name TEXT NOT NULL, created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, last_seen INTEGER NOT NULL);
"""


class HcomHome:
    """One of them, below a directory of the test."""

    def __init__(self, directory: Path, version: int = 20) -> None:
        self.root = directory / "hcom"
        for below in (".tmp/launch", ".tmp/logs"):
            (self.root / below).mkdir(parents=True, exist_ok=True)
        self.path = self.root / "hcom.db"
        self.pid_file = self.root / ".tmp/launched_pids.json"
        self.database = sqlite3.connect(self.path, isolation_level=None)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.executescript(LAYOUT + (SINCE_20 if version >= 20 else ""))
        self.database.execute(f"PRAGMA user_version = {version}")

    def add(self, name: str, process: str = "", **row: Any) -> None:
        """One agent; `process` is the id that hcom gave it."""
        row = {"created_at": BORN, "directory": "/srv/w", "launch_args": "[]", "wait_timeout": 86400, **row}
        if process:
            row.setdefault("launch_context", json.dumps({"process_id": process}))
            self.database.execute("INSERT INTO process_bindings VALUES (?, '', ?, ?)", (process, name, BORN))
        names = ", ".join(["name", *row])
        marks = ", ".join("?" * (len(row) + 1))
        self.database.execute(f"INSERT INTO instances ({names}) VALUES ({marks})", (name, *row.values()))

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """All of a table."""
        return self.database.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()

    def told(self) -> list[tuple[str, dict[str, Any]]]:
        """Who ended, and how, in order."""
        rows = self.database.execute("SELECT instance, data FROM events WHERE type = 'life' ORDER BY id")
        return [(name, json.loads(data)) for name, data in rows]

    def launched(self, **pids: dict[str, Any]) -> None:
        """The pid file, as hcom writes it: one line, keys in its own order."""
        text = {pid.removeprefix("p"): {"tool": "claude", **one} for pid, one in pids.items()}
        self.pid_file.write_text(json.dumps(text, separators=(",", ":")))
        self.pid_file.chmod(0o600)

    def script(self, name: str, process: str) -> Path:
        """A launch script of that run, as old as the rows here."""
        path = self.root / ".tmp/launch" / name
        path.write_text(f"#!/bin/bash\nexport HCOM_LAUNCHED=1; export HCOM_PROCESS_ID={process}; exec true\n")
        os.utime(path, (BORN, BORN))
        return path
