"""Agents that are real processes, and trees of theirs to be ended."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from tests.world import pids_with, wait_for
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.core.agent import Policy, Registration, Status
from watchdog.core.kill import KillStep, Polite
from watchdog.core.process import TreeMember
from watchdog.kill.terminate import Grace, TerminationPlan, TerminationResult, TreeTermination
from watchdog.probes.process_scan import ProcessScanner
from watchdog.processes import cgroups, identity
from watchdog.processes.signals import Guard

HOST = identity.this_host(None)
A = f"a-{os.getpid()}"  # the agent: a process with another test worker's marker is not its own
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Scene:
    """Agents that are real processes, and whatever they start; all that is left at the end is killed by pid."""

    def __init__(self, directory: Path, held: contextlib.ExitStack) -> None:
        self.dir = directory
        self.fleet = Fleet()
        executor = ThreadPoolExecutor(1)
        held.callback(executor.shutdown)
        self.scanner = ProcessScanner(self.fleet, executor, HOST)
        self.steps: list[str] = []
        self.graces: list[tuple[float, bool]] = []  # when each reported grace started, and whether all had TERM
        self.sent: list[tuple[str, list[int]]] = []
        self.before: dict[str, Callable[[], None]] = {}
        self.started: list[subprocess.Popen[bytes]] = []

    def python(self, code: str, cgroup: str | None = None) -> Agent:
        """An agent that runs this code until it has made a file `up`; `cgroup`: its own, where it starts."""
        argv = [sys.executable, "-c", f"import os, signal, subprocess, sys, time\nsys.stdin.readline()\n{code}"]
        environ = {**os.environ, "AGENT_WATCHDOG_ID": A, "SCENE": str(self.dir)}
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, env=environ, cwd=self.dir, start_new_session=True)
        self.started.append(process)
        if cgroup is not None:
            cgroups.create(cgroup)
            cgroups.move(process.pid, cgroup)
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(b"go\n")
        wait_for(lambda: (self.dir / "up").exists(), "the agent is up")
        return self.admit(A, process.pid, cgroup)

    def admit(self, agent_id: str, pid: int, cgroup: str | None = None) -> Agent:
        found = identity.read_identity(pid, HOST)
        reg = Registration(agent_id, agent_id, os.getuid(), HOST, identity.boot_id(), identity=found, cgroup=cgroup)
        agent = Agent(reg, Policy(), Status.RUNNING)
        self.fleet.add(agent)
        return agent

    def text(self, name: str) -> str:
        """What the file holds; "" when it is not there."""
        path = self.dir / name
        return path.read_text() if path.exists() else ""

    def end(
        self,
        agent: Agent,
        *,
        grace: float = 0.3,
        verify: float = 60.0,
        polite: Polite = Polite.MAIN_FIRST,
        **options: object,
    ) -> TerminationResult:
        """End the agent's tree; `before[STEP]` is done when that intent is committed."""
        plan = TerminationPlan(
            agent.agent_id,
            agent.identity,
            timedelta(seconds=grace),
            timedelta(seconds=verify),
            polite,
            cgroup=agent.reg.own_cgroup,
            **options,  # type: ignore[arg-type] # the test's own words
        )

        def guard() -> Guard:
            return Guard(host=HOST, protected=self.fleet.processes_but(plan.agent_id))

        return asyncio.run(TreeTermination(plan, self.scanner, Clock(), guard, self).run())

    # -- what it says, see `KillLog`

    async def before_signal(
        self, step: KillStep, members: list[TreeMember], snapshot: dict[str, object] | None
    ) -> None:
        self.steps.append(step)
        if step in self.before:
            self.before.pop(step)()

    def signalled(self, name: str, pids: list[int]) -> None:
        self.sent.append((name, pids))

    def refused(self, pid: int, why: str) -> None:
        pass

    async def grace_started(self, grace: Grace) -> None:
        self.graces.append(grace)

    def left(self) -> list[int]:
        return pids_with("SCENE", str(self.dir))

    def close(self) -> None:
        for _ in range(50):
            left = self.left()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.02)
        for process in self.started:
            process.wait()
