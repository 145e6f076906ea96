"""What an owner's helper finds of dead agents: one kind's fault hides nothing, and an act trusts no look."""

import json
import subprocess
import sys
from pathlib import Path

from tests.owner.finders.test_sockets import SETTINGS, known
from watchdog.core import findings, hooks
from watchdog.core.findings import Finding
from watchdog.owner.finders import finders

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
