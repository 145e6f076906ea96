"""The contract of cleanup hooks, built in or not.

A hook
1. gets the facts of one ended agent (`HookContext`), and cleans up one kind of thing;
2. touches only what was registered for that agent, as the owner, without following links or crossing mounts;
3. may be killed at any moment, and is then run again with the same `run_id`. So each of its steps is either harmless to
   repeat (an unlink: gone is gone, see the recipe), or writes down what it is about to do, so that the next run finds
   how far this one came (`worktree` does, before it moves a tree). The next run completes the work; one
   after that answers `nothing` or `done` and changes nothing;
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
