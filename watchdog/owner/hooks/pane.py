"""Closes a dead agent's terminal pane if it was made for that agent, by the rules of `owner.terminals.panes`.

Whether it is gone is checked afterwards. If it cannot be closed, the result has the command for a person
(`details["retry"]`).

Tests: tests/e2e/test_pane.py.
"""

import os

from watchdog.core import hooks
from watchdog.core.agent import Status
from watchdog.core.hooks import HookContext, HookResult
from watchdog.core.kill import Reason
from watchdog.owner.terminals import panes
from watchdog.owner.terminals.base import pane_of


def pane(context: HookContext, settings: hooks.CleanupSettings) -> HookResult:
    """Close it. Raises OwnerCallFailed if the stored pane cannot be parsed."""
    if context.pane is None:
        return hooks.nothing("no pane is known that it sat in")
    if context.owner_uid != os.geteuid():
        return hooks.kept(f"its pane is left alone: it is an agent of uid {context.owner_uid}, not {os.geteuid()}")
    if context.reason == Reason.LOST:
        return hooks.nothing("its pane went with its boot")
    if "server_pid" in context.pane:
        closed = panes.close(pane_of(context.pane))
    elif context.outcome is Status.KILLED:
        closed = panes.never_found(context.pane)
    else:
        return hooks.nothing("its registry names a pane in which it was never found")
    details = {"reason": "pane_cleanup_failed", "retry": closed.retry} if closed.retry else {}
    made = {"done": hooks.done, "gone": hooks.nothing, "kept": hooks.kept, "failed": hooks.failed}
    return made[closed.outcome](closed.message, **details)
