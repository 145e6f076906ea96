"""A registry and a trash as a former version left them: recorded once, opened by each later daemon.

`recorded/former.sql` and `former-trash.json` are never recorded anew by `python -m tests.wire` (only by `--former`, by
the version whose rows are wanted): what they show is that rows which are out there can still be read.
"""

import base64
import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.wire.shape import shape
from tests.wire.station import HOST, Station, wait_for

Json = dict[str, Any]
DAY = "2025-01-01"
UID = 64_321  # stands for whose daemon it is; nobody else has it
# What a story of a minute does not come to, made of the row of an agent that lives.
BY_HAND = ("starting", "ending", "unkillable", "lost", "completed")
CLAIMED = {"ending": "claimed", "unkillable": "unkillable"}


def write(station: Station, living: str) -> tuple[str, Json]:
    """Kill the daemon as a power cut would, and take what it leaves: SQL, and the files of the trash."""
    tree = station.worktree("trashed-tree")
    trashed = station.agent("trashed", worktree=tree)
    station.json("POST", "/v1/kill", {"targets": [trashed], "reason": "wire"})
    station.ended(trashed)
    station.json("POST", "/v1/hold", {"reason": "wire"})
    station.json("POST", "/v1/hold", {"targets": [living], "reason": "wire"})
    assert station.daemon is not None
    station.daemon.kill()
    station.daemon.wait()
    known = station.known()
    with station.registry() as registry:
        registry.execute("PRAGMA foreign_keys = OFF")
        _by_hand(registry, living)
        registry.execute("UPDATE agent_lifecycle SET boot_id = 'another-boot' WHERE pid IS NOT NULL")
        for table, column in (("agent_lifecycle", "owner_uid"), ("lifecycle_event", "owner_uid"),
                              ("kill_request", "by_uid"), ("operator_hold", "by_uid")):  # fmt: skip
            registry.execute(f"UPDATE {table} SET {column} = {UID} WHERE {column} IS NOT NULL")
        lines = [line for line in registry.iterdump() if "sqlite_sequence" not in line]
    text = "\n".join(lines) + "\n"
    for word in sorted(known, key=len, reverse=True):
        text = text.replace(word, known[word])
    return _aged(re.sub(r"\buid \d+\b", f"uid {UID}", text)), {
        name: _aged(content) if isinstance(content, str) else content for name, content in _trash(station).items()
    }


def _aged(text: str) -> str:
    """A day of recording may lie in the future of another machine; what is older than that is nobody's."""
    return re.sub(r"\b20\d\d-\d\d-\d\d(?=[ T]\d\d:)", DAY, text)


def _by_hand(registry: sqlite3.Connection, living: str) -> None:
    """One agent in each status that the story has not, with an open request where it would have one."""
    columns = [row[1] for row in registry.execute("PRAGMA table_info(agent_lifecycle)")]
    for number, status in enumerate(BY_HAND):
        agent_id = f"{number + 1:032x}"
        own = {"agent_id": f"'{agent_id}'", "name": f"'{status}'", "status": f"'{status}'", "entries": "'[]'"}
        own |= {"pid": "NULL", "start_ticks": "NULL", "pidfd_inode": "NULL"} if status == "starting" else {}
        values = ", ".join(own.get(column, column) for column in columns)
        registry.execute(
            f"INSERT INTO agent_lifecycle SELECT {values} FROM agent_lifecycle WHERE agent_id = ?", [living]
        )
        if status in CLAIMED:
            registry.execute(
                "INSERT INTO kill_request (request_id, agent_id, reason, by_text, status, created_at, claimed_by)"
                " SELECT ?, ?, 'operator', 'uid 0', ?, '2026-01-01 00:00:00.000000', max(claimed_by) FROM kill_request",
                [f"{number + 1:016x}", agent_id, CLAIMED[status]],
            )


def _trash(station: Station) -> Json:
    """Files by path, below the repository's `.git`; those that are no text in base64."""
    top = station.dir / "repo" / ".git"
    files: Json = {}
    for path in sorted((top / "agent-watchdog").rglob("*")):
        if path.is_file():
            raw = path.read_bytes().replace(str(station.dir).encode(), b"<dir>")
            name = str(path.relative_to(top))
            try:
                files[name] = raw.decode()
            except UnicodeDecodeError:
                files[name] = {"base64": base64.b64encode(path.read_bytes()).decode()}
    return files


def lay(station: Station, sql: str, trash: Json) -> None:
    """Put it where a daemon of `station` will find it."""
    station.repository()
    top = station.dir / "repo" / ".git"
    for name, content in trash.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = base64.b64decode(content["base64"]) if isinstance(content, dict) else content.encode()
        path.write_bytes(raw.replace(b"<dir>", str(station.dir).encode()))
    for path in (top / "agent-watchdog", *(top / "agent-watchdog").rglob("*")):
        if path.is_dir():
            path.chmod(0o700)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    text = sql.replace("<dir>", str(station.dir)).replace("<host>", HOST).replace("<boot>", boot)
    text = re.sub(rf"\b{UID}\b", str(os.geteuid()), text)
    file = station.state / "registry.db"
    with closing(sqlite3.connect(file)) as registry:
        registry.executescript(text)
    file.chmod(0o600)


def read(station: Station) -> Json:
    """What a daemon makes of it, once it has dealt with the agents whose boot is over."""
    station.start()
    wait_for(lambda: _settled(station), "the agents of the other boot are closed")
    done = station.cli("list", "--all", "--json")
    agents = json.loads(done.stdout)["agents"]
    stories = {one["name"]: station.json("GET", f"/v1/agents/{one['agent_id']}") for one in agents}
    done = station.cli("why", "stubborn", "--json")
    assert json.loads(done.stdout) == stories["stubborn"], "`why --json` prints what the route answers"
    for one in agents:
        if one["status"] == "lost":
            one["verdict"] = "<moment>"  # whether a sweep came before it was closed
    answers: Json = {
        "list --all --json": {one["name"]: one for one in agents},
        "GET /agents/ID": {name: _beside(story) for name, story in stories.items()},
        "GET /restore": station.json("GET", f"/v1/restore?place={station.dir}/repo"),
        "holds of GET /status": station.json("GET", "/v1/status")["holds"],
    }
    shaped: Json = shape(answers, station.known())
    station.json("POST", "/v1/restore", {"id": stories["trashed"]["agent"]["agent_id"]})
    shaped["files of the worktree that was restored"] = sorted(os.listdir(station.dir / "trashed-tree"))
    return shaped


def _beside(story: Json) -> Json:
    """Without what `list` has as well; of its events the names, in order, up to those of this day."""
    events = [one["event"] for one in story["events"] if one["at"] < f"{DAY}T24"]
    return {**story, "agent": {"outlook": story["agent"]["outlook"]}, "events": {"in order": events}}


def _settled(station: Station) -> bool:
    agents = station.json("GET", "/v1/agents")["agents"]
    return all(one["status"] in ("queued", "starting") for one in agents)
