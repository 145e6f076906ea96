"""The cases in which `hcom kill` and `hcom stop` answer, one row each: our line for it, where it goes, the exit status.

Where hcom says 1 for a wrong command line, we say 64; where it says "sent", we say what was proved.
"""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.cli.conftest import told
from tests.control.office import Office, make_office
from watchdog.agents.agent import Agent
from watchdog.core.agent import Status

RESUME = "cd /srv/w && claude --resume 11111111-2222-4333-8444-555555555555"
RETRY = "tmux kill-pane -t '%77'"


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    """limo lives; kopi has no pid; zara has ended, and a process of it lives on; gone was stopped."""
    monkeypatch.delenv("AGENT_WATCHDOG_ID", raising=False)
    for made in make_office():
        monkeypatch.setenv("AGENT_WATCHDOG_SOCKET", made.socket_path)
        made.register("gone", pid=made.process())
        made.ask("POST", "/v1/stop", {"targets": ["gone"]})
        made.register("limo", tags=["tm"], pid=made.process())
        made.register("kopi", tags=["none"], found=False)
        yield made


@pytest.mark.parametrize(
    ("words", "status", "out", "err"),
    [
        pytest.param(["kill"], 64, "", "TARGET", id="no target"),
        pytest.param(["kill", "nobody"], 1, "", "no agent is called 'nobody' (see: agent-watchdog list", id="unknown"),
        pytest.param(["kill", "4194000"], 1, "", "4194000 is not the pid of an agent", id="unknown pid"),
        pytest.param(["kill", "tag:absent"], 1, "", "no living agent has tag:absent", id="unknown tag"),
        pytest.param(["kill", "stalled"], 0, "nothing to do: no agent matches", "", id="nothing fits"),
        pytest.param(["stop", "stalled"], 0, "nothing to do: no agent matches", "", id="nothing to stop"),
        pytest.param(["kill", "limo"], 0, f"1 process ended\n  to resume: {RESUME}", "", id="killed"),
        pytest.param(["kill", "tag:tm"], 0, "limo", "", id="killed by tag"),
        pytest.param(["stop", "limo"], 0, f"to resume: {RESUME}", "", id="stopped"),
        pytest.param(["kill", "gone"], 0, "already stopped", "", id="already stopped"),
        pytest.param(["stop", "gone"], 0, "already stopped", "", id="stopped again"),
        pytest.param(["kill", "kopi"], 1, "", "use this instead: agent-watchdog stop kopi", id="no pid"),
        pytest.param(["kill", "tag:none"], 1, "", "use this instead: agent-watchdog stop kopi", id="no pid, by tag"),
        pytest.param(["kill", "all"], 1, "limo", "use this instead: agent-watchdog stop kopi", id="all"),
    ],
)
def test_a_case_has_its_line_and_exit_status(
    office: Office, capsys: pytest.CaptureFixture[str], words: list[str], status: int, out: str, err: str
) -> None:
    """What is as wanted on stdout, what is not on stderr; one bad target does not stop the others."""
    office.worker.more = {"resume": RESUME, "resumable": True}
    found, said, warned = told(capsys, *words)
    assert (found, out in said, err in warned) == (status, True, True), (said, warned)
    assert bool(said) is bool(out)
    assert bool(warned) is bool(err)


def test_a_pane_that_stays_is_1_with_the_command_that_closes_it(
    office: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kill itself succeeded, and says so."""
    office.worker.more = {"pane_cleanup_failed": True, "pane_retry_command": RETRY}
    status, said, warned = told(capsys, "kill", "limo")
    assert (status, "1 process ended" in said, RETRY in said, "its pane remains" in warned) == (1, True, True, True)
    office.register("mira", pid=office.process())
    status, said, _ = told(capsys, "kill", "mira", "--json")
    answer = json.loads(said)
    assert (status, answer["success"], answer["pane_retry_command"]) == (1, True, RETRY)


def test_what_outlived_an_ended_agent_is_named_with_it(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """hcom's "leftover process of stopped agent"."""
    limo = office.agent("limo")
    ghost = Agent(replace(limo.reg, name="zara"), limo.policy, Status.STOPPED)

    async def orphans() -> list[Agent]:
        return [ghost]

    office.context.reaper.orphans = orphans  # type: ignore[method-assign]
    status, said, _ = told(capsys, "kill", "orphans")
    assert (status, said.startswith("zara")) == (0, True)
    assert office.worker.asked[-1][1].value == "orphaned"
