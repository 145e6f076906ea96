"""Finds temp dirs that dead agents left; each is removed in rounds by the rules of `owner.temp_dirs`.

1. Directories that a round has moved to the trash but not deleted completely: at once.
2. Directories that were registered for an ended agent, or lie in a root and carry such an agent's mark; and a vendor's
   directory of a dead session (`session_dirs`): when `trash_retention_hours` have passed since the end, and since the
   last change of anything in it.

Nothing is matched by a name prefix. An action finds its directory again by the same rules.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress

from watchdog.core import hooks
from watchdog.core.findings import Finding, KnownAgents
from watchdog.core.hooks import HookResult
from watchdog.core.sites import known_of
from watchdog.errors import PathRefused
from watchdog.owner import paths, session_dirs, temp_dirs, trash, whereabouts

KIND = "temp_dir"
LOOKED_AT = 20_000  # entries checked per candidate in a listing; for larger ones the action decides


def look(settings: hooks.CleanupSettings, known: KnownAgents) -> Iterator[Finding]:
    """The leftovers that exist. Raises OSError when /proc cannot be read."""
    for place, container in _unfinished(settings, known):
        holder = container.removesuffix(temp_dirs.SUFFIX)
        whose = holder if holder in known.ended else None
        path = os.path.join(place, trash.beside_name(place), container)
        yield Finding(KIND, path, whose, "moved to the trash, and not all of it is deleted yet", "remove")
    for what, why in _candidates(settings, known):
        whose = what.holder if what.holder in known.ended else None
        kept = temp_dirs.reason_to_keep(what, settings, LOOKED_AT)
        if kept is None:
            yield Finding(KIND, what.path, whose, why, "remove")
        elif kept[0] != "young":  # a young one is not due yet
            yield Finding(KIND, what.path, whose, f"{why}; kept: {kept[1]}", "keep")
    unknown = session_dirs.living().unknown
    for root in settings.roots if unknown is not None else ():
        if session_dirs.slugs(root):
            top = os.path.join(root, f"claude-{os.geteuid()}")
            yield Finding(KIND, top, None, f"temp dirs of Claude Code's sessions stay: {unknown}", "keep")


def act(finding: Finding, settings: hooks.CleanupSettings, known: KnownAgents) -> HookResult:
    """Run one round. Raises OSError for failures that a later try may overcome."""
    for place, container in _unfinished(settings, known):
        if os.path.join(place, trash.beside_name(place), container) == finding.path:
            return _go_on(place, container, finding.path)
    for what, _ in _candidates(settings, known):
        if what.path == finding.path:
            return temp_dirs.remove(what, settings)
    return hooks.kept(f"{finding.path} is not, or no longer, a leftover")


def _go_on(place: str, container: str, path: str) -> HookResult:
    freed = trash.Freed()
    parent = paths.open_directory(place)
    try:
        found = temp_dirs.delete(parent, container, freed)
    finally:
        os.close(parent)
    return temp_dirs.report(path, freed) if found else hooks.nothing(f"{path} is not there")


def _unfinished(settings: hooks.CleanupSettings, known: KnownAgents) -> Iterator[tuple[str, str]]:
    """Containers that need another round: the directory that holds the trash, and the container's name."""
    registered = [os.path.dirname(path) for path in known.temp_dirs.values() if path.startswith("/")]
    slugs = [slug for root in settings.roots for slug in session_dirs.slugs(root)]
    for place in dict.fromkeys([*settings.roots, *registered, *slugs]):
        with suppress(FileNotFoundError, PathRefused):
            parent = paths.open_directory(place)
            try:
                bin_fd = trash.open_trash(parent, trash.beside_name(parent), create=False)
            finally:
                os.close(parent)
            try:
                names = os.listdir(f"/proc/self/fd/{bin_fd}")
            finally:
                os.close(bin_fd)
            waiting = [name for name in sorted(names) if name.endswith(temp_dirs.SUFFIX)]
            yield from ((place, name) for name in waiting if name.removesuffix(temp_dirs.SUFFIX) not in known.living)


def _candidates(settings: hooks.CleanupSettings, known: KnownAgents) -> Iterator[tuple[temp_dirs.TempDir, str]]:
    """Candidates, each with the reason why it may be removed; its content decides whether it is."""
    retention = settings.trash_retention_hours * 3600 + settings.stepped_seconds

    def whose(path: str, holder: str) -> temp_dirs.TempDir:
        of = known_of(known.sites.get(holder))
        return temp_dirs.TempDir(path, holder, known.in_use, unchanged_for=retention, known=of)

    old = {id_: age for id_, age in known.ended.items() if age >= retention and id_ not in known.living}
    registered = {path: agent_id for agent_id, path in known.temp_dirs.items() if agent_id in old}
    for path, agent_id in registered.items():
        whereabouts.at(path)
        if os.path.lexists(path):
            hours = old[agent_id] / 3600
            yield whose(path, agent_id), f"the temp dir of an agent that ended {hours:.0f} hours ago"
    for root in settings.roots:
        for path, agent_id in _marked(root):
            if agent_id in old and path not in registered:
                yield (
                    whose(path, agent_id),
                    f"it carries the mark of an agent that ended {old[agent_id] / 3600:.0f} hours ago",
                )
    alive = session_dirs.living()
    for root in settings.roots if alive.unknown is None else ():
        for place in session_dirs.session_dirs(root):
            hours = (time.time() - place.changed) / 3600
            if place.session not in alive.ids and hours * 3600 >= retention:
                why = f"the temp dir of a dead session of Claude Code, unchanged for {hours:.0f} hours"
                yield whose(place.path, place.session), why


def _marked(root: str) -> Iterator[tuple[str, str]]:
    """This uid's own directories directly below the root that carry our mark, with the mark's content."""
    try:
        top = paths.open_directory(root)
    except (FileNotFoundError, PathRefused):
        return
    try:
        for name in sorted(os.listdir(f"/proc/self/fd/{top}")):
            try:
                directory = paths.step_inside(top, name)
            except (OSError, PathRefused):
                continue
            try:
                said = temp_dirs.mark(directory) if os.fstat(directory).st_uid == os.geteuid() else None
            finally:
                os.close(directory)
            if said is not None:
                yield os.path.join(root, name), said
    finally:
        os.close(top)
