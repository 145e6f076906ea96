"""bash at a terminal, and tmux, in which `agent-watchdog run` is typed."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, FakeDaemon, wait_for
from tests.cli.terminal import Terminal, a_terminal

RUN = f"{PROGRAM} run --name t --stall-after 1m --"

# Tells every signal that reaches it and how often; ends with 7 on `q` and a newline.
LISTENER = """
import signal, sys
for n in (1, 2, 3, 10, 15, 28):
    signal.signal(n, lambda n, f: print(f"<{n}>", flush=True))
print("[up]", flush=True)
while True:
    try:
        line = sys.stdin.readline()
    except OSError:
        break
    if line in ("q\\n", ""):
        break
    print(f"[{line.strip()}]", flush=True)
sys.exit(7)
"""


@pytest.fixture
def terminal(environment: dict[str, str], tmp_path: Path, daemon: FakeDaemon) -> Iterator[Terminal]:
    """bash at a terminal, with a daemon there."""
    (tmp_path / "listener.py").write_text(LISTENER)
    with a_terminal(environment, tmp_path) as terminal:
        yield terminal


def agent_of(daemon: FakeDaemon) -> int:
    return int(str(wait_for(lambda: daemon.seen("PATCH", key="pid"))[-1].body["pid"]))


class Tmux:
    """A tmux server of the test's own, with one pane."""

    def __init__(self, environment: dict[str, str], socket: Path, directory: Path) -> None:
        self.command, self.environment = ["tmux", "-S", str(socket), "-f", "/dev/null"], environment
        # Words, not one string: that would go through the login shell, which is nologin for `nobody` without $SHELL.
        shell = ("env", "PS1=$", "bash", "--norc", "--noprofile")
        self.do("new-session", "-d", "-x", "80", "-y", "50", "-c", str(directory), *shell)

    def do(self, *arguments: str) -> str:
        return subprocess.run(
            [*self.command, *arguments], env=self.environment, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def type(self, line: str) -> None:
        self.do("send-keys", "-l", line)
        self.keys("Enter")

    def keys(self, *names: str) -> None:
        self.do("send-keys", *names)

    def text(self) -> str:
        return self.do("capture-pane", "-p", "-J")

    def close(self) -> None:
        subprocess.run([*self.command, "kill-server"], capture_output=True, timeout=60, check=False)


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def children_of(pid: int, depth: int) -> list[int]:
    try:
        children = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return children + [p for child in children for p in (children_of(child, depth - 1) if depth > 1 else [])]
