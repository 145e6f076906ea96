"""Real tmux servers in a directory of a test's own, ended with it."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from tests.world import alive, started_at, wait_for
from watchdog.owner.terminals.base import Pane, pane_of
from watchdog.owner.terminals.panes import pane_find


class Servers:
    """Servers by name (`-L`), below a TMUX_TMPDIR that only they have."""

    def __init__(self) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="aw-t", dir="/tmp")
        self.dir = Path(self._place.name)
        self._names: set[str] = set()
        self.environ = {key: value for key, value in os.environ.items() if not key.startswith("TMUX")}
        self.environ |= {"TMUX_TMPDIR": str(self.dir), "PS1": "$ ", "ENV": "", "SHELL": "/bin/sh"}

    def socket(self, name: str = "one") -> str:
        return str(self.dir / f"tmux-{os.geteuid()}" / name)

    def tmux(self, *words: str, name: str = "one") -> str:
        self._names.add(name)
        argv = ["tmux", "-L", name, "-f", "/dev/null", *words]
        ran = subprocess.run(argv, cwd=self.dir, env=self.environ, capture_output=True, text=True, timeout=20)
        assert ran.returncode == 0, f"{words}: {ran.stderr}"
        return ran.stdout.strip()

    def session(self, session: str, *command: str, name: str = "one") -> tuple[str, int]:
        """A new session with one pane: the pane's id, and the pid of its first process."""
        size = "-x", "80", "-y", "24"
        told = self.tmux(
            "new-session", "-d", "-P", "-F", "#{pane_id} #{pane_pid}", *size, "-s", session, *command, name=name
        )
        pane, pid = told.split()
        if command[0].startswith("exec "):  # until its shell has become it, its environment may be read in between
            wait_for(lambda: command_of(int(pid)).partition(" ")[0] in ("sleep", "bash", "sh", "script"), "it is there")
        return pane, int(pid)

    def panes(self, name: str = "one") -> list[str]:
        """All panes, as session, window and pane."""
        return self.tmux("list-panes", "-a", "-F", "#{session_name} #{window_id} #{pane_id}", name=name).splitlines()

    @contextmanager
    def person(self, session: str, name: str = "one") -> Iterator[int]:
        """Somebody who looks at a session: where he types."""
        keyboard, terminal = os.openpty()
        argv = ["tmux", "-L", name, "attach-session", "-t", f"={session}"]
        environ = {**self.environ, "TERM": "xterm"}
        client = subprocess.Popen(argv, stdin=terminal, stdout=terminal, stderr=terminal, env=environ)
        os.close(terminal)
        try:
            wait_for(lambda: self.tmux("list-clients", name=name), "he is there")
            yield keyboard
        finally:
            client.kill()
            client.wait()
            os.close(keyboard)

    def close(self) -> None:
        for name in self._names:
            subprocess.run(
                ["tmux", "-L", name, "kill-server"], env=self.environ, capture_output=True, timeout=20, check=False
            )
        self._place.cleanup()

    def __enter__(self) -> "Servers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def command_of(pid: int) -> str:
    """The words of a process, without their shell's: `sh -c 'exec x'` has none yet."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
    return " ".join(words) if not any(word.startswith("exec ") for word in words) else "none"


def child_of(pid: int, name: str = "sleep") -> int:
    """The child of that name below a process, once it is there."""

    def look() -> int | None:
        for one in _children(pid):
            if Path(f"/proc/{one}/comm").read_text().strip() == name:
                return one
            below = [two for two in _children(one) if Path(f"/proc/{two}/comm").read_text().strip() == name]
            if below:
                return below[0]
        return None

    return wait_for(look, f"a {name} below {pid}")


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def pane_with(pid: int, told: dict[str, str] | None = None) -> Pane:
    """The pane of a process, as the helper finds it."""
    return pane_of(pane_find(pid, int(started_at(pid) or 0), told or {}))


def end(pid: int) -> None:
    """KILL for one process of ours, and wait for its end."""
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid), f"{pid} ends")
