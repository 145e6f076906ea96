"""Real processes for the tests of this room: started, heard with a deadline, and ended by pidfd whatever happens."""

import contextlib
import gc
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from watchdog.core.process import Identity
from watchdog.processes import identity as identities

HOST = "test-host"
DEADLINE = 20.0  # seconds; generous, because the machine is shared


class Family:
    """The processes of one test."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        self._pinned: list[int] = []
        self._buffers: dict[int, bytes] = {}

    def start(
        self, *argv: str, env: Mapping[str, str] | None = None, session: bool = False, user: int | None = None
    ) -> subprocess.Popen[bytes]:
        """A child with piped stdin and stdout; `env` is added to ours, whose marker is dropped."""
        whole = {key: value for key, value in os.environ.items() if key != "AGENT_WATCHDOG_ID"} | dict(env or {})
        child = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=whole, start_new_session=session, user=user
        )
        self._started.append(child)
        self.track(child.pid)
        return child

    def python(self, code: str, *, session: bool = False) -> subprocess.Popen[bytes]:
        """A child that runs Python code, the package importable."""
        return self.start(sys.executable, "-u", "-c", code, session=session)

    def track(self, pid: int) -> int:
        """Have a process that a child started (it told its pid) ended with the test."""
        assert pid > 1, f"{pid} is nobody's child"
        fd = identities.open_pidfd(pid)
        if fd is not None:
            self._pinned.append(fd)
        return pid

    def line(self, child: subprocess.Popen[bytes]) -> str:
        """The next line that the child writes; fails after the deadline."""
        assert child.stdout is not None
        fd = child.stdout.fileno()
        end = time.monotonic() + DEADLINE
        while b"\n" not in self._buffers.get(fd, b""):
            ready, _, _ = select.select([fd], [], [], max(0.0, end - time.monotonic()))
            data = os.read(fd, 4096) if ready else b""
            assert data, f"no line from {child.args!r}; status {child.poll()}"
            self._buffers[fd] = self._buffers.get(fd, b"") + data
        text, _, self._buffers[fd] = self._buffers[fd].partition(b"\n")
        return text.decode()

    def pids(self, child: subprocess.Popen[bytes], names: set[str]) -> dict[str, int]:
        """Lines "NAME PID" until all names were heard."""
        found: dict[str, int] = {}
        while set(found) != names:
            name, pid = self.line(child).split()
            found[name] = self.track(int(pid))
        return found

    def end(self) -> None:
        for fd in self._pinned:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)
        for child in self._started:
            child.wait(DEADLINE)
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()


@pytest.fixture
def family() -> Iterator[Family]:
    found = Family()
    yield found
    found.end()


@pytest.fixture(params=[True, False], ids=["pidfs", "no-pidfs"])
def inodes(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Each test once as on this kernel, once as on one before 6.9, where all pidfds share an inode."""
    identities.use_pidfd_inodes(None if request.param else False)
    if request.param and not identities.pidfd_inodes_work():
        pytest.skip("this kernel has no pidfs (>= 6.9)")
    yield bool(request.param)
    identities.use_pidfd_inodes(None)


@pytest.fixture
def no_leak() -> Iterator[None]:
    """No descriptor of ours is left by the test; what former tests left to the garbage collector goes before."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before


def known(pid: int) -> Identity:
    """The identity of a process that is certainly there."""
    found = identities.read_identity(pid, HOST)
    assert found is not None
    return found


def until(condition: Callable[[], object], what: str) -> None:
    """Look until it is so; for facts of /proc that no event announces."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE:.0f} s: {what}"
        time.sleep(0.005)


def wait_readable(fd: int) -> None:
    """Wait for a pidfd's process to end."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(DEADLINE * 1000), "the process did not end in time"


def pending(pid: int) -> int:
    """The signals that wait for a process that blocks them, as a mask (proc(5), SigPnd and ShdPnd)."""
    with open(f"/proc/{pid}/status") as status:
        masks = dict(line.split(":\t") for line in status if line.startswith(("SigPnd", "ShdPnd")))
    return int(masks["SigPnd"], 16) | int(masks["ShdPnd"], 16)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces, or acting as another uid")
