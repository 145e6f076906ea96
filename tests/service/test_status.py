"""The daemon's status in one line, and its agents and holds as metrics: values in, text out.

The parts that it reads are values here; those of a running daemon: tests/systemd/test_service.py.
"""

import json
import os
import tempfile
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.agents.state_of import put
from tests.registry.samples import NOW
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.holds import Holds
from watchdog.clock import Clock
from watchdog.concurrency import threads
from watchdog.config.settings import load
from watchdog.core.agent import Policy, Registration, State, Status, Verdict
from watchdog.processes.bounded import Hung
from watchdog.registry.rows import HoldRow
from watchdog.service.status import DaemonStatus
from watchdog.telemetry.queue_handler import LogHealth


@pytest.fixture(autouse=True)
def _nothing_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the calls that another test left hanging in this process."""
    monkeypatch.setattr(threads, "overdue", dict)


def made(*agents: Agent, **changes: Any) -> DaemonStatus:
    """A daemon at rest, except for `changes`."""
    fleet, holds = Fleet(), Holds()
    for agent in agents:
        fleet.add(agent)
    holds.put(HoldRow(1, None, "deploy", 0, NOW))
    parts: dict[str, Any] = {
        "trouble": None,
        "in_use": False,
        "log_error": None,
        "troubles": [],
        "problems": [],
        "busy": 0,
        "hung": {},
        **changes,
    }
    with tempfile.NamedTemporaryFile(suffix=".toml") as empty:
        settings = load(empty.name)
    watch = SimpleNamespace(
        fleet=fleet,
        holds=holds,
        safeguards=SimpleNamespace(lasting=lambda: ["load"], kinds=lambda: {"load": 1}),
        kills=SimpleNamespace(busy=parts["busy"]),
        processes=SimpleNamespace(services=[]),
        stats=SimpleNamespace(last_sweep=None, hung=parts["hung"]),
        placement="scope",
    )
    storage = SimpleNamespace(
        persistence=SimpleNamespace(trouble=parts["trouble"]),
        sink=SimpleNamespace(health=lambda: LogHealth("stderr", 0, parts["log_error"])),
        reserve=SimpleNamespace(in_use=parts["in_use"], facts=dict),
        shares=SimpleNamespace(facts=list),
        troubles=SimpleNamespace(facts=lambda: parts["troubles"]),
    )
    reload = SimpleNamespace(problems=parts["problems"], waiting=[])
    return DaemonStatus(settings, Clock(), *cast("Any", (watch, storage, reload)))


def agent(name: str, verdict: Verdict | None = None, state: State | None = None) -> Agent:
    reg = Registration(name * 32, name, os.geteuid(), "host", "boot")
    made = Agent(reg, Policy(), Status.RUNNING)
    put(made, verdict=verdict, state=state)
    return made


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"trouble": "gone"}, "registry unavailable, kills suspended (see `status`, `doctor`)"),
        ({"in_use": True}, "the registry's disk is full: its reserve is in use"),
        ({"log_error": "no space"}, "the log (stderr) cannot be written: no space"),
        ({"troubles": [{"level": "error"}, {"level": "warning"}]}, "1 error of its own (status, doctor)"),
        ({"troubles": [{"level": "error"}] * 2}, "2 errors of its own (status, doctor)"),
        ({"problems": ["x: unknown key"]}, "the configuration file cannot be used, the former one holds"),
    ],
)
def test_the_line_reports_errors_after_the_normal_state(changes: dict[str, object], words: str) -> None:
    """`systemctl status` shows it."""
    assert made(agent("a"), **changes).line() == "; ".join(filter(None, ["watching 1 agent, 0 being killed", words]))


def test_the_line_counts_agents_and_kills() -> None:
    """None, and several."""
    assert made(busy=2).line() == "watching 0 agents, 2 being killed"
    assert made(agent("a"), agent("b")).line().startswith("watching 2 agents,")


def test_facts_are_serialisable_and_name_unreadable_processes() -> None:
    """By pid, in order."""
    hung = {7: Hung(7, "cmdline", 1000, 0.0), 3: Hung(3, "environ", 0, 0.0)}
    facts = json.loads(json.dumps(made(hung=hung, busy=1).facts()))
    assert [one["file"] for one in facts["unreadable"]] == ["/proc/3/environ", "/proc/7/cmdline"]
    assert (facts["last_sweep"], facts["being_ended"], facts["lasting_doubts"]) == (None, 1, ["load"])
    assert facts["log"] == {"target": "stderr", "lost": 0, "error": None}


def test_metrics_count_living_agents_and_holds_in_force() -> None:
    """One that was not judged yet has no verdict."""
    daemon = made(agent("a", Verdict.HEALTHY), agent("b", Verdict.HEALTHY, State.WAITING), agent("c"))
    assert daemon.verdicts() == {"healthy": 2, "none": 1}
    assert daemon.needs_person() == 1
    assert daemon.hold_counts() == {"operator": 1, "load": 1}
