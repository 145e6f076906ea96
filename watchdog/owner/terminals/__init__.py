"""Terminals that an agent may sit in. A new one is one file and one line in this table.

    base       the contract, and values: a pane, its server, and how one is reached
    client     a terminal's own program, run so that nothing outlives its answer
    sitting    who sits at which terminal, from /proc
    tmux, kitty, wezterm
    panes      what is done with them: find an agent's, keep its last screen, type, close
    showing    whether what one shows changes, or asks a person

The kernel says which of them an agent is in: its terminal's device, and the holder of the other end.
"""

from watchdog.owner.terminals.base import Terminal
from watchdog.owner.terminals.kitty import KITTY
from watchdog.owner.terminals.tmux import TMUX
from watchdog.owner.terminals.wezterm import WEZTERM

TERMINALS: dict[str, Terminal] = {"tmux": TMUX, "kitty": KITTY, "wezterm": WEZTERM}
