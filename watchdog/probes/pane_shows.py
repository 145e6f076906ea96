"""The helper's call `pane_shows`: whether the agent's tmux pane shows new text.

Tests: tests/probes/test_output_growth.py.
"""

from typing import Any

from watchdog.agents.agent import Agent
from watchdog.core.observed_activity import ActivityKind

SCREENS = 64  # screens remembered per pane: blinking or cycling text comes back


def question(agent: Agent, kind: ActivityKind) -> dict[str, object] | None:
    """The arguments, with its main process."""
    main = agent.identity
    return None if main is None else {"pid": main.pid, "start_ticks": main.start_ticks}


def read(kind: ActivityKind, answer: Any, before: Any, now: float) -> tuple[str | None, object]:
    """Text that the pane did not show before in this silence; a resized pane shows other text for that reason alone.

    `before`: pane, size and hash of each screen, the newest last.
    """
    screen, shown = (str(answer["pane"]), str(answer["size"]), str(answer["shows"])), before or []
    changed = bool(shown) and screen not in shown and screen[:2] == shown[-1][:2]
    return "its pane changes" if changed else None, [*(one for one in shown if one != screen), screen][-SCREENS:]
