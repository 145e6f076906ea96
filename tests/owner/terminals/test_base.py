"""A pane as the daemon keeps it and gives it back. Servers and their sockets: test_panes.py."""

import json
from typing import Any

import pytest

from watchdog.errors import OwnerCallFailed
from watchdog.owner.terminals.base import Pane, pane_json, pane_of

PANE = Pane("tmux", "/tmp/tmux-0/default", "%1", 10, 99, 11, 100, "@1", "$0", ((12, 101), (11, 100)), own=True)


@pytest.mark.parametrize("pane", [PANE, Pane("kitty", "@kitty", "1", 10, 99, 11, 100)])
def test_a_pane_comes_back_as_it_was_found(pane: Pane) -> None:
    """Through JSON, which has no tuples; what a newer helper says besides is left out."""
    told = json.loads(json.dumps(pane_json(pane)))
    assert pane_of({**told, "colour": "red"}) == pane


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"terminal": "tmux", "pane": "%1"},  # as an entry in a registry names one: nobody has seen it
        {**pane_json(PANE), "chain": [[1]]},
        {**pane_json(PANE), "chain": 7},
        {**pane_json(PANE), "chain": [["x", "y"]]},
    ],
)
def test_what_is_no_pane_is_refused(told: dict[str, Any]) -> None:
    """Nothing is closed by half of it."""
    with pytest.raises(OwnerCallFailed) as caught:
        pane_of(told)
    assert caught.value.reason == "no_pane"
