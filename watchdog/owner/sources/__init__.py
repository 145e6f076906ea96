"""Other programs' registries of agents, one file each. A new one is one file and one line in this table.

    base             the contract
    claude           Claude Code's own list of its sessions
    agent_relay      agent-relay's lists and database
    relay_runs       the processes of its agents
    agent_sessions   the sessions of tmux-agent-orchestrate
    session_rows     what a row of those means, by its tmux server
    agent_status     the files of an orchestrator's agents, with their heartbeats
    delegated_jobs   the jobs of those sessions
    fleet_tasks      apra-fleet's long running tasks
    fleet_files      the files of one of those tasks, and whether its wrapper lives
    fleet_members    its members, also those of other devices
    files            files of other programs: read, and changed at one place
    hcom             hcom's database and pid file
    hcom_runs        what hcom keeps of its runs beside them
    kernel           what /proc shows an owner of his own processes
    orchestrator_db  an orchestrator's own SQLite file
    sqlite_locks     who holds the lock of one
    yaml_rows        one row of a YAML list, changed at its place

None of them decides about a process or signals one: what an entry means is asked of the kernel, by the daemon.
"""

import os
from dataclasses import replace
from typing import Any

from watchdog.errors import OwnerCallFailed
from watchdog.owner import os_errors, parsing
from watchdog.owner.sources import agent_relay, agent_sessions, claude, fleet_tasks, hcom, orchestrator_db
from watchdog.owner.sources.base import Entry, Source, end_of, entry_json

SOURCES: dict[str, Source] = {
    "claude": Source("~/.claude", claude.discover, variable="CLAUDE_CONFIG_DIR"),
    "agent_relay": Source(
        "~/.agent-relay",
        agent_relay.discover,
        agent_relay.forget,
        removes=("/tmp", "/tmp/relay-outbox"),  # noqa: S108
    ),
    "agent_sessions": Source("", agent_sessions.discover, agent_sessions.forget, variable="AGENT_SESSIONS_YAML"),
    "fleet_tasks": Source("~/.fleet-tasks", fleet_tasks.discover, fleet_tasks.forget, reads=("~/.apra-fleet/data",)),
    "hcom": Source("~/.hcom", hcom.discover, hcom.forget, variable="HCOM_DIR", written="hcom.db"),
    "orchestrator_db": Source("", orchestrator_db.discover, orchestrator_db.forget),
}


def source_discover(kind: str, path: str) -> list[dict[str, object]]:
    """The helper's call: who stands in that registry now, and whose beats cannot be written. Raises OwnerCallFailed."""
    source, place = _source(kind), os.path.expanduser(path)

    def look() -> list[dict[str, object]]:
        found = source.discover(place)
        if any(entry.promise is not None for entry in found):
            found = _heard(found, os.path.join(place, source.written) if source.written else place)
        return [entry_json(entry) for entry in found]

    found: Any = parsing.parsed(look, [parsing.place_of(place)], map(os.path.expanduser, source.reads))
    return list(found)


def _heard(found: list[Entry], written: str) -> list[Entry]:
    """Those whose silence is not their own say so: nothing can be written where they beat."""
    try:
        why = os_errors.unwritable(written, rights=True)
        if not why and not os.path.isdir(written):  # a journal is made beside it
            why = os_errors.unwritable(os.path.dirname(written), rights=True)
    except OSError as error:
        why = str(error)
    if not why:
        return found
    return [one if one.unheard or one.promise is None else replace(one, unheard=why) for one in found]


def source_forget(kind: str, path: str, key: str, token: str, end: dict[str, object]) -> dict[str, object]:
    """The helper's call: write down the end of one entry. Raises OwnerCallFailed."""
    source, place = _source(kind), os.path.expanduser(path)
    forget = source.forget
    if forget is None:
        raise OwnerCallFailed("kept", f"an entry of {kind} is left to that program")
    how = end_of(end)

    def write() -> dict[str, object]:
        done = forget(place, key, token, how)
        return {"became": done.became, "message": done.message}

    removed = [*source.removes, *(os.path.dirname(one) for one in how.temp)]
    done: Any = parsing.parsed(write, [parsing.place_of(place)], map(os.path.expanduser, source.reads), removed)
    return dict(done)


def _source(kind: str) -> Source:
    if kind not in SOURCES:
        raise OwnerCallFailed("unknown_kind", f"there is no source {kind!r}; there are {', '.join(SOURCES)}")
    return SOURCES[kind]
