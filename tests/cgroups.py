"""Real cgroups for tests: made for one test, and removed with it whatever happened."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchdog.processes import cgroups

DEADLINE = 20.0  # seconds


def _may_make(mount: cgroups.CgroupMount | None) -> bool:
    return mount is not None and mount.root == "/" and os.access(mount.directory, os.W_OK)


needs_v2 = pytest.mark.skipif(not _may_make(cgroups.version_2()), reason="needs root, and a cgroup v2 to write to")


def needs_v1(controller: str) -> pytest.MarkDecorator:
    """For tests of what only v1 has."""
    possible = _may_make(cgroups.version_1(controller))
    return pytest.mark.skipif(not possible, reason=f"needs root, and cgroup v1 of {controller}")


@contextlib.contextmanager
def scratch(controller: str = "") -> Iterator[Path]:
    """The directory of a new cgroup, v2 or of a v1 controller. At the end it is thawed, and empty soon or late."""
    mount = cgroups.version_1(controller) if controller else cgroups.version_2()
    assert mount is not None
    made = Path(mount.directory) / f"agent-watchdog-test-{os.getpid()}-{os.urandom(3).hex()}"
    made.mkdir()
    try:
        yield made
    finally:
        end = time.monotonic() + DEADLINE
        for each in sorted([made, *(p for p in made.rglob("*") if p.is_dir())], reverse=True):
            for name, free in (("cgroup.freeze", "0"), ("freezer.state", "THAWED")):
                with contextlib.suppress(OSError):
                    (each / name).write_text(free)
            while True:  # who was killed leaves it a moment after its pidfd told so
                with contextlib.suppress(FileNotFoundError):
                    for pid in (each / "cgroup.procs").read_text().split():
                        with contextlib.suppress(OSError):
                            (Path(mount.directory) / "cgroup.procs").write_text(pid)
                try:
                    each.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    assert time.monotonic() < end, f"{each} does not become empty"
                    time.sleep(0.005)
                else:
                    break


def path_of(directory: Path) -> str:
    """The path of a v2 cgroup as /proc/PID/cgroup has it."""
    mount = cgroups.version_2()
    assert mount is not None
    return f"/{directory.relative_to(mount.directory)}"
