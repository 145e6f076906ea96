"""The contract of cleanup hooks, built in or not.

A hook
1. gets one ended agent (`HookContext`) and cleans up one kind of thing;
2. touches only what was registered for that agent, as the owner, without following links or crossing mounts;
3. records what it is about to do before it does it, and can be killed between any two steps: the next run with the same
   `run_id` finishes, and a run after that finds nothing to do;
4. leaves alone what it does not understand, and returns `kept` with the reason. `failed` is for problems that a later
   try may overcome; a failure never counts as "clean";
5. may raise: its caller turns that into `failed`.

Tests: tests/owner/hooks/test_worktree.py, tests/owner/hooks/test_temp_dir.py.
"""

from typing import Protocol

from watchdog.core.hooks import CleanupSettings, HookContext, HookResult


class Hook(Protocol):
    """One built-in hook; the module's docstring has its contract."""

    def __call__(self, context: HookContext, settings: CleanupSettings) -> HookResult:
        """Clean up one thing. Idempotent; may raise OSError and WatchdogError, which count as `failed`."""
