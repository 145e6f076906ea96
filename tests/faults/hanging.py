"""Calls that never return, for a daemon under test: libc's own, held back by a preloaded library (hang.c).

A process that loops in such a call cannot be told from one in a dead mount but by its state: the call does not return,
no handler of Python's runs in that thread, and the kernel can still end the process. What looks at the machine itself
(a FUSE or NFS mount that hangs) would stop everybody here.
"""

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.world import BIN, World, wait_for

SOURCE = Path(__file__).parent / "hang.c"


@functools.cache
def library() -> Path:
    """Built once a process, and removed at its end."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    directory = Path(tempfile.mkdtemp(prefix="aw-hang-", dir="/tmp"))
    atexit.register(shutil.rmtree, directory)
    built = directory / "hang.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, SOURCE, "-ldl"], check=True)
    return built


class Hanging:
    """What hangs in a world's daemon: `begin` and `end` it by the name of a call."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "hang"
        self._directory.mkdir(exist_ok=True)

    @property
    def words(self) -> tuple[str, ...]:
        """For env(1), before the command of a process for which it hangs; its children are meant, too."""
        return f"LD_PRELOAD={library()}", f"HANG={self._directory}"

    def start(self, world: World, *, wait: bool = True, daemon: tuple[str, ...] = ()) -> None:
        """As `world.start`; what hangs, hangs for the daemon and its children alone."""
        world.start(wait=wait, prefix=("env", *self.words), daemon=daemon or (str(BIN / "agent-watchdogd"),))

    def take_away(self) -> None:
        """All return again."""
        self.end(*(path.name for path in self._directory.iterdir()))

    def begin(self, call: str, path: object = "") -> None:
        """From now on this call does not return; `path`: for paths that begin so, all where it is empty.

        `fsync`, `write`, `flock`, `close` of a descriptor, `path`: each call that takes one, `exec`: of a child,
        `nss`: each question to it, `groups`: getgrouplist(3) alone, `loop`: epoll_wait(2), so the event loop itself.
        """
        new = self._directory / f".{call}"
        new.write_text(str(path))
        new.rename(self._directory / call)

    def wait_met(self, call: str) -> None:
        """Until it is in use."""
        wait_for((self._directory / f"{call}.met").exists, f"a call of {call}")

    def end(self, *calls: str) -> None:
        """It returns again."""
        for call in calls:
            (self._directory / call).unlink(missing_ok=True)
