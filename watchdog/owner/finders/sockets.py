"""Finds notify sockets that a killed `run` could not remove.

It checks only the paths recorded at registration, in directories of this uid's; a socket that a process serves stays.
"""

import os
import stat
from collections.abc import Iterator

from watchdog.core import hooks
from watchdog.core.findings import Finding, KnownAgents
from watchdog.core.hooks import HookResult
from watchdog.errors import PathRefused
from watchdog.owner import occupancy, paths

KIND = "socket"


def look(settings: hooks.CleanupSettings, known: KnownAgents) -> Iterator[Finding]:
    """The sockets that still exist."""
    for agent_id, path in known.sockets.items():
        if agent_id not in known.ended:
            continue
        try:
            why = _reason_to_keep(path)
        except (FileNotFoundError, PathRefused):
            continue  # gone, or never in this uid's own directory
        if why is None:
            yield Finding(
                KIND, path, agent_id, "the notify socket of a `run` that is gone; nothing listens on it", "remove"
            )
        else:
            yield Finding(KIND, path, agent_id, why, "keep")


def act(finding: Finding, settings: hooks.CleanupSettings, known: KnownAgents) -> HookResult:
    """Remove one, if it is recorded and no process serves it."""
    agent_id = finding.agent_id or ""
    if known.sockets.get(agent_id) != finding.path or agent_id not in known.ended:
        return hooks.kept(f"{finding.path} is not what agent {agent_id} had registered, or the agent is alive")
    try:
        why = _reason_to_keep(finding.path)
        if why is not None:
            return hooks.kept(why)
        parent, name = paths.open_parent(finding.path)
    except FileNotFoundError:
        return hooks.nothing(f"{finding.path} is not there")
    except PathRefused as refused:
        return hooks.kept(f"refused: {refused}", refused=refused.reason)
    try:
        os.unlink(name, dir_fd=parent)
    finally:
        os.close(parent)
    return hooks.done(f"removed {finding.path}")


def _reason_to_keep(path: str) -> str | None:
    """Why it is kept; None: it may be removed. Raises FileNotFoundError; PathRefused if it is in a foreign
    directory.
    """
    parent, name = paths.open_parent(path)
    try:
        if os.fstat(parent).st_uid != os.geteuid():
            raise PathRefused("not_yours", f"the directory of {path} is another uid's")
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
            return f"{path} is not a socket of this uid's"
        return f"a process listens on {path}" if occupancy.served(parent, name) else None
    finally:
        os.close(parent)
