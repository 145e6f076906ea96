"""Calls that never return, for a daemon under test: libc's own, held back by a preloaded library (hang.c).

A process that loops in such a call cannot be told from one in a dead mount but by its state: the call does not return,
no handler of Python's runs in that thread, and the kernel can still end the process. What looks at the machine itself
(a FUSE or NFS mount that hangs) would stop everybody here.
"""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "hang.c"


@functools.cache
def library() -> Path:
    """Built once a process; it stays in the temporary directory of that process."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    built = Path(tempfile.mkdtemp(prefix="aw-hang-", dir="/tmp")) / "hang.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, SOURCE, "-ldl"], check=True)
    return built


class Hanging:
    """What hangs in a world's daemon: `begin` and `end` it by the name of a call."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "hang"
        self._directory.mkdir(exist_ok=True)

    @property
    def environ(self) -> dict[str, str]:
        """For the daemon: `world.start(**hanging.environ)`."""
        return {"LD_PRELOAD": str(library()), "HANG": str(self._directory)}

    def begin(self, call: str, path: object = "") -> None:
        """From now on this call does not return: `fsync`, `write`, `flock`, `close`, `path`, `exec`, `nss`, `groups`.

        `path`: for paths that begin so; all, where it is empty. `path` as a call is each one that takes a path.
        """
        new = self._directory / f".{call}"
        new.write_text(str(path))
        new.rename(self._directory / call)

    def end(self, *calls: str) -> None:
        """It returns again."""
        for call in calls:
            (self._directory / call).unlink(missing_ok=True)
