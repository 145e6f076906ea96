"""Removes the temp dir that was registered for an agent, by the rules of `owner.temp_dirs`."""

from watchdog.core import hooks
from watchdog.core.hooks import HookContext, HookResult
from watchdog.owner import temp_dirs


def temp_dir(context: HookContext, settings: hooks.CleanupSettings) -> HookResult:
    """Run one round of removal. Raises OSError for failures that a later try may overcome."""
    if context.temp_dir is None:
        return hooks.nothing("no temp dir was registered")
    known = hooks.known_site(context, "temp_dir")
    return temp_dirs.remove(
        temp_dirs.TempDir(context.temp_dir, context.agent_id, context.in_use, known=known, used_by=context.used_by),
        settings,
    )
