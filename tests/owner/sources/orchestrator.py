"""An orchestrator's database in both layouts, as its documents and its code make them; every value is made up."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

DOCUMENTED = """
CREATE TABLE agent_lifecycle (agent_id TEXT PRIMARY KEY, agent_type TEXT, status TEXT, task_id TEXT, pid INTEGER,
  created_at TEXT, started_at TEXT, completed_at TEXT, error_message TEXT, last_heartbeat TEXT,
  retry_count INTEGER DEFAULT 0, exit_code INTEGER, cpu_percent REAL, memory_mb REAL);
CREATE TABLE orchestrator_task (task_id TEXT PRIMARY KEY, spec_id TEXT, status TEXT, priority INTEGER,
  assigned_agent TEXT, created_at TEXT, started_at TEXT, completed_at TEXT, retry_count INTEGER, error_message TEXT);
"""
REAL = """
CREATE TABLE agent_lifecycle (agent_id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL,
  agent_type TEXT NOT NULL, task_id TEXT NOT NULL, task_type TEXT, priority_number INTEGER, spawned_at TEXT NOT NULL,
  started_at TEXT, completed_at TEXT, status TEXT NOT NULL, exit_code INTEGER, duration_ms INTEGER,
  idle_time_ms INTEGER, command TEXT NOT NULL, worktree_path TEXT, worktree_branch TEXT, merged_at TEXT,
  cleaned_at TEXT, merge_duration_ms INTEGER, cleanup_duration_ms INTEGER, error_message TEXT, metadata TEXT,
  stdout_output TEXT, stderr_output TEXT);
CREATE INDEX lifecycle_by_pid ON agent_lifecycle (pid);
CREATE VIEW active_agents AS SELECT * FROM agent_lifecycle WHERE status IN ('spawned', 'running');
"""


class Orchestrator:
    """One file; `insert` as the orchestrator does it, and `dump` to compare all that is in it."""

    def __init__(self, directory: Path, schema: str = DOCUMENTED, *, wal: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "orchestrator.db"
        self.status = directory / "agent_status"
        self.status.mkdir()
        with closing(sqlite3.connect(self.path)) as database:
            if wal:
                database.execute("PRAGMA journal_mode = WAL")
            database.executescript(schema)

    def sql(self, statement: str, *bound: Any) -> list[dict[str, Any]]:
        """One statement, committed."""
        with closing(sqlite3.connect(self.path, timeout=5)) as database, database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(statement, bound)]

    def insert(self, table: str = "agent_lifecycle", **values: Any) -> None:
        """A row; times that are not given are the database's own CURRENT_TIMESTAMP."""
        names = ", ".join(values)
        marks = ", ".join("CURRENT_TIMESTAMP" if value is Ellipsis else "?" for value in values.values())
        bound = [value for value in values.values() if value is not Ellipsis]
        self.sql(f"INSERT INTO {table} ({names}) VALUES ({marks})", *bound)

    def agent(self, agent_id: object) -> dict[str, Any]:
        """Its row."""
        (row,) = self.sql("SELECT * FROM agent_lifecycle WHERE agent_id = ?", agent_id)
        return row

    def task(self, task_id: str) -> dict[str, Any]:
        """Its row."""
        (row,) = self.sql("SELECT * FROM orchestrator_task WHERE task_id = ?", task_id)
        return row

    def dump(self) -> list[str]:
        """All that the file holds, as SQL."""
        with closing(sqlite3.connect(self.path)) as database:
            return list(database.iterdump())
