"""`register`, against the real control socket."""

import json
import os
import shlex
import subprocess

import pytest

from tests.cli.conftest import told
from tests.control.office import Office


def test_register_prints_lines_for_eval(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """`eval "$(... register ...)"` sets the agent's environment, quoted or not; the id is in a comment."""
    words = ["register", "--name", "alpha", "--stall-after", "2m", "--tag", "x", "--tag", "y", "--task", "T-1"]
    status, out, _ = told(capsys, *words, "--pid", str(office.process()), "--worktree", ".")
    assert status == 0
    agent = office.agent("alpha")
    assert (agent.reg.tags, agent.reg.task_id, agent.reg.worktree) == (("x", "y"), "T-1", os.getcwd())
    for script in (f"eval {shlex.quote(out)}", f"text={shlex.quote(out)}; eval $text"):
        shell = subprocess.run(
            ["sh", "-ec", f'{script}\necho "$AGENT_WATCHDOG_ID $AGENT_WATCHDOG_SOCKET"'],
            capture_output=True,
            text=True,
            timeout=60,
            env={"PATH": os.environ["PATH"]},
        )
        assert shell.stdout.split() == [agent.agent_id, office.socket_path], shell.stderr
    assert f"# agent {agent.agent_id} (alpha)" in out
    status, out, _ = told(capsys, "register", "--name", "beta", "--json", "--beat-every", "4h")
    answer = json.loads(out)
    assert (status, answer["name"]) == (0, "beta")
    assert "raised" in answer["notes"][0]


def test_register_says_what_is_wrong(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """The daemon's words, and exit 64 for a request that cannot be right, 1 for one that does not fit now."""
    status, _, err = told(capsys, "register", "--name", "all")
    assert (status, "name:" in err) == (64, True)
    assert told(capsys, "register", "--name", "a", "--temp-dir", "auto")[0] == 64
    office.register("alpha")
    assert told(capsys, "register", "--name", "alpha")[0] == 1
    assert told(capsys, "register", "--name", "alpha", "--replace")[0] == 0
    status, _, err = told(capsys, "register", "--name", "b", "--worktree", "/nowhere/w")
    assert (status, err.splitlines()[1:]) == (0, ["agent-watchdog: --worktree /nowhere/w does not exist yet"])
    assert err.startswith("agent-watchdog: no --pid: it counts as starting")
    assert told(capsys, "register", "--name", "c", "--queued")[2] == ""


def test_the_parent_is_the_agent_in_whose_environment_one_registers(
    office: Office, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A living one; a marker of an agent that has ended is no error."""
    parent = office.register("alpha")
    monkeypatch.setenv("AGENT_WATCHDOG_ID", parent)
    assert told(capsys, "register", "--name", "child")[0] == 0
    assert office.agent("child").reg.parent_id == parent
    office.ask("POST", "/kill", {"targets": ["alpha"]})
    assert told(capsys, "register", "--name", "later")[0] == 0
    assert office.agent("later").reg.parent_id is None
