"""What the helper's `pane_shows` tells: other words in the agent's tmux pane than there were before.

Tests: tests/probes/test_output_growth.py.
"""

from typing import Any

from watchdog.agents.agent import Agent
from watchdog.core.observed_activity import ActivityKind

SCREENS = 64  # that are remembered of one pane: words that blink or run in a circle come again


def question(agent: Agent, kind: ActivityKind) -> dict[str, object] | None:
    """By its main process."""
    main = agent.identity
    return None if main is None else {"pid": main.pid, "start_ticks": main.start_ticks}


def read(kind: ActivityKind, answer: Any, before: Any, now: float) -> tuple[str | None, object]:
    """Words that were not there before in this silence; in another size it shows others for that alone.

    `before`: pane, size and hash of each screen, the newest last.
    """
    screen, shown = (str(answer["pane"]), str(answer["size"]), str(answer["shows"])), before or []
    changed = bool(shown) and screen not in shown and screen[:2] == shown[-1][:2]
    return "its pane changes" if changed else None, [*(one for one in shown if one != screen), screen][-SCREENS:]
