"""The finder of apra-fleet's tasks that ended long ago, by that program's own rule: it applies it only while it runs.

Only below directories that a `[[source]]` of the kind `fleet_tasks` names for this user. A completed task goes an hour
after its last status, any other, also one without a status, after 168: never while its wrapper may live, or anybody
has something of it open, and never through a link.
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
COMPLETED, OTHER = 3600.0, 168 * 3600.0  # seconds, as the program has them (its 0.4.2) unless its environment says more


def look(settings: hooks.CleanupSettings, known: KnownAgents) -> Iterator[Finding]:
    """Those whose time is over."""
    for top in _tops(settings):
        try:
            directory = fleet_files.opened(top)
        except (OSError, OwnerCallFailed):
            continue  # none there, or another uid's: its source has said so
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
    """Remove one, after deciding again. Raises OSError for what a later try may fix."""
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
    """Why it may go; None: not yet, or it may live. Raises OSError, OwnerCallFailed."""
    with fleet_files.directory_of(directory, key) as place:
        try:
            task = fleet_files.read_task(place, key)
        except (FileNotFoundError, OwnerCallFailed):
            task = None  # never begun, or of another layout
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
    """When it wrote its status last, in its own words; else when its directory changed."""
    try:
        return datetime.strptime(task.updated, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return os.stat(place).st_mtime


def _tops(settings: hooks.CleanupSettings) -> list[str]:
    """The directories of tasks that this user is to be helped with."""
    try:
        me = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        me = ""
    usual = KINDS["fleet_tasks"].path
    return [os.path.expanduser(path or usual) for user, path in settings.tasks if user in (me, str(os.geteuid()))]
