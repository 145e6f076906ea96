"""The members of apra-fleet, from its `registry.json`: local ones by folder, and those on other devices.

Nothing else in that file is kept: it contains passwords.

Tests: tests/owner/sources/test_fleet_tasks.py.
"""

import os
from collections.abc import Iterator
from typing import Any

from watchdog.core.sd_notify import printable
from watchdog.core.source_entries import Entry
from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import files

LOCAL = "local"  # `agentType`; the others are remote (by SSH) and relay


def folders() -> dict[str, str]:
    """Names of the members on this host, by working folder."""
    local = ((one.get("workFolder"), name) for one, name in _members() if one.get("agentType", LOCAL) == LOCAL)
    return {folder.rstrip("/"): name for folder, name in local if isinstance(folder, str)}


def elsewhere() -> list[Entry]:
    """Members on other devices, which are only shown."""
    found = []
    for one, name in _members():
        kind, key = one.get("agentType", LOCAL), one.get("id")
        if kind == LOCAL or not isinstance(kind, str) or not isinstance(key, str) or not key:
            continue
        host = one.get("host")
        note = f"member on {host}" if isinstance(host, str) and host else "member"
        found.append(
            Entry(
                key=printable(f"member {key}")[:128],
                token=printable(str(one.get("createdAt", "-")))[:128] or "-",
                name=name,
                uid=os.geteuid(),
                remote=True,
                type="fleet-member",
                note=printable(f"{note} ({kind})")[:200],
            )
        )
    return found


def _members() -> Iterator[tuple[dict[str, Any], str]]:
    """Each member with its name; none if the file is missing, another uid's, or invalid."""
    data = os.environ.get("APRA_FLEET_DATA_DIR") or os.path.expanduser("~/.apra-fleet/data")
    try:
        told, like = files.read_json(os.path.join(data, "registry.json"))
    except (OSError, OwnerCallFailed):
        return
    agents = told.get("agents") if isinstance(told, dict) and like.st_uid == os.geteuid() else None
    for agent in agents if isinstance(agents, list) else []:
        name = agent.get("friendlyName") if isinstance(agent, dict) else None
        if isinstance(name, str) and name:
            yield agent, printable(name)[:128]
