"""Supported terminals. A new one is one file and one line in the table.

    base       the contract, and values: a pane, its server, and how a server is reached
    client     runs a terminal's own program so that nothing outlives its answer
    pane_lookup   which process is at which terminal, from /proc
    tmux, kitty, wezterm
    panes      operations: find an agent's pane, capture its screen, type, close
    pane_content  whether a pane's content changes, or asks a person

The kernel decides which pane an agent is in: by its terminal's device, and the holder of the other end.
"""

from watchdog.owner.terminals.base import Terminal
from watchdog.owner.terminals.kitty import KITTY
from watchdog.owner.terminals.tmux import TMUX
from watchdog.owner.terminals.wezterm import WEZTERM

TERMINALS: dict[str, Terminal] = {"tmux": TMUX, "kitty": KITTY, "wezterm": WEZTERM}
