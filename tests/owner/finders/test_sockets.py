"""Sockets that a `run` has left: gone where nobody serves them, and what is none stays."""

import os
import socket
from pathlib import Path

import pytest

from watchdog.core import hooks
from watchdog.core.findings import Finding, KnownAgents
from watchdog.core.hooks import HookOutcome
from watchdog.owner.finders import sockets

SETTINGS = hooks.CleanupSettings()
DEAD, ALIVE = "d" * 32, "a" * 32


def known(path: Path, agent_id: str = DEAD) -> KnownAgents:
    return KnownAgents(frozenset({ALIVE}), {DEAD: 60.0}, sockets={agent_id: str(path)})


def bound(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(str(path))
    return made


def test_a_socket_that_nobody_serves_goes(tmp_path: Path) -> None:
    """Twice does no harm; the directory stays."""
    path = tmp_path / "s"
    bound(path).close()

    [found] = sockets.look(SETTINGS, known(path))
    assert found.action == "remove"
    assert sockets.act(found, SETTINGS, known(path)).outcome is HookOutcome.DONE
    assert not path.exists()
    assert sockets.act(found, SETTINGS, known(path)).outcome is HookOutcome.NOTHING
    assert list(sockets.look(SETTINGS, known(path))) == []


def test_a_socket_that_is_served_stays_also_when_it_came_after_the_look(tmp_path: Path) -> None:
    """Case G6: whoever lives behind it must stay reachable."""
    path = tmp_path / "s"
    bound(path).close()
    [found] = sockets.look(SETTINGS, known(path))
    path.unlink()
    with bound(path):
        assert sockets.act(found, SETTINGS, known(path)).outcome is HookOutcome.KEPT
        assert [one.action for one in sockets.look(SETTINGS, known(path))] == ["keep"]
    assert path.exists()


@pytest.mark.parametrize("what", ["file", "link", "directory"])
def test_what_is_no_socket_stays(tmp_path: Path, what: str) -> None:
    """A recorded path proves nothing of what lies there now."""
    path, other = tmp_path / "s", tmp_path / "other"
    other.write_text("mine")
    if what == "link":
        path.symlink_to(other)
    elif what == "file":
        path.write_text("mine")
    else:
        path.mkdir()
    assert [one.action for one in sockets.look(SETTINGS, known(path))] == ["keep"]
    claimed = Finding("socket", str(path), DEAD, "", "remove")
    assert sockets.act(claimed, SETTINGS, known(path)).outcome is HookOutcome.KEPT
    assert os.path.lexists(path)
    assert other.read_text() == "mine"


def test_only_recorded_paths_of_ended_agents_are_touched(tmp_path: Path) -> None:
    """A finding that somebody made up, or of an agent that lives."""
    path = tmp_path / "s"
    bound(path).close()
    for agent_id in (ALIVE, "f" * 32):
        assert list(sockets.look(SETTINGS, known(path, agent_id))) == []
        claimed = Finding("socket", str(path), agent_id, "", "remove")
        assert sockets.act(claimed, SETTINGS, known(path, agent_id)).outcome is HookOutcome.KEPT
    claimed = Finding("socket", str(path), DEAD, "", "remove")
    assert sockets.act(claimed, SETTINGS, known(tmp_path / "t")).outcome is HookOutcome.KEPT
    assert path.exists()
