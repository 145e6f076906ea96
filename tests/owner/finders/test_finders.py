"""What an owner's helper finds of dead agents: one kind's fault hides nothing, and an act trusts no look."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from watchdog.core import findings, hooks
from watchdog.core.findings import Finding, KnownAgents
from watchdog.core.hooks import HookOutcome
from watchdog.owner.finders import finders, sockets

SETTINGS = hooks.CleanupSettings()
DEAD, ALIVE = "d" * 32, "a" * 32


def known(path: Path, agent_id: str = DEAD) -> KnownAgents:
    return KnownAgents(frozenset({ALIVE}), {DEAD: 60.0}, sockets={agent_id: str(path)})


def bound(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(str(path))
    return made


def test_values_come_back_as_they_were_sent() -> None:
    """Also a path that is no UTF-8; what is no finding is refused."""
    one = Finding("socket", "/tmp/\udcff", DEAD, "why", "keep", 12)
    assert findings.finding_of(findings.finding_json(one)) == one
    everything = KnownAgents(
        frozenset({ALIVE}), {DEAD: 1.0}, {DEAD: "/t"}, {DEAD: "/w"}, {DEAD: "/s"}, ("/c",), (("/p", "x"),)
    )
    assert findings.known_of(findings.known_json(everything)) == everything
    told = findings.finding_json(one)
    wrong: list[object] = [{}, [], {**told, "action": "burn"}, {**told, "bytes": "1"}]
    for data in wrong:
        with pytest.raises((ValueError, TypeError)):
            findings.finding_of(data)


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


# The helper with finders of its own: one raises, one never ends, one finds for ever, one hangs after its first word.
STRANGE = """
import json, sys, time
from watchdog.owner import bounded_child, helper, paths
from watchdog.owner.finders import finders, sockets
from watchdog.core.findings import Finder, Finding

def broken(*_):
    raise OSError("no disk")

def endless(*_):
    while True:
        yield Finding("endless", "/x", None, "again", "keep")

def hangs(*_):
    yield Finding("hangs", "/y", None, "the first", "keep")
    paths.open_parent("/tmp/hung")
    time.sleep(600)

finders.FINDERS = {f.__name__: Finder(f, sockets.act) for f in (broken, hangs, endless)}
bounded_child.become_subreaper()
print(json.dumps(helper.reap_look(json.loads(sys.argv[1]), json.loads(sys.argv[2]), 6.0)))
"""


def test_a_finder_that_fails_hangs_or_floods_hides_nothing_of_the_others(tmp_path: Path) -> None:
    """Each has its share of the time; what it had found by then counts, and where it hangs is named (case O36)."""
    asked = [json.dumps(hooks.settings_json(SETTINGS)), json.dumps(findings.known_json(known(tmp_path)))]
    argv = [sys.executable, "-c", STRANGE, *asked]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as helper:  # ends with its stdin
        assert helper.stdout is not None
        answer = json.loads(helper.stdout.readline())
    kinds = [one["kind"] for one in answer["findings"]]
    assert (kinds.count("hangs"), kinds.count("endless")) == (1, finders.LOOK_LIMIT)
    assert answer["problems"] == [
        "broken: OSError: no disk",
        "hangs: ended after 2 s, at work in /tmp/hung; what it had found by then counts",
    ]


def test_an_act_on_an_unknown_kind_or_on_what_is_kept_does_nothing(tmp_path: Path) -> None:
    """The daemon may be older or newer than the helper."""
    assert finders.act(Finding("gone", "/x", None, "", "remove"), SETTINGS, known(tmp_path)).outcome == "failed"
    assert finders.act(Finding("socket", "/x", None, "", "keep"), SETTINGS, known(tmp_path)).outcome == "kept"
