"""Processes that run setuid programs, for tests as root: a Python that is setuid root, and a leash to have it step.

A process on a leash starts as some user, and becomes on demand what sudo, su, passwd or gosu make of one.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.world import wait_for

# Each line on stdin is Python to run; its uids are a line on stdout, at its start and when each has been run.
LEASH = """
import os, subprocess, sys, time
print(*os.getresuid(), flush=True)
while line := sys.stdin.readline():
    exec(line)
    print(*os.getresuid(), flush=True)
"""
SECONDS = 20.0  # for one answer


def make_program(directory: Path) -> Path:
    """A Python that is setuid root, in a directory that every user may enter; it must not be mounted nosuid."""
    program = directory / "setuid-python"
    shutil.copy(os.path.realpath(sys.executable), program)
    os.chown(program, 0, 0)
    program.chmod(0o4755)
    return program


class Leashed:
    """One process that runs what it is told, in whatever program it has come to be."""

    def __init__(self, process: "subprocess.Popen[bytes]", program: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._program = program
        self._said = b""

    def do(self, code: str) -> list[int]:
        """Have it run a line of Python; what it says then: its real, effective and saved uid."""
        assert self.process.stdin is not None
        self.process.stdin.write(code.encode() + b"\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> list[int]:
        """The next line of numbers that it writes."""
        assert self.process.stdout is not None
        pipe, end = self.process.stdout.fileno(), time.monotonic() + SECONDS
        while b"\n" not in self._said:
            ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no answer of {self.pid} in {SECONDS} s"
            said = os.read(pipe, 4096)
            assert said, f"{self.pid} ended: {self.process.wait(SECONDS)}"
            self._said += said
        line, _, self._said = self._said.partition(b"\n")
        return [int(word) for word in line.split()]

    def exec_setuid(self) -> list[int]:
        """Exec a program that is setuid root, as in the first instant of passwd or sudo."""
        argv = [str(self._program), "-I", "-c", LEASH]
        return self.do(f"os.execv({argv[0]!r}, {argv!r})")

    def sudo(self) -> list[int]:
        """Become root whole, as sudo does within milliseconds; the real uid too."""
        self.exec_setuid()
        return self.do("os.setresuid(0, 0, 0)")

    def child(self, code: str, *, setuid: bool = False) -> int:
        """The pid of a child of it that runs this code; `setuid`: in the program that is setuid root."""
        argv = [str(self._program) if setuid else "/usr/bin/python3", "-I", "-c", code]
        start = f"print(subprocess.Popen({argv!r}, stdin=-3, stdout=-3, stderr=-3).pid, flush=True)"  # DEVNULL
        [pid] = self.do(start)
        self.answer()
        return pid


@contextmanager
def leashed(directory: Path, uid: int, environ: dict[str, str] | None = None) -> Iterator[Leashed]:
    """A process of that user on a leash, in a session of its own; it and its children end with the test.

    `directory`: where the setuid program is made; every user may enter it.
    """
    program = directory / "setuid-python"
    if not program.exists():
        make_program(directory)
    process = subprocess.Popen(
        ["/usr/bin/python3", "-I", "-c", LEASH],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", **(environ or {})},
        user=uid,
        group=uid,
        extra_groups=[],
        start_new_session=True,
    )
    try:
        leash = Leashed(process, program)
        leash.answer()
        yield leash
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.communicate(timeout=SECONDS)


def uids_of(pid: int) -> list[int]:
    """The four uids that the kernel shows of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Uid:"):
            return [int(word) for word in line.split()[1:]]
    raise AssertionError(f"no process {pid}")


def wait_uids(pid: int, *uids: int) -> None:
    """Until a process runs with these four uids."""
    wait_for(lambda: uids_of(pid) == list(uids), f"{pid} runs with {uids}")
