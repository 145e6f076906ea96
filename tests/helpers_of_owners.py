"""Owners' helpers that hang: each is stopped as soon as it appears, the stand-in for a path that lets nobody go.

A FUSE or NFS that hangs puts a process to sleep where only KILL may reach it; a SIGSTOPped one answers as little.
"""

import os
import signal
import threading
from pathlib import Path
from types import TracebackType

from tests.world import started_at


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += [int(word) for word in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def helpers_of(daemon: int, uid: int | None = None) -> list[int]:
    """The living shared helpers of a daemon (of one uid), without those that run a hook."""
    found = []
    for pid in _children(daemon):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            whose = Path(f"/proc/{pid}").stat().st_uid
        except OSError:
            continue
        shared = b"watchdog.owner.helper" in command and b"--alone" not in command and b"--command" not in command
        if shared and started_at(pid) is not None and uid in (None, whose):
            found.append(pid)
    return found


class Stopper:
    """While it is entered, every shared helper of a daemon (of one uid) is stopped as soon as it appears."""

    def __init__(self, daemon: int, uid: int | None = None) -> None:
        self._daemon = daemon
        self._uid = uid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.stopped: set[tuple[int, str | None]] = set()

    def _work(self) -> None:
        while not self._over.wait(0.01):
            for pid in helpers_of(self._daemon, self._uid):
                key = pid, started_at(pid)
                if key not in self.stopped:
                    self._send(pid, signal.SIGSTOP)
                    self.stopped.add(key)

    @staticmethod
    def _send(pid: int, number: signal.Signals) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return

    def __enter__(self) -> "Stopper":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        for pid, born in self.stopped:
            if started_at(pid) == born:
                self._send(pid, signal.SIGCONT)
