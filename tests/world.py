"""A small world for end-to-end tests: a real daemon, its client, and agents that are real processes.

Everything waits on an event with a deadline. Everything that was started is ended by its own handle or by the
processes that carry this world's marker directory in their environment.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from tests.nursery import Nursery
from tests.postgresql import Server
from watchdog.client import client

BIN = Path(sys.executable).parent
DAEMON = (str(BIN / "agent-watchdogd"),)
AGENTS = Path(__file__).parent / "scripted_agents"
PATIENCE = 60.0  # seconds for what must come: a machine with other work is slow, and only a failure takes them all
ENDED = frozenset({"completed", "failed", "killed", "stopped"})  # statuses, of which the log has a line
T = TypeVar("T")


def wait_for(look: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
    """The first true answer of `look`, within a deadline. A key that is not there yet (an agent) is no answer."""
    deadline = time.monotonic() + seconds
    pause = 0.02
    while True:
        missing = None
        try:
            found = look()
        except KeyError as error:
            found, missing = None, error
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}") from missing
        time.sleep(pause)
        pause = min(0.1, pause * 1.2)  # a look is often a request: forty in a second were a tenth of a processor


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()  # a process may give itself any bytes as its name
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(b")")[2].split()[0] not in b"ZX"


def environ_of(pid: int) -> dict[str, str]:
    items = _environ(pid).decode(errors="replace").split("\0")
    return dict(item.split("=", 1) for item in items if "=" in item)


def _environ(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""


def started_at(pid: int) -> str | None:
    """Start ticks of a living process: with its pid they say which one it is. None: dead or gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in b"ZX" else fields[19].decode()


def pids_with(key: str, value: str) -> list[int]:
    """Living processes whose environment holds key=value. Each test asks at its end, of all that the machine runs."""
    found = (int(name) for name in os.listdir("/proc") if name.isdigit())
    item = f"{key}={value}".encode()
    named = [pid for pid in found if pid != os.getpid() and item in _environ(pid).split(b"\0")]
    return [pid for pid in named if alive(pid)]


def end_all_with(key: str, value: str) -> None:
    """End the processes whose environment holds key=value, and what they start meanwhile; none lives afterwards."""
    deadline = time.monotonic() + PATIENCE
    while left := pids_with(key, value):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert time.monotonic() < deadline, f"processes that SIGKILL does not end: {left}"
        time.sleep(0.02)


class World:
    """One daemon with its directories, and whatever a test starts in it."""

    server: Server | None = None  # where worlds have their registries; None: a SQLite file each (tests/e2e/conftest.py)
    nursery: Nursery | None = (
        None  # where daemons started plainly are forked (the fixture `nursery`, tests/conftest.py)
    )

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.dir = directory
        self.registry_url = self.server.database() if self.server else ""
        self.runtime = directory / "r"
        self.state = directory / "s"
        for made in (self.runtime, self.state):
            made.mkdir(mode=0o700)
        self.temporary = directory / "tmp"  # what an agent whose daemon is killed leaves goes with the world
        self.temporary.mkdir()
        self.temporary.chmod(0o1777)
        self.config = directory / "config.toml"
        self.log = directory / "daemon.log"
        self._reading = threading.Lock()
        self._read = 0  # bytes of the log, and the events in them: it only grows
        self._events: list[dict[str, Any]] = []
        self.socket = str(self.runtime / "control.sock")
        self.daemon: subprocess.Popen[bytes] | None = None
        self.started: list[subprocess.Popen[Any]] = []
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("AGENT_WATCHDOG", "NOTIFY", "GIT_"))},
            "AGENT_WATCHDOG_SOCKET": self.socket,
            "WORLD": str(directory),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(directory),
            "TMPDIR": str(self.temporary),
            "PYTHON": sys.executable,
        }
        self.configure(**settings)

    def configure(self, **tables: Mapping[str, Any]) -> None:
        """Write the configuration: short times, no mass stall, what a test asks for on top."""
        base: dict[str, dict[str, Any]] = {
            "daemon": {"state_dir": str(self.state), "runtime_dir": str(self.runtime)},
            "registry": {"url": self.registry_url},
            "sweep": {"interval_seconds": 0.5},
            "stall": {"after_seconds": 3, "start_limit_seconds": 30},
            "kill": {"grace_seconds": 3, "verify_seconds": 60, "max_per_minute": 1000},
            "hold": {"mass_stall_count": 1000, "cpu_pressure_percent": 100},
        }
        for table, keys in tables.items():
            base.setdefault(table, {}).update(keys)
        lines = []
        for table, keys in base.items():
            lines.append(f"[{table}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        self.config.write_text("\n".join(lines) + "\n")

    # -- the daemon

    def start(
        self,
        *options: str,
        wait: bool = True,
        prefix: tuple[str, ...] = (),
        daemon: tuple[str, ...] = DAEMON,
        **environ: str,
    ) -> None:
        """Start the daemon and wait until it says that it is ready; `daemon`: the command that it is started by."""
        before = len(self.events())
        command, whole = [*prefix, *daemon, "--config", str(self.config), *options], {**self.environ, **environ}
        with self.log.open("ab") as log:
            if self.nursery is not None and not prefix and not environ and daemon == DAEMON:
                registry = self.state / "registry.db"
                if self.daemon is None and not self.registry_url and not registry.exists():
                    shutil.copy(self.nursery.registry(), registry)
                self.daemon = self.nursery.start(command, whole, log.fileno())
            else:
                self.daemon = subprocess.Popen(
                    command,
                    stderr=log,
                    stdout=subprocess.DEVNULL,
                    stdin=subprocess.DEVNULL,
                    env=whole,
                    start_new_session=True,
                )
        if wait:
            self.wait_event("daemon.ready", after=before)

    def stop(self) -> int:
        """Ask the daemon to end, and wait."""
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGTERM)
        return self.daemon.wait(PATIENCE)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """One statement on the registry, by somebody with no respect for constraints."""
        if self.server is not None:
            return self.server.sql(statement, self.registry_url)
        registry = sqlite3.connect(self.state / "registry.db", isolation_level=None)
        try:
            registry.execute("PRAGMA ignore_check_constraints = ON")
            return registry.execute(statement).fetchall()
        finally:
            registry.close()

    def crash(self) -> None:
        """SIGKILL."""
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait(PATIENCE)

    def events(self) -> list[dict[str, Any]]:
        """All log events so far, as JSON; what is no JSON (a traceback) fails the test that reads it."""
        with self._reading:
            if not self.log.exists():
                return []
            with self.log.open("rb") as log:
                log.seek(self._read)
                for line in log:
                    if not line.endswith(b"\n"):  # on its way
                        break
                    self._read += len(line)
                    if line.startswith(b"{"):
                        self._events.append(json.loads(line))
            return list(self._events)

    def wait_event(self, event: str, seconds: float = PATIENCE, after: int = 0, **fields: Any) -> dict[str, Any]:
        """The first such event with those fields, within a deadline."""

        def look() -> dict[str, Any] | None:
            if self.daemon is not None and self.daemon.poll() not in (None, 0, -9):
                raise AssertionError(f"the daemon ended with {self.daemon.returncode}:\n{self.log.read_text()[-3000:]}")
            for entry in self.events()[after:]:
                if entry["event"] == event and all(entry.get(k) == v for k, v in fields.items()):
                    return entry
            return None

        try:
            return wait_for(look, f"{event} {fields}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log.read_text()[-4000:]}") from None

    def count(self, event: str, **fields: Any) -> int:
        return sum(e["event"] == event and all(e.get(k) == v for k, v in fields.items()) for e in self.events())

    # -- clients and agents

    def cli(self, *words: str, check: bool = True, **environ: str) -> subprocess.CompletedProcess[str]:
        """One run of the client."""
        done = subprocess.run(
            [str(BIN / "agent-watchdog"), *words],
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=100,
            stdin=subprocess.DEVNULL,
            cwd=self.dir,
        )
        fine = (0, 1) if words[:1] == ("status",) else (0,)  # its 1 is a verdict
        assert not check or done.returncode in fine, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *words: str, check: bool = True) -> Any:
        """One run of the client with --json."""
        return json.loads(self.cli(*words, "--json", check=check).stdout)

    def run(self, name: str, *command: str, options: tuple[str, ...] = (), **environ: str) -> subprocess.Popen[bytes]:
        """Start an agent through `run`; returns the wrapper."""
        with (self.dir / f"{name}.out").open("wb") as out:
            wrapper = subprocess.Popen(
                [str(BIN / "agent-watchdog"), "run", "--name", name, *options, "--", *command],
                env={**self.environ, **environ},
                cwd=self.dir,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(wrapper)
        return wrapper

    def ask(self, method: str, path: str, body: object | None = None) -> tuple[int, dict[str, Any]]:
        """One request on the control socket, of our own uid."""
        return client.request(method, path, body, socket_path=self.socket, timeout=PATIENCE)

    def spawn(self, *command: str, **environ: str) -> subprocess.Popen[bytes]:
        """A process that no `run` watches over."""
        process = subprocess.Popen(
            command,
            env={**self.environ, **environ},
            cwd=self.dir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def registered(
        self, name: str, *command: str, environ: Mapping[str, str] | None = None, **body: Any
    ) -> subprocess.Popen[bytes]:
        """An agent as an orchestrator starts it: register, spawn with the answer's environment, tell the pid."""
        status, answer = self.ask("POST", "/v1/agents", {"name": name, **body})
        assert status == 201, answer
        process = self.spawn(*command, **answer["env"], **(environ or {}))
        status, answer = self.ask("PATCH", f"/v1/agents/{answer['agent_id']}", {"pid": process.pid})
        assert status == 200, answer
        return process

    def story(self, name: str) -> dict[str, Any]:
        """What `why` tells of an agent, as JSON."""
        status, answer = self.ask("GET", f"/v1/agents/{name}")
        assert status == 200, answer
        return answer

    def wait_sweeps(self, count: int, seconds: float = PATIENCE) -> None:
        """Wait until the daemon has looked so many times more (needs log level debug)."""
        goal = self.count("sweep.finished") + count
        wait_for(lambda: self.count("sweep.finished") >= goal, f"{count} sweeps", seconds)

    def witnessed(self) -> list[str]:
        """What agents with the word `witness` saw of signals."""
        path = self.dir / "signals"
        return path.read_text().splitlines() if path.exists() else []

    def signalled(self) -> set[int]:
        """Every pid that the daemon says it has signalled."""
        return {pid for e in self.events() if e["event"] == "kill.signal_sent" for pid in e["pids"]}

    def script(self, name: str, *arguments: str) -> list[str]:
        """The command of one of the agents in tests/scripted_agents."""
        path = AGENTS / name
        return [*([sys.executable] if name.endswith(".py") else ["/bin/sh"]), str(path), *arguments]

    def agents(self, *, all_: bool = True) -> dict[str, dict[str, Any]]:
        """What `list --json` prints, by name (the newest of a name); asked for often, so without a client's start."""
        status, answer = self.ask("GET", "/v1/agents?all=1" if all_ else "/v1/agents")
        assert status == 200, answer
        return {a["name"]: a for a in reversed(answer["agents"])}

    def wait_status(self, name: str, *statuses: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait until an agent of that name has one of these statuses; of one that has ended, for the log's line of it.

        The log is written by a thread of its own, a moment after the row. A daemon that died between leaves no line.
        """

        def look() -> dict[str, Any] | None:
            agent = self.agents().get(name)
            return agent if agent is not None and agent["status"] in statuses else None

        try:
            found = wait_for(look, f"{name} is {statuses}", seconds)
            if found["status"] in ENDED:
                with suppress(AssertionError):
                    wait_for(lambda: self.has_logged_end(found["agent_id"]), "the line of its end", 1.0)
            return found
        except AssertionError as error:
            raise AssertionError(
                f"{error}\n{self.cli('why', name, check=False).stdout}\n{self.log.read_text()[-3000:]}"
            ) from None

    def has_logged_end(self, agent_id: str) -> bool:
        """Whether the log has the line of an agent's end."""
        return any(e["event"] == "agent.ended" and e.get("agent_id") == agent_id for e in self.events())

    def close(self) -> None:
        """End what is left, each by its own pid."""
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()
        end_all_with("WORLD", str(self.dir))
        for process in self.started:
            process.kill()  # a zombie leader with a living thread shows no environment
            process.wait()


def make_world(**settings: Any) -> Iterator[World]:
    """A world in a short path (a unix socket's path has 108 bytes), removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        world = World(Path(directory), **settings)
        try:
            yield world
        finally:
            world.close()


def git(directory: Path, *words: str) -> str:
    """Git without anybody's configuration."""
    environ = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.org",
    }
    done = subprocess.run(["git", *words], cwd=directory, env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"git {words}: {done.stderr}"
    return done.stdout


def make_repository(directory: Path) -> Path:
    """A repository with one commit on main."""
    directory.mkdir(parents=True, exist_ok=True)
    git(directory, "init", "-q", "-b", "main")
    (directory / "README").write_text("hello\n")
    git(directory, "add", ".")
    git(directory, "commit", "-q", "-m", "first")
    return directory
