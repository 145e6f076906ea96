"""Sockets that a `run` has left: it was killed before it could remove the one where it heard its agent.

Only the paths that were recorded at registration, below directories of this uid's; a socket that a process serves
stays.
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
    """Those that lie there still."""
    for agent_id, path in known.sockets.items():
        if agent_id not in known.ended:
            continue
        try:
            why = _reason_to_keep(path)
        except (FileNotFoundError, PathRefused):
            continue  # gone, or never this uid's own place
        if why is None:
            yield Finding(
                KIND, path, agent_id, "the notify socket of a `run` that is gone; nothing listens on it", "remove"
            )
        else:
            yield Finding(KIND, path, agent_id, why, "keep")


def act(finding: Finding, settings: hooks.CleanupSettings, known: KnownAgents) -> HookResult:
    """Remove one, if it is a recorded one that no process serves."""
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
    """Why it stays, None when it may go. Raises FileNotFoundError; PathRefused where it is no socket of ours."""
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
