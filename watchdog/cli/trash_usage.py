"""Finds trash: below the roots, next to temp dirs, and in repositories in which a worktree or lock was moved aside.

Read-only, without following links; the paths are those that the daemon reports. Trash of agents that it has deleted
(`retention_days`) is found only below the roots.

Tests: tests/cli/test_doctor.py.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import cast

from watchdog.client import client
from watchdog.errors import WatchdogError

Json = dict[str, object]

ROOTS = ["/tmp", "/var/tmp"]  # noqa: S108 the default of cleanup.roots
BESIDE = ".agent-watchdog-trash-*"  # owner.trash.beside_name()
AREA = "/agent-watchdog/trash/"  # in a repository: owner.hooks.worktree
LOCKS = "/agent-watchdog/locks/"  # likewise: lock files that owner.git.lock_files moved aside
MOST_STORIES = 200  # ended agents with a worktree that are queried, the newest first
MOST_FILES = 100_000  # counted at most


def find(socket_path: str, roots: object) -> list[str]:
    """All trash that is known and visible, sorted. `roots`: as the daemon reports them, else the defaults."""
    agents = _agents(socket_path)
    places = [str(root) for root in (roots if isinstance(roots, list) else ROOTS)]
    places += [os.path.dirname(path) for agent in agents for path in (agent.get("temp_dir"),) if isinstance(path, str)]
    found = {str(path) for place in places if place.startswith("/") for path in _below(place)}
    ended = [agent for agent in agents if agent.get("worktree") and agent.get("completed_at")]
    for agent in ended[:MOST_STORIES]:
        found |= _moved(socket_path, str(agent.get("agent_id")))
    return sorted(path for path in found if _is_directory(path))


def bytes_below(top: str) -> int:
    """Bytes on disk of everything readable, up to a limit."""
    total = count = 0
    todo = [top]  # os.walk recurses before Python 3.12, and trash may be too deep for that
    while todo and count <= MOST_FILES:
        with suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                    continue
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def _agents(socket_path: str) -> list[Json]:
    answer = _ask(socket_path, "/v1/agents?all").get("agents")
    return [agent for agent in answer if isinstance(agent, dict)] if isinstance(answer, list) else []


def _moved(socket_path: str, agent_id: str) -> set[str]:
    """The trash directories of the repositories to which an agent's worktree and locks were moved."""
    runs = _ask(socket_path, f"/v1/agents/{agent_id}").get("cleanup")
    details = [cast("Json", run).get("details") for run in (runs if isinstance(runs, list) else [])]
    paths = [str(one.get("trash")) for one in details if isinstance(one, dict) and one.get("trash")]
    paths += [str(one.get("area")) for one in details if isinstance(one, dict) and one.get("area")]
    areas = ((path, area) for path in paths for area in (AREA, LOCKS) if area in path and path.startswith("/"))
    return {path[: path.index(area)] + area.rstrip("/") for path, area in areas}


def _below(place: str) -> list[Path]:
    try:
        return list(Path(place).glob(BESIDE))
    except OSError:
        return []


def _is_directory(path: str) -> bool:
    """Whether it is a directory and not a link, which could lead anywhere."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _ask(socket_path: str, path: str) -> Json:
    try:
        code, answer = client.request("GET", path, socket_path=socket_path)
    except (WatchdogError, OSError):
        return {}
    return answer if code == 200 else {}
