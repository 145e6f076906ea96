"""Removes the temp dir that was registered for an agent: `owner.temp_dirs` says by which rules."""

from watchdog.core import hooks
from watchdog.core.hooks import HookContext, HookResult
from watchdog.owner import temp_dirs


def temp_dir(context: HookContext, settings: hooks.CleanupSettings) -> HookResult:
    """One round of removal. Raises OSError for what a later try may fix."""
    if context.temp_dir is None:
        return hooks.nothing("no temp dir was registered")
    known = hooks.known_site(context, "temp_dir")
    return temp_dirs.remove(
        temp_dirs.TempDir(context.temp_dir, context.agent_id, context.in_use, known=known, used_by=context.used_by),
        settings,
    )
