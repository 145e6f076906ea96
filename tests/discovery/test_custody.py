"""Handling of an agent that another daemon claims to hold: real processes, and that daemon's answer."""

import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.core.agent import Policy, Registration, Status
from watchdog.core.custody import DaemonProcess, Holder
from watchdog.discovery.custody import Custodians, _Neighbour
from watchdog.discovery.forwarder import Forwarder
from watchdog.helpers.pool import HelperPool
from watchdog.processes.identity import boot_id, read_identity

ME = os.geteuid()
SOCKET = "/run/agent-watchdog/control.sock"


@pytest.fixture
def agent() -> Iterator[Agent]:
    """Of our own uid, with a living process."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        main = read_identity(process.pid, "host")
        yield Agent(Registration("a", "alpha", ME, "host", boot_id(), identity=main), Policy(), Status.RUNNING)


class Room:
    """A daemon with a neighbour, started so much earlier or later, that claims to hold the agent."""

    def __init__(self, agent: Agent, started: int) -> None:
        self.vetoes: list[tuple[str, str]] = []
        self.events: list[str] = []
        told = SimpleNamespace(record=lambda event, _agent, _why: self.events.append(event))
        kills = SimpleNamespace(cancel_automatic=lambda one, why: self.vetoes.append((one.agent_id, why)))
        settings = SimpleNamespace(host="host", runtime_dir="/nowhere")
        parts: Any = told, HelperPool(), kills, settings, Forwarder()
        self.custodians = Custodians(Fleet(), Clock(), *parts)
        me, main = read_identity(os.getpid(), "host"), agent.identity
        assert me is not None and main is not None
        self.daemon = DaemonProcess(ME, os.getppid(), me.start_ticks + started)
        self.neighbour = _Neighbour(self.daemon, me, {(main.pid, main.start_ticks): ("b", "beta")})
        self.custodians._neighbours[SOCKET] = self.neighbour


def test_our_own_order_is_withdrawn_when_an_agent_is_left_to_another_daemon(agent: Agent) -> None:
    """Once: the order may be older than the answer. The held agent is reported with its name there."""
    room = Room(agent, started=-100)
    room.custodians.settle(agent)
    room.custodians.settle(agent)
    holder = Holder(room.daemon, SOCKET, "b", "beta")
    assert agent.owner.elsewhere == holder
    assert room.vetoes == [("a", f"watched by {holder}")]
    assert room.events == ["agent.elsewhere"]


def test_nothing_is_withdrawn_for_an_agent_that_stays_ours(agent: Agent) -> None:
    """The other one was started later."""
    room = Room(agent, started=100)
    room.custodians.settle(agent)
    assert agent.owner.elsewhere is None
    assert not room.vetoes and not room.events


def test_an_agent_that_is_taken_over_is_judged_again_and_nothing_is_withdrawn(agent: Agent) -> None:
    """Its silence begins when the other daemon no longer holds it."""
    room = Room(agent, started=-100)
    room.custodians.settle(agent)
    room.custodians._neighbours.clear()
    room.custodians.settle(agent)
    assert agent.owner.elsewhere is None and not agent.heartbeat.silence.lasted
    assert len(room.vetoes) == 1
    assert room.events == ["agent.elsewhere", "agent.taken_over"]
