"""One daemon that was started by its command, in a directory of its own, and its clients: by command and by socket."""

import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

BIN = Path(sys.executable).parent
PATIENCE = 60.0  # seconds for what must come: only a failure takes them all
HOST = "wire-host"  # what each daemon here is told that its host is called
T = TypeVar("T")

CONFIGURATION: dict[str, dict[str, Any]] = {
    "sweep": {"interval_seconds": 0.5},
    "stall": {"after_seconds": 600, "start_limit_seconds": 600},
    "kill": {
        "grace_seconds": 0.5,
        "max_per_minute": 1000,
        "ladder": ["warn", "kill"],
        "warn_pause_seconds": 0.5,
        "stop_pause_seconds": 60,
    },
    "hold": {"mass_stall_count": 1000, "cpu_pressure_percent": 100},
}


def wait_for(look: Callable[[], T | None], what: str) -> T:
    """The first true answer within the deadline."""
    deadline, pause = time.monotonic() + PATIENCE, 0.02
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE:g} s: {what}")
        time.sleep(pause)
        pause = min(0.1, pause * 1.2)
    return found


class Connection(http.client.HTTPConnection):
    """HTTP over the control socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self.path)


class Station:
    """The directories, the daemon, and whatever is started beside it."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory
        self.runtime, self.state, self.temporary = (directory / name for name in ("r", "s", "tmp"))
        for made in (self.runtime, self.state, self.temporary):
            made.mkdir(mode=0o700)
        self.log, self.config = directory / "daemon.log", directory / "config.toml"
        self.socket = str(self.runtime / "control.sock")
        self.daemon: subprocess.Popen[bytes] | None = None
        self.started: list[subprocess.Popen[bytes]] = []
        mine = ("AGENT_WATCHDOG", "NOTIFY", "GIT_", "XDG_", "CLAUDE", "CODEX", "HCOM", "TMUX")
        self.environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith(mine)},
            "AGENT_WATCHDOG_SOCKET": self.socket,
            "WIRE": str(directory),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(directory),
            "TMPDIR": str(self.temporary),
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            **{f"GIT_{who}_{what}": f"a@{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
            **{f"GIT_{who}_DATE": "2026-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")},
        }
        self.configure(CONFIGURATION)

    def configure(self, tables: Mapping[str, Mapping[str, Any]], *, roots: bool = True) -> None:
        """Write the configuration: these tables beside what ties a daemon to our directories."""
        whole: dict[str, dict[str, Any]] = {
            "daemon": {"host": HOST, "state_dir": str(self.state), "runtime_dir": str(self.runtime)},
            **({"cleanup": {"roots": [str(self.dir)]}} if roots else {}),
        }
        for table, keys in tables.items():
            whole.setdefault(table, {}).update(keys)
        lines = []
        for table, keys in whole.items():
            lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
        self.config.write_text("source = []\n" + "\n".join(lines) + "\n")

    def known(self) -> dict[str, str]:
        """The words of this run, for `shape`."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {str(self.dir): "<dir>", HOST: "<host>", boot: "<boot>"}

    # -- the daemon

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.daemon = subprocess.Popen(
                [BIN / "agent-watchdogd", "--config", self.config],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=self.environ,
                cwd=self.dir,
                start_new_session=True,
            )
        self.wait_event("daemon.ready")

    def stop(self) -> int:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGTERM)
        return self.daemon.wait(PATIENCE)

    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"\n")]

    def wait_event(self, event: str, **fields: Any) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            assert self.daemon is not None
            if self.daemon.poll() is not None:
                raise AssertionError(f"the daemon ended with {self.daemon.returncode}:\n{self.log.read_text()[-3000:]}")
            for one in self.events():
                if one["event"] == event and all(one.get(key) == value for key, value in fields.items()):
                    return one
            return None

        return wait_for(look, f"{event} {fields}; the log ends with\n{self.log.read_text()[-3000:]}")

    @contextmanager
    def registry(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.state / "registry.db", isolation_level=None, timeout=PATIENCE)
        try:
            yield connection
        finally:
            connection.close()

    # -- clients

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, str, bytes]:
        """One request: the status, the type of the content, and the content."""
        connection = Connection(self.socket)
        try:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
            connection.request(method, path, raw)
            answer = connection.getresponse()
            return answer.status, answer.headers.get("Content-Type", ""), answer.read()
        finally:
            connection.close()

    def json(self, method: str, path: str, body: object = None) -> Any:
        status, _, content = self.ask(method, path, body)
        assert status < 300, f"{method} {path}: {status} {content!r}"
        return json.loads(content or b"null")

    def cli(self, *words: str, program: str = "agent-watchdog", **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / program, *words],
            env={**self.environ, **environ},
            cwd=self.dir,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    # -- agents

    def spawn(self, *command: str, **environ: str) -> subprocess.Popen[bytes]:
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

    def agent(self, name: str, *command: str, **body: Any) -> str:
        """An agent whose process is started with what its registration answers, and told then; its id."""
        made = self.json("POST", "/v1/agents", {"name": name, **body})
        process = self.spawn(*(command or ("sleep", "1000")), **made["env"])
        self.json("PATCH", f"/v1/agents/{made['agent_id']}", {"pid": process.pid})
        return str(made["agent_id"])

    def ended(self, agent_id: str) -> None:
        """Wait for an agent's end, and for the line of it."""
        self.wait_event("agent.ended", agent_id=agent_id)

    def git(self, *words: str) -> None:
        done = subprocess.run(["git", *words], cwd=self.dir, env=self.environ, capture_output=True, text=True)
        assert done.returncode == 0, f"git {words}: {done.stderr}"

    def repository(self) -> None:
        """The one repository, whose one commit has the same name on each machine."""
        if not (self.dir / "repo").exists():
            self.git("init", "-q", "-b", "main", "repo")
            (self.dir / "repo" / "README").write_text("hello\n")
            self.git("-C", "repo", "add", ".")
            self.git("-C", "repo", "commit", "-q", "-m", "first")

    def worktree(self, name: str) -> str:
        """A clean worktree of it."""
        self.repository()
        self.git("-C", "repo", "worktree", "add", "-q", str(self.dir / name), "-b", name)
        return str(self.dir / name)

    def close(self) -> None:
        """End what is left, each by its own handle or by what it carries in its environment."""
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()
        while left := self._left():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        for process in self.started:
            process.kill()
            process.wait()

    def _left(self) -> list[int]:
        mark, left = f"WIRE={self.dir}".encode(), []
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            with suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and not _is_zombie(pid):
                    left.append(pid)
        return left


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in b"ZX"


@contextmanager
def station() -> Iterator[Station]:
    """In a short path (a unix socket's has 108 bytes), removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        made = Station(Path(directory))
        try:
            yield made
        finally:
            made.close()
