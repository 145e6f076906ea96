"""The contract of cleanup hooks, built in or not: values in, values out, and their JSON form.

A hook
1. is told of one agent that has ended (`HookContext`) and puts one kind of thing in order;
2. touches only what was registered for that agent, as the owner, without following links or crossing mounts;
3. writes down what it is about to do before it does it, and can be killed between any two steps: the next run with the
   same `run_id` finishes, and a run after that finds nothing to do;
4. leaves alone what it does not understand, and answers `kept` with the reason in words. `failed` is for what a later
   try may fix; a failure never counts as "clean";
5. may raise: whoever runs it turns that into `failed`.

Tests: tests/owner/hooks/test_worktree.py, tests/owner/hooks/test_temp_dir.py.
"""

from typing import Protocol

from watchdog.core.hooks import CleanupSettings, HookContext, HookResult


class Hook(Protocol):
    """One built-in hook; see the module's docstring for what it promises."""

    def __call__(self, context: HookContext, settings: CleanupSettings) -> HookResult:
        """Put one thing in order. Idempotent; may raise OSError and WatchdogError, which count as `failed`."""
