"""The environment of a process: what this uid started it with, and nothing else."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.world import wait_for
from watchdog.owner import environments

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@contextmanager
def _running(*argv: str, **more: object) -> Iterator[int]:
    child = subprocess.Popen(argv, env={"WORD": "x=y", "PATH": os.environ["PATH"]}, **more)  # type: ignore[call-overload]
    try:
        name = os.path.basename(argv[0])[:15]
        wait_for(lambda: Path(f"/proc/{child.pid}/comm").read_text().strip() == name or None, "it runs")
        yield child.pid
    finally:
        child.kill()
        child.wait()


def test_it_is_what_the_process_was_started_with() -> None:
    with _running("/bin/sleep", "60") as pid:
        assert environments.of(pid)["WORD"] == "x=y"
    assert environments.of(pid) == {}


@needs_root
def test_it_is_nothing_where_another_uid_started_it() -> None:
    """Root could read it, and would take a stranger's words for its own."""
    with _running("/bin/sleep", "60", user=54321) as pid:
        assert b"WORD" in Path(f"/proc/{pid}/environ").read_bytes()
        assert environments.of(pid) == {}


@needs_root
def test_it_is_nothing_in_a_set_uid_program(tmp_path: Path) -> None:
    """Its caller chose it, whatever its uids are by now."""
    program = tmp_path / "suid-sleep"
    shutil.copy("/bin/sleep", program)
    program.chmod(0o4755)
    for place in (tmp_path, *list(tmp_path.parents)[:-2]):
        place.chmod(place.stat().st_mode | 0o055 if place != Path("/tmp") else 0o1777)
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        pytest.skip("needs root on a file system without nosuid")
    with _running(str(program), "60", user=54321) as pid:
        assert os.stat(f"/proc/{pid}").st_uid == 0 or b"54321\t0\t0\t0" in Path(f"/proc/{pid}/status").read_bytes()
        assert environments.of(pid) == {}
