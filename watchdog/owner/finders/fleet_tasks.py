"""Finds apra-fleet's tasks that ended long ago, by that program's own rule, which it applies only while it runs.

It searches only directories that a `[[source]]` of kind `fleet_tasks` names for this user. A completed task is removed
an hour after its last status, any other, also one without a status, after 168 hours; never while its wrapper may be
alive or a process has something of it open, and never through a link.
"""

import os
import pwd
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from watchdog.core import hooks
from watchdog.core.findings import Finding, KnownAgents
from watchdog.core.hooks import HookResult
from watchdog.core.source_entries import KINDS
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import occupancy, trash
from watchdog.owner.sources import fleet_files

KIND = "task"
COMPLETED, OTHER = 3600.0, 168 * 3600.0  # seconds, the program's defaults (its 0.4.2)


def look(settings: hooks.CleanupSettings, known: KnownAgents) -> Iterator[Finding]:
    """The tasks that are due."""
    for top in _tops(settings):
        try:
            directory = fleet_files.opened(top)
        except (OSError, OwnerCallFailed):
            continue  # does not exist, or another uid's: its source has reported that
        try:
            for key in sorted(name for name in os.listdir(directory) if fleet_files.TASK.fullmatch(name)):
                try:
                    why = _due(directory, key, settings.stepped_seconds)
                except (OSError, OwnerCallFailed):
                    continue
                if why is not None:
                    yield Finding(KIND, os.path.join(top, key), None, why, "remove")
        finally:
            os.close(directory)


def act(finding: Finding, settings: hooks.CleanupSettings, known: KnownAgents) -> HookResult:
    """Remove one, after deciding again. Raises OSError for failures that a later try may overcome."""
    top, key = os.path.split(finding.path)
    if top not in _tops(settings) or not fleet_files.TASK.fullmatch(key):
        return hooks.kept(f"{finding.path} is not a task of a source here")
    freed = trash.Freed()
    try:
        directory = fleet_files.opened(top)
        try:
            if _due(directory, key, settings.stepped_seconds) is None:
                return hooks.kept(f"{finding.path} is not due any more")
            with fleet_files.directory_of(directory, key) as place:
                user = occupancy.occupant(os.path.realpath(place))
            if user is not None:
                return hooks.kept(f"{finding.path} is in use: {user}")
            gone = trash.remove_container(directory, key, freed)
        finally:
            os.close(directory)
    except FileNotFoundError:
        return hooks.nothing(f"{finding.path} is not there")
    except (OwnerCallFailed, PathRefused) as refused:
        return hooks.kept(f"refused: {refused}", refused=refused.reason)
    if gone:
        return hooks.done(f"removed {finding.path}", freed_bytes=freed.bytes)
    return hooks.failed(f"not all of {finding.path} could be removed: {'; '.join(freed.problems[:3])}")


def _due(directory: int, key: str, stepped: float) -> str | None:
    """Why it may be removed; None: not yet, or it may be alive. Raises OSError, OwnerCallFailed."""
    with fleet_files.directory_of(directory, key) as place:
        try:
            task = fleet_files.read_task(place, key)
        except (FileNotFoundError, OwnerCallFailed):
            task = None  # never begun, or another layout
            if os.path.lexists(f"{place}/task.pid"):
                return None
        status = "without a status" if task is None else task.status
        age = time.time() - stepped - (os.stat(place).st_mtime if task is None else _updated(task, place))
    if age < (COMPLETED if status == "completed" else OTHER):
        return None
    if fleet_files.is_run(key) if task is None else fleet_files.lives(task):
        return None
    return f"an apra-fleet task, {status}, untouched for {age / 3600:.0f} hours"


def _updated(task: fleet_files.Task, place: str) -> float:
    """The time in its last status; else when its directory changed."""
    try:
        return datetime.strptime(task.updated, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return os.stat(place).st_mtime


def _tops(settings: hooks.CleanupSettings) -> list[str]:
    """The task directories that are configured for this user."""
    try:
        me = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        me = ""
    usual = KINDS["fleet_tasks"].path
    return [os.path.expanduser(path or usual) for user, path in settings.tasks if user in (me, str(os.geteuid()))]
