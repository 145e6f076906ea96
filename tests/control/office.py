"""The control socket for tests: the real application on a real unix socket, with a real SQLite registry.

Only the kill worker is a fake: it answers what a test told it to, and closes the agent as the real one does. The
loop runs in a thread of its own, so that tests speak to it as clients do.
"""

import asyncio
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

from tests.agents.state_of import put
from watchdog.agents.admission import Admission
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.history import EventRecorder
from watchdog.agents.holds import Holds
from watchdog.agents.own_cgroup import CgroupPlacement
from watchdog.agents.registration import Registrar
from watchdog.agents.tracker import AgentTracker
from watchdog.client import client
from watchdog.clock import Clock
from watchdog.config.settings import load
from watchdog.control.callers import Callers
from watchdog.control.context import ControlContext
from watchdog.control.server import serve
from watchdog.core.agent import Status
from watchdog.core.kill import KillOptions, Reason
from watchdog.core.process import Identity, TreeMember
from watchdog.discovery.custody import Custodians
from watchdog.discovery.discovery import Discovery
from watchdog.discovery.forwarder import Forwarder
from watchdog.discovery.importer import SourceImporter
from watchdog.discovery.run_reports import RunReportImporter
from watchdog.discovery.stale_entries import StaleEntries
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.helpers.users import Users
from watchdog.intake.notify_sockets import NotifySockets
from watchdog.kill.safeguards import Safeguards
from watchdog.kill.worker import KillWorker
from watchdog.processes.identity import boot_id
from watchdog.reaper.reaper import Reaper
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.sweep.sweeper import Sweeper
from watchdog.telemetry.logger import EventLogger, get_logger
from watchdog.telemetry.metrics import Metrics, NoCounts

T = TypeVar("T")
HOST = "test-host"
ME = os.getuid()
ROOT = ME == 0
ALICE, BOB = 61001, 61002  # uids without a user

# Raw HTTP with nothing but the standard library: runs as another uid, which may not read our package.
_CALL = """
import json, socket, sys
path, method, target, body = sys.argv[1:]
s = socket.socket(socket.AF_UNIX); s.settimeout(60); s.connect(path)
head = f"{method} {target} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n"
head += f"Content-Length: {len(body.encode())}\\r\\n\\r\\n"
s.sendall((head + body).encode())
got = b""
while piece := s.recv(65536):
    got += piece
head, _, content = got.partition(b"\\r\\n\\r\\n")
print(json.dumps([int(head.split()[1]), content.decode()]))
"""


@dataclass
class FakeWorker:
    """Takes requests; ends an agent at once unless `stubborn` holds its name."""

    office: "Office"
    stubborn: set[str] = field(default_factory=set)
    asked: list[tuple[str, Reason, KillOptions, str]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    more: dict[str, object] = field(default_factory=dict)  # of each outcome
    outcomes: dict[str, dict[str, object]] = field(default_factory=dict)

    async def scan(self) -> None:
        """Nothing: agents of the office have the trees that their test gives them."""

    async def request(self, agent: Agent, reason: Reason, options: KillOptions, by: str, why: str) -> str:
        self.asked.append((agent.reg.name, reason, options, by))
        request_id = f"request-{len(self.asked)}"
        stays = agent.reg.name in self.stubborn
        self.outcomes[request_id] = {
            "success": not stays,
            **({"error": "kill_failed"} if stays else {}),
            "agent_id": agent.agent_id,
            "action": "force_kill" if options.force else "graceful_kill",
            "pid": agent.identity.pid if agent.identity else None,
            "kill_signal": "SIGKILL" if options.force else "SIGTERM",
            "task_id": agent.reg.task_id,
            "killed_at": "2026-01-01T00:00:00Z",
            "grace_period_seconds": 0.0 if options.force else 10.0,
            "killed_gracefully": not options.force,
            "message": "something of it lives" if stays else "1 process ended",
            "processes": [{"pid": 1234, "name": "agent", "how": "after SIGTERM"}],
            "status": "killed",
            "cleanup": [],
            **self.more,
        }
        if not stays:
            registry = self.office.context.registry
            to = Status.STOPPED if reason is Reason.STOP else Status.KILLED
            now = self.office.context.now()
            await registry.write(
                registry.agents.transition, agent.agent_id, {agent.status}, to, now=now, who=by, why=why
            )
            self.ended.append(agent.reg.name)
            self.office.context.registrar.tracker.forget(agent)
        return request_id

    async def finished(self, request_id: str, seconds: float, cleanup: float | None = None) -> dict[str, object] | None:
        return self.outcomes[request_id]


class Recorder(EventLogger):
    """Keeps the events, and refuses unlisted ones as the real log does in tests."""

    def __init__(self) -> None:
        super().__init__(get_logger()._logger)
        self.events: list[dict[str, object]] = []

    def event(self, event: str, /, *, exc_info: BaseException | bool | None = None, **fields: object) -> None:
        super().event(event, exc_info=exc_info, **fields)
        if isinstance(exc_info, BaseException):
            fields["error"] = repr(exc_info)
        self.events.append({"event": event, **fields})


class NoHelpers(HelperPool):
    """No owner's helper can be started."""

    async def call(self, uid: int, call: str, args: Mapping[str, object], timeout: float) -> Any:
        raise OwnerCallFailed("not_started", "no helper in this office")

    async def call_in_fresh_helper(
        self, uid: int, call: str, args: Mapping[str, object], timeout: float, option: str = "--alone"
    ) -> Any:
        raise OwnerCallFailed("not_started", "no helper in this office")


class NothingLeft:
    """A reaper that finds nothing."""

    async def orphans(self) -> list[Agent]:
        return []

    async def reap(self, may: object, by: str, *, dry_run: bool) -> list[dict[str, object]]:
        return []


class NoSweeper:
    """Whose looks change nothing: ages are what a test made them."""

    def present(self, agent: Agent) -> Agent:
        return agent


class Said(NoCounts):
    """What the office's daemon says of itself, and counts."""

    def __init__(self, office: "Office") -> None:
        self._office = office

    def facts(self) -> dict[str, object]:
        return {"mode": "enforce"}

    def figures(self) -> bytes:
        return self._office.metrics.text()

    def no_space(self, uid: int) -> str | None:
        return None

    def hold_counts(self) -> dict[str, int]:
        context = self._office.context
        return {"operator": len(context.holds.current(context.now()))}


class NoReload:
    """Reads nothing."""

    async def ask(self) -> dict[str, object]:
        return {}


class Office:
    """A served context."""

    def __init__(self, directory: Path, config: str = "") -> None:
        self.directory = directory
        self.socket_path = str(directory / "control.sock")
        self.worker = FakeWorker(self)
        self.log = Recorder()
        self.looked = 0
        self.processes: list[subprocess.Popen[bytes]] = []
        file = directory / "agent-watchdog.toml"
        file.write_text(config)
        file.chmod(0o600)
        settings = load(str(file), environ={"HOME": str(directory)})
        self.settings = replace(settings, host=HOST, runtime_dir=str(directory))
        self._up = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    # -- the daemon's side

    def start(self) -> None:
        """Serve; a second start plays a restarted daemon on the same registry."""
        self._up.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._up.wait(60)
        assert self._failure is None, self._failure

    def stop(self) -> None:
        if self._thread is not None:
            self.loop.call_soon_threadsafe(self._told.set)
            self._thread.join(60)
            assert not self._thread.is_alive()
            self._thread = None

    async def _serve(self) -> None:
        self.loop, self._told = asyncio.get_running_loop(), asyncio.Event()
        registry = AsyncRegistry(Registry(f"sqlite:///{self.directory}/registry.db").open())
        fleet, holds, clock, kills = Fleet(), Holds(), Clock(), cast("KillWorker", self.worker)
        notify = str(self.directory / "notify")
        os.makedirs(notify, 0o711, exist_ok=True)
        self.metrics = metrics = Metrics()
        self.users = Users(Clock(), self.log, str(self.directory / "subuid"))
        await self.users.begin()
        helpers, recorder = NoHelpers(), EventRecorder(registry, clock, self.log)
        tracker = AgentTracker(fleet, NotifySockets(notify), clock, self.log)
        tracker.look_soon = self._look  # type: ignore[method-assign] # counted here, and there are no sweeps
        admission = Admission(self.users, clock, metrics, self.log)
        registrar = Registrar(fleet, registry, clock, self.settings, tracker, admission, recorder)
        forwarder = Forwarder()
        custodians = Custodians(fleet, clock, recorder, helpers, kills, self.settings, forwarder)
        stale = StaleEntries(registry, clock, self.settings, helpers, recorder)
        sources = SourceImporter(self.settings, clock, registrar, stale, custodians, helpers, recorder)
        reports = RunReportImporter(registrar, holds, kills, clock, helpers, recorder, str(self.directory))
        self.context = ControlContext(
            fleet=fleet,
            registry=registry,
            registrar=registrar,
            recorder=recorder,
            kill_worker=kills,
            holds=holds,
            safeguards=Safeguards(self.settings, registry, clock, holds, self.log, self.users),
            reaper=cast("Reaper", NothingLeft()),
            helpers=helpers,
            discovery=Discovery(forwarder, custodians, stale, sources, reports),
            sweeper=cast("Sweeper", NoSweeper()),
            placement=CgroupPlacement(fleet, registry, self.log),
            callers=Callers(admission, metrics, recorder, clock),
            status=(said := Said(self)),
            reload=NoReload(),
        )
        metrics.count(said)
        try:
            async with serve(self.context):
                self._up.set()
                await self._told.wait()
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._up.set()
            tracker.close()
            self.context.discovery.forwarder.close()
            registry.close()

    def _look(self) -> None:
        self.looked += 1

    def on_loop(self, work: Callable[[], T] | Callable[[], Awaitable[T]]) -> T:
        """Run something where the fleet lives."""

        async def run() -> Any:
            result = work()
            return await result if isinstance(result, Awaitable) else result

        coroutine: Coroutine[Any, Any, T] = run()
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def agent(self, name: str) -> Agent:
        """The living agent of that name, as the daemon has it."""
        return next(agent for agent in self.context.fleet if agent.reg.name == name)

    def age(self, name: str, silence: float = 0.0, **changes: Any) -> Agent:
        """Make an agent look as if it had been watched silent for that long."""
        agent = self.agent(name)

        def work() -> None:
            put(agent, silence=timedelta(seconds=silence), **changes)

        self.on_loop(work)
        return agent

    # -- the clients' side

    def ask(self, method: str, path: str, body: object | None = None) -> tuple[int, Any]:
        """One request of our own uid."""
        return client.request(method, path, body, socket_path=self.socket_path, timeout=20)

    def ask_as(self, uid: int, method: str, path: str, body: object | None = None, **groups: Any) -> tuple[int, Any]:
        """One request of another uid, from a process of its own. Needs root."""
        text = "" if body is None else json.dumps(body)
        who: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": []} | groups
        done = subprocess.run(
            ["/usr/bin/python3", "-I", "-c", _CALL, self.socket_path, method, path, text],
            **who,
            capture_output=True,
            text=True,
            timeout=30,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        status, content = json.loads(done.stdout)
        return status, json.loads(content) if content.startswith(("{", "[")) and "\n" not in content else content

    def register(self, name: str, uid: int | None = None, *, found: bool = True, **body: object) -> str:
        """A registered agent's id; `found`: by its marker a scan has found a process of its tree."""
        whole = {"name": name, **body}
        if uid is None:
            status, answer = self.ask("POST", "/v1/agents", whole)
        else:
            status, answer = self.ask_as(uid, "POST", "/v1/agents", whole)
        assert status == 201, answer
        if found:
            here = Identity(HOST, boot_id(), 4_000_000, 1)  # no process: beyond what the kernel gives here
            agent = self.context.fleet.get(str(answer["agent_id"]))
            assert agent is not None
            agent.tree.members = (TreeMember(here, 1, ME if uid is None else uid, "agent", "S", "marker"),)
        return str(answer["agent_id"])

    def process(self, uid: int | None = None) -> int:
        """The pid of a process that only sleeps."""
        extra: dict[str, Any] = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        process = subprocess.Popen(["sleep", "600"], cwd="/", **extra)
        self.processes.append(process)
        return process.pid

    def end_process(self, pid: int) -> None:
        """End one of ours and reap it."""
        process = next(process for process in self.processes if process.pid == pid)
        process.kill()
        process.wait(60)

    def connect(self) -> socket.socket:
        """A bare connection."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        connection.connect(self.socket_path)
        return connection

    def close(self) -> None:
        self.stop()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(60)


def make_office(config: str = "") -> Iterator[Office]:
    """An office in a directory that every uid may enter."""
    with tempfile.TemporaryDirectory(prefix="awc-", dir="/tmp") as name:
        os.chmod(name, 0o755)
        office = Office(Path(name), config)
        office.start()
        try:
            yield office
        finally:
            office.close()


def wait_for(look: Callable[[], T], what: str, seconds: float = 20.0) -> T:
    """The first true answer of `look`, within a deadline."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)
    return found
