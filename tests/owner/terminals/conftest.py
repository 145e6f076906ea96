"""One tmux server with one pane, for tests of what is typed into it and of what it shows."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world import AGENTS, started_at, wait_for

READER = (
    "import os, sys\nopen('pid', 'w').write(str(os.getpid()))\nfor line in sys.stdin: open('lines', 'a').write(line)"
)


class Pane:
    """One tmux server with one session; its shell runs what a test types."""

    def __init__(self, directory: Path) -> None:
        self.dir, self.socket = directory, str(directory / "tmux")
        variables = {k: v for k, v in os.environ.items() if not k.startswith("TMUX")}
        variables |= {"PS1": "$ ", "ENV": "", "SHELL": "/bin/sh"}  # it starts commands by $SHELL; nobody's is nologin
        start = ["tmux", "-S", self.socket, "-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "/bin/sh"]
        subprocess.run(start, cwd=directory, env=variables, check=True, timeout=20)

    def tmux(self, *words: str) -> str:
        ran = subprocess.run(
            ["tmux", "-S", self.socket, *words], capture_output=True, text=True, check=True, timeout=20
        )
        return ran.stdout.strip()

    def shell(self, command: str) -> None:
        self.tmux("send-keys", "-l", command)
        self.tmux("send-keys", "Enter")

    def agent(self) -> tuple[int, int]:
        """An agent that writes down each line it reads: its pid and start ticks."""
        (self.dir / "reader.py").write_text(READER)
        self.shell(f"{sys.executable} reader.py")
        pid = wait_for(lambda: (self.dir / "pid").exists() and (self.dir / "pid").read_text(), "the agent runs")
        return int(str(pid)), int(started_at(int(str(pid))) or 0)

    def vendor(self, mode: str = "", vendor: str = "claude") -> tuple[int, int]:
        """What looks like a vendor's program, at its prompt: its pid and start ticks."""
        program = f"exec -a {vendor} {sys.executable} {AGENTS / 'prompting.py'} {mode}"
        self.shell(f"bash -c '{program}'")
        wait_for(
            lambda: "some words" in (shown := self.tmux("capture-pane", "-p")) or "❯ No" in shown or None, "it draws"
        )
        pid = int((self.dir / "pid").read_text())
        return pid, int(started_at(pid) or 0)

    def draft(self, words: str) -> None:
        """A person has written that, and not sent it."""
        self.tmux("send-keys", "-l", words)
        wait_for(lambda: words in self.tmux("capture-pane", "-p") or None, "it is shown")

    def lines(self) -> list[str]:
        path = self.dir / "lines"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def pane(tmp_path: Path) -> Iterator[Pane]:
    pane = Pane(tmp_path)
    try:
        yield pane
    finally:
        pane.tmux("kill-server")


def scrolled(pane: Pane, pid: int) -> None:
    pane.tmux("copy-mode")


def coupled(pane: Pane, pid: int) -> None:
    pane.tmux("set-option", "-w", "synchronize-panes", "on")


def in_the_background(pane: Pane, pid: int) -> None:
    pane.tmux("send-keys", "C-z")
    wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T" or None, "stopped")
    wait_for(lambda: pane.tmux("capture-pane", "-p").endswith("\n$") or None, "the shell says so")
