"""Daemons that are forked where their modules are imported already: half of what a daemon of a story costs is that.

`python -m tests.nursery FD` imports, then forks one for each request; the child goes on as `agent-watchdogd` does after
execve(2): a session of its own, its arguments, its environment, its log. Only what uses the fixture `nursery` has its
daemons so (all of tests/e2e), and those alone that are started plainly; `NURSERY=0` has all started by the command.
"""

import array
import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from watchdog.registry.registry import Registry

PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Born(subprocess.Popen[bytes]):
    """As Popen of a command has it: a child of ours that is asked, signalled and waited for."""

    def __init__(self, args: list[str], pid: int) -> None:
        self.args = args
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._communication_started = False
        self._sigint_wait_secs = 0.25
        self._waitpid_lock = threading.Lock()


class Nursery:
    """The process that forks them; started with the first, and it ends with us."""

    def __init__(self, directory: Path) -> None:
        self._template = directory / "registry.db"
        self._ours: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, args: list[str], environ: Mapping[str, str], log: int) -> Born:
        """One daemon; `args` with the command's name."""
        ours = self._ours or self._open()
        body = json.dumps({"args": args, "environ": dict(environ), "cwd": os.getcwd()}).encode()
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # its parent ends at once: it comes to us
        try:
            ours.sendall(len(body).to_bytes(4, "big"))
            ours.sendmsg([body], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [log]))])
            answer = ours.recv(8)
        finally:
            _libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert len(answer) == 8, "the nursery has ended"
        return Born(args, int.from_bytes(answer, "big"))

    def registry(self) -> Path:
        """An empty registry for a daemon to begin with: migrations are a tenth of a start."""
        if not self._template.exists():
            Registry(f"sqlite:///{self._template}").open().close()
            self._template.chmod(0o600)
        return self._template

    def close(self) -> None:
        """End it."""
        if self._ours is not None and self._process is not None:
            self._ours.close()
            self._process.wait(60)

    def _open(self) -> socket.socket:
        self._ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.nursery", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        return self._ours


def main() -> None:
    """Serve until the other side has gone."""
    gc.disable()  # as `watchdog.service.bootstrap` does
    from watchdog.service import main_loop

    assert main_loop
    with socket.socket(fileno=int(sys.argv[1])) as theirs:
        os.set_inheritable(theirs.fileno(), False)
        while head := theirs.recv(4):
            size = int.from_bytes(head, "big")
            body, descriptors, _, _ = socket.recv_fds(theirs, size, 1)
            while len(body) < size:
                body += theirs.recv(size - len(body))
            (log,) = descriptors
            told, tells = os.pipe()
            between = os.fork()
            if not between:
                pid = os.fork()
                if not pid:
                    os.close(told)
                    os.close(tells)
                    _become(theirs, log, json.loads(body))
                os.write(tells, pid.to_bytes(8, "big"))
                os._exit(0)
            os.waitpid(between, 0)
            theirs.sendall(os.read(told, 8))
            for descriptor in (log, told, tells):
                os.close(descriptor)


def _become(theirs: socket.socket, log: int, what: Any) -> None:
    theirs.close()
    os.setsid()
    os.dup2(log, 2)
    os.close(log)
    with open(os.devnull, "r+b", buffering=0) as null:
        os.dup2(null.fileno(), 0)
        os.dup2(null.fileno(), 1)
    os.chdir(what["cwd"])
    os.environ.clear()
    os.environ.update(what["environ"])
    time.tzset()
    sys.argv = what["args"]
    from watchdog.service import bootstrap

    sys.exit(bootstrap.main())


if __name__ == "__main__":
    main()
