"""A hypothesis machine: families of real processes, a daemon in this process, and a model that says who must live.

The model knows what shows whose a process is: the mark, which all inherit but who was given an environment of his own;
else a living parent that is the agent's, or a look at /proc while that was so. A spared program and whatever stands
below it are nobody's. Nothing goes on between two steps: the event loop runs only while a rule lets it.
"""

import asyncio
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.faults.crash.own import admit, own_daemon
from watchdog.agents import judging
from watchdog.agents.agent import Agent
from watchdog.core.agent import Status
from watchdog.core.kill import KillOptions, Reason
from watchdog.registry.registry import Registry

PUPPET = Path(__file__).with_name("puppet.py")
SPARED = "tmux: server"
GRACE = 0.1  # seconds
LIMIT = 30.0  # seconds for whatever has to happen
MOST = 14  # living processes in one example
T = TypeVar("T")


@dataclass(eq=False)
class Process:
    """One puppet, as the model has it."""

    number: int
    pid: int
    pidfd: int
    orders: socket.socket
    parent: Self | None
    agent_id: str | None  # whose it was started to be; None: a bystander
    marked: bool
    main: bool = False
    known: bool = False  # a look has seen whose it is
    spared: bool = False
    stopped: bool = False
    alive: bool = True

    @property
    def dead(self) -> bool:
        """What the kernel says."""
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def ends(self) -> None:
        """Wait for it, and take it down."""
        assert select.select([self.pidfd], [], [], LIMIT)[0], f"{self.number} (pid {self.pid}) lives on"
        self.alive = False

    def order(self, *words: object) -> None:
        """Have it done."""
        self.orders.sendall(" ".join(map(str, words)).encode())
        if words[0] != "exit":
            assert self.orders.recv(100) == b"done\n"


@cache
def template() -> Path:
    """An empty registry, made once: the migrations take longer than an example."""
    path = Path(tempfile.mkdtemp(prefix="aw-", dir="/tmp"))
    Registry(f"sqlite:///{path}/registry.db").open().close()
    return path


def forget_template() -> None:
    """Remove it again."""
    shutil.rmtree(template())
    template.cache_clear()


async def nobody_looks(_: object) -> None:
    """At who has ended, before a rule says so."""


class Families(RuleBasedStateMachine):
    """One example: one daemon, whatever came to a random mind, and the end of all agents."""

    def __init__(self) -> None:
        super().__init__()
        self.dir = Path(tempfile.mkdtemp(prefix="aw-", dir="/tmp"))
        shutil.copy(template() / "registry.db", self.dir)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.dir / "puppets"))
        self.listener.listen(64)
        self.listener.settimeout(LIMIT)
        self.runner = asyncio.Runner()
        self.held = AsyncExitStack()
        daemon = own_daemon(self.dir, url=f"sqlite:///{self.dir}/registry.db", grace=GRACE)
        self.daemon = self.wait(self.held.enter_async_context(daemon))
        self.daemon.tracker.exits.subscribe(nobody_looks)
        self.started: list[subprocess.Popen[bytes]] = []
        self.processes: list[Process] = []
        self.agents: dict[str, Agent] = {}  # those that are open
        self.silent: set[str] = set()

    def wait(self, happening: Coroutine[Any, Any, T]) -> T:
        """Let the daemon go on until this is over."""
        return self.runner.run(happening)

    # -- what the model says

    def fenced(self, process: Process | None) -> bool:
        """Whether it is a spared program, or stands below one."""
        while process is not None and process.alive and not process.main:
            if process.spared:
                return True
            process = process.parent
        return False

    def belongs(self, process: Process | None, agent_id: str) -> bool:
        """Whether anything shows that it is this agent's."""
        if process is None or not process.alive or process.agent_id != agent_id or agent_id not in self.agents:
            return False
        shown = process.main or process.marked or process.known or self.belongs(process.parent, agent_id)
        return shown and not self.fenced(process)

    def tree(self, agent_ids: Iterable[str]) -> list[Process]:
        """All of these agents."""
        return [p for p in self.processes for agent_id in agent_ids if self.belongs(p, agent_id)]

    def looked(self) -> None:
        """The daemon has looked at /proc: whose anybody was now is remembered."""
        for process in self.tree(self.agents):
            process.known = True

    # -- making processes

    def arrived(self, parent: Process | None, agent_id: str | None, *, marked: bool, main: bool = False) -> Process:
        """The next one that connects."""
        orders, _ = self.listener.accept()
        orders.settimeout(LIMIT)
        number, pid = map(int, orders.recv(100).split())
        made = Process(number, pid, os.pidfd_open(pid), orders, parent, agent_id, marked, main)
        self.processes.append(made)
        return made

    def popen(self, agent_id: str | None) -> Process:
        """In a session of its own, a child of nobody in the model."""
        argv = [sys.executable, "-I", "-S", str(PUPPET), str(self.dir / "puppets"), str(len(self.processes))]
        environ = {} if agent_id is None else {"AGENT_WATCHDOG_ID": agent_id}
        self.started.append(subprocess.Popen(argv, env=environ, start_new_session=True, stdin=subprocess.DEVNULL))
        return self.arrived(None, agent_id, marked=agent_id is not None, main=agent_id is not None)

    def enrol(self, process: Process, parent: str | None) -> None:
        """As an agent of the id that it carries."""
        agent_id = process.agent_id
        assert agent_id is not None
        self.agents[agent_id] = self.wait(admit(self.daemon, process.pid, parent, agent_id))
        self.agents[agent_id].heartbeat.silence.lasted = timedelta()
        self.agents[agent_id].heartbeat.silence.doubts.late_looks = 0

    @property
    def living(self) -> list[Process]:
        return [p for p in self.processes if p.alive]

    @property
    def able(self) -> list[Process]:
        """Who can be told to do something."""
        return [p for p in self.living if not p.stopped]

    def some(self, data: st.DataObject, among: Iterable[Process]) -> Process:
        """One of them; its number is what a failure shows."""
        return self.processes[data.draw(st.sampled_from(sorted(p.number for p in among)), "process")]

    # -- rules: families

    @initialize(data=st.data())
    def a_family(self, data: st.DataObject) -> None:
        """So that there is something to happen to."""
        self.an_agent()
        self.a_child(data, "fork")

    @precondition(lambda self: len(self.living) < MOST)
    @rule()
    def registers(self) -> None:
        self.an_agent()

    def an_agent(self) -> None:
        """In a session of its own."""
        self.enrol(self.popen(secrets.token_hex(16)), None)

    @precondition(lambda self: len(self.living) < MOST and sum(p.agent_id is None for p in self.living) < 2)
    @rule()
    def a_bystander(self) -> None:
        self.popen(None)

    @precondition(lambda self: self.able and len(self.living) < MOST)
    @rule(data=st.data(), how=st.sampled_from(["fork", "setsid", "double", "bare"]))
    def has_a_child(self, data: st.DataObject, how: str) -> None:
        self.a_child(data, how)

    def a_child(self, data: st.DataObject, how: str, among: Iterable[Process] = ()) -> Process:
        """Of one of these, or of anybody."""
        parent = self.some(data, among or self.able)
        parent.order(how, len(self.processes))
        above = None if how == "double" else parent
        child = self.arrived(above, parent.agent_id, marked=parent.marked and how != "bare")
        child.spared = parent.spared and how != "bare"  # a fork keeps the name
        return child

    @precondition(lambda self: self.able and len(self.living) < MOST)
    @rule(data=st.data())
    def an_agent_inside(self, data: st.DataObject) -> None:
        """Of an agent, or of a bystander, whose session it leaves as well."""
        parent, agent_id = self.some(data, self.able), secrets.token_hex(16)
        parent.order("agent", len(self.processes), agent_id)
        child = self.arrived(parent, agent_id, marked=True, main=True)
        self.enrol(child, parent.agent_id if parent.agent_id in self.agents else None)

    @precondition(lambda self: any(not p.main for p in self.able))
    @rule(data=st.data())
    def becomes_a_spared_program(self, data: st.DataObject) -> None:
        process = self.some(data, [p for p in self.able if not p.main])
        process.order("name", *SPARED.split())
        process.spared = True

    @precondition(lambda self: self.able)
    @rule(data=st.data())
    def ignores_term(self, data: st.DataObject) -> None:
        self.some(data, self.able).order("deaf")

    @precondition(lambda self: self.able)
    @rule(data=st.data(), code=st.sampled_from([0, 3]))
    def exits(self, data: st.DataObject, code: int) -> None:
        process = self.some(data, self.able)
        process.order("exit", code)
        process.ends()

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def is_killed_by_somebody(self, data: st.DataObject) -> None:
        """A middle process, perhaps."""
        process = self.some(data, self.living)
        signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)
        process.ends()

    @precondition(lambda self: len(self.living) < MOST and self.agents)
    @rule(data=st.data(), how=st.sampled_from(["setsid", "bare"]), seen=st.booleans())
    def loses_its_parent(self, data: st.DataObject, how: str, seen: bool) -> None:
        """A middle process starts one more and is killed, perhaps after a look."""
        parents = [p for p in self.able if p.agent_id in self.agents and not p.main] or self.able
        if parents:
            parent = self.a_child(data, how, parents).parent
            if seen:
                self.the_daemon_looks()
            assert parent is not None
            signal.pidfd_send_signal(parent.pidfd, signal.SIGKILL)
            parent.ends()

    @precondition(lambda self: self.able)
    @rule(data=st.data())
    def is_stopped_by_somebody(self, data: st.DataObject) -> None:
        process = self.some(data, self.able)
        signal.pidfd_send_signal(process.pidfd, signal.SIGSTOP)
        process.stopped = True

    # -- rules: the daemon

    @precondition(lambda self: self.agents)
    @rule(data=st.data())
    def falls_silent(self, data: st.DataObject) -> None:
        agent = self.agents[data.draw(st.sampled_from(list(self.agents)), "agent")]
        self.daemon.tracker.sockets.drain(agent.agent_id)  # what it said before
        agent.heartbeat.silence.touched, agent.heartbeat.silence.lasted, agent.heartbeat.silence.doubts.late_looks = (
            None,
            timedelta(hours=9),
            9,
        )
        agent.heartbeat.silence.doubts.settled_until = timedelta()  # it was never healthy since
        self.silent.add(agent.agent_id)

    @precondition(lambda self: self.tree(self.agents))
    @rule(data=st.data())
    def beats(self, data: st.DataObject) -> None:
        """Anybody of its tree speaks for it."""
        process = self.some(data, self.tree(self.agents))
        if not process.stopped:
            assert process.agent_id is not None
            process.order("beat", self.agents[process.agent_id].notify_socket)
            self.silent.discard(process.agent_id)

    @precondition(lambda self: any(not (p.main or p.marked or p.known) for p in self.tree(self.agents)))
    @rule()
    def looks(self) -> None:
        self.the_daemon_looks()

    def the_daemon_looks(self) -> None:
        """At /proc."""
        self.wait(self.daemon.processes._scanner.trees())
        self.looked()

    @rule()
    def the_daemon_sweeps(self) -> None:
        """Who is silent is ended, and what an agent left that ended by itself."""
        self.the_daemon_looks()
        mains = {p.agent_id for p in self.living if p.main}
        own = {Status.COMPLETED, Status.FAILED}
        expected = {
            a: {Status.KILLED} if a in mains else own for a in self.agents if a in self.silent or a not in mains
        }
        agents = [self.agents[agent_id] for agent_id in expected]
        self.wait(self.daemon.sweeper.sweep())
        passed_over = [f"{agent.agent_id}: {judging.why(agent)}" for agent in agents if agent.ending.request_id is None]
        assert not passed_over, passed_over
        self.all_end(agents, [str(agent.ending.request_id) for agent in agents], expected)

    @precondition(lambda self: self.agents)
    @rule(data=st.data(), force=st.booleans(), twice=st.booleans())
    def are_ordered_to_end(self, data: st.DataObject, force: bool, twice: bool) -> None:
        """Some at once, each perhaps by two people."""
        ids = data.draw(st.lists(st.sampled_from(list(self.agents)), min_size=1, unique=True), "agents")
        agents = [self.agents[agent_id] for agent_id in ids]

        async def order() -> list[str]:
            options = KillOptions(force=force)
            asked = [
                self.daemon.kills.request(a, Reason.OPERATOR, options, "t") for a in agents for _ in range(1 + twice)
            ]
            return await asyncio.gather(*asked)

        requests = self.wait(order())
        assert len(set(requests)) == len(ids)
        self.all_end(agents, requests, {agent_id: {Status.KILLED} for agent_id in ids})

    def all_end(self, agents: list[Agent], requests: list[str], expected: dict[str, set[Status]]) -> None:
        """These, whole; nobody else has got a signal of ours."""
        self.looked()
        trees = {agent.agent_id: {p.pid for p in self.tree([agent.agent_id])} for agent in agents}
        dying = self.tree(expected)
        for request_id in requests:
            assert self.wait(self.daemon.kills.finished(request_id, LIMIT)) is not None, f"{request_id} is not done"
        for process in dying:
            process.ends()
        for agent in agents:
            row = self.wait(self.daemon.registry.read(self.daemon.registry.agents.get, agent.agent_id))
            assert row is not None and row.status in expected[agent.agent_id], row
            assert self.signalled(agent.agent_id) <= trees[agent.agent_id]
            del self.agents[agent.agent_id]
            self.silent.discard(agent.agent_id)

    def signalled(self, agent_id: str) -> set[int]:
        """Whoever got a signal for its sake, as the history says."""
        registry = self.daemon.registry.sync
        with registry.engines.begin(registry.engines.reading) as connection:
            rows = connection.exec_driver_sql(
                "SELECT evidence FROM lifecycle_event WHERE event = 'kill.signal_sent' AND agent_id = ?", (agent_id,)
            )
            return {pid for (evidence,) in rows for pid in json.loads(evidence)["pids"]}

    # -- what always holds

    @invariant()
    def who_must_live_lives_and_nobody_else(self) -> None:
        wrong = [p for p in self.processes if p.alive == p.dead]
        assert not wrong, [f"{p.number} {'died' if p.alive else 'lives'}" for p in wrong]

    def teardown(self) -> None:
        try:
            if self.agents:
                self.wait(self.daemon.processes._scanner.trees())
                agents = list(self.agents.values())
                requests = [
                    self.wait(self.daemon.kills.request(a, Reason.OPERATOR, KillOptions(force=True), "end"))
                    for a in agents
                ]
                self.all_end(agents, requests, {a.agent_id: {Status.KILLED} for a in agents})
            self.who_must_live_lives_and_nobody_else()
            assert self.daemon.kills.busy == 0
        finally:
            for process in self.processes:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)
                process.orders.close()
                os.close(process.pidfd)
            for started in self.started:
                started.wait()
            self.listener.close()
            self.wait(self.held.aclose())
            self.runner.close()
            shutil.rmtree(self.dir)
