"""Removes the temp dir that was registered for an agent.

1. Refuse whatever is not plainly that agent's own temp dir: strictly below one of `cleanup.roots`, or with our mark;
   of this uid; reached through no link; no mount, no root, no home, nor a parent of those; no repository in it at any
   depth, marked or not; unless it has our mark (then `run` made it new), none around it below the root.
2. Keep it, and say so, while another living agent has a place in it, a process uses it, a socket in it is served, or
   somebody holds its lock.
3. Rename it into the trash beside it: one step, so a killed run leaves it whole in one place or the other.
4. Delete it from the trash.

A second run goes on with what it finds in the trash. It must not look at any directory that was not registered.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack

from watchdog.core.model import HookContext, HookResult
from watchdog.errors import PathRefused
from watchdog.owner import occupancy, paths, repositories, trash
from watchdog.owner.hooks import base

InUse = Sequence[tuple[str, str]]  # HookContext.in_use

MARK = ".agent-watchdog"  # a file in the directory; its content is the agent's id


def temp_dir(context: HookContext, settings: base.CleanupSettings) -> HookResult:
    """See the module's docstring. Raises OSError for what a later try may mend."""
    if context.temp_dir is None:
        return base.nothing("no temp dir was registered")
    try:
        return _remove(paths.checked_agent_id(context.agent_id), context.temp_dir, settings, context.in_use)
    except PathRefused as refused:
        return base.kept(f"refused: {refused}", refused=refused.reason)


def _root_above(names: list[str], roots: tuple[str, ...]) -> str | None:
    """The configured root that the path lies strictly below, compared by whole names."""
    for root in roots:
        above = [name for name in root.split("/") if name]
        if above and len(names) > len(above) and names[: len(above)] == above:
            return "/" + "/".join(above)
    return None


def _mark(directory: int) -> str | None:
    """What the mark in the directory says; None without one. A FIFO or a link by that name is no mark."""
    try:
        fd = os.open(MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return None
        return os.read(fd, 256).decode("utf-8", "replace").strip()
    finally:
        os.close(fd)


def _refuse_foreign(directory: int, parent: int, agent_id: str, path: str, settings: base.CleanupSettings) -> None:
    """Raises PathRefused unless the open directory may be removed for this agent."""
    home = os.environ.get("HOME", "/")
    if paths.file_id(directory) in paths.ancestors(["/", home, *settings.roots, *settings.protected]):
        raise PathRefused("protected", f"{path} is a root, a home, or holds one")
    paths.refuse_unless_plain(directory, parent, path)
    mark = _mark(directory)
    if mark is not None and mark != agent_id:
        raise PathRefused("other_agent", f"{path} carries the mark of another agent")
    root = _root_above(paths.components(path), settings.roots)
    if mark is None:
        if root is None:
            raise PathRefused("outside_roots", f"{path} lies below none of cleanup.roots and does not carry our mark")
        # The root itself is not asked: in /tmp anybody may make a .git, and nobody's temp dir would ever go.
        between = len(paths.components(path)) - len(paths.components(root)) - 1
        if above := repositories.around(parent, between):
            raise PathRefused("repository", f"{path} lies in the git repository {above}")


def _refuse_repositories(directory: int, path: str) -> None:
    """Raises PathRefused when a repository lies in it, or nobody can say: only its own git knows what it holds."""
    try:
        place = repositories.inside(directory)
    except PathRefused as unknown:
        raise PathRefused(unknown.reason, f"{path}: {unknown}") from None
    if place is not None:
        raise PathRefused("repository", f"a git repository lies in {path}: {place}")


def _remove(agent_id: str, path: str, settings: base.CleanupSettings, in_use: InUse) -> HookResult:
    names = paths.components(path)
    freed = trash.Freed()
    with ExitStack() as stack:
        try:
            parent, name = paths.open_parent(path, _root_above(names, settings.roots) or "/")
        except FileNotFoundError:
            return base.nothing(f"{path} is not there")
        stack.callback(os.close, parent)
        earlier = _finish_earlier(parent, agent_id, freed)
        try:
            directory = paths.step(parent, name)
        except FileNotFoundError:
            return _report(path, freed) if earlier else base.nothing(f"{path} is not there")
        stack.callback(os.close, directory)
        _refuse_foreign(directory, parent, agent_id, path, settings)
        locked = paths.readable(directory)
        stack.callback(os.close, locked)
        if user := occupancy.neighbour(paths.real_path(directory), in_use):
            return base.kept(f"in use: {user}")
        if not occupancy.lock(locked):
            return base.kept(f"somebody holds a lock on {path}")
        if user := occupancy.occupant(paths.real_path(directory)):
            return base.kept(f"in use: {user}")
        _refuse_repositories(directory, path)
        container = trash.use_trash(parent, lambda bin_fd: trash.open_trash(bin_fd, agent_id))
        stack.callback(os.close, container)
        user = trash.take(parent, name, container, directory)
        trash.use_trash(parent, lambda bin_fd: trash.remove_container(bin_fd, agent_id, freed))
        trash.drop_if_empty(parent, trash.beside_name())
    return base.kept(f"in use: {user}") if user else _report(path, freed)


def _finish_earlier(parent: int, agent_id: str, freed: trash.Freed) -> bool:
    """Delete what a killed run has left in the trash. True when there was something."""
    try:
        bin_fd = trash.open_trash(parent, trash.beside_name(), create=False)
    except FileNotFoundError:
        return False
    try:
        os.stat(agent_id, dir_fd=bin_fd, follow_symlinks=False)
        trash.remove_container(bin_fd, agent_id, freed)
    except FileNotFoundError:
        return False
    finally:
        os.close(bin_fd)
        trash.drop_if_empty(parent, trash.beside_name())
    return True


def _report(path: str, freed: trash.Freed) -> HookResult:
    numbers: dict[str, object] = {"bytes": freed.bytes, "entries": freed.entries}
    if freed.problems:
        return base.failed(f"{path} is in the trash, but could not be deleted: {'; '.join(freed.problems)}", **numbers)
    return base.done(f"removed {path}: {freed.entries} entries, {freed.bytes} bytes", **numbers)
