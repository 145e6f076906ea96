"""A file of a process whose read hangs is given up once, and its process is never "not there"."""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world import wait_for
from watchdog.owner import occupancy, proc_files, session_dirs
from watchdog.owner.git import git_processes


@pytest.fixture
def hangs(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[set[str], threading.Event]]:
    """The paths whose read hangs until the event is set."""
    paths: set[str] = set()
    go, real = threading.Event(), proc_files._read

    def read(path: str, limit: int) -> bytes:
        if path in paths:
            go.wait()
        return real(path, limit)

    monkeypatch.setattr(proc_files, "_read", read)
    monkeypatch.setattr(proc_files, "PATIENCE", 0.05)
    yield paths, go
    go.set()
    wait_for(lambda: not proc_files._hung, "all reads have returned")


@pytest.fixture
def sleeper() -> Iterator[str]:
    child = subprocess.Popen(["sleep", "1000"], cwd="/")
    wait_for(lambda: Path(f"/proc/{child.pid}/cmdline").read_bytes(), "exec has laid its words out")
    yield str(child.pid)
    child.kill()
    child.wait()


def test_a_read_that_hangs_is_not_made_again_before_it_returns(
    hangs: tuple[set[str], threading.Event], sleeper: str
) -> None:
    """Others go on; then it is read again."""
    paths, go = hangs
    paths.add(f"/proc/{sleeper}/stat")
    before = threading.active_count()
    for _ in range(5):
        with pytest.raises(proc_files.ReadHung, match=f"/proc/{sleeper}/stat hangs"):
            proc_files.read(sleeper, "stat")
        assert proc_files.read(sleeper, "cmdline") == b"sleep\x001000\x00"
    assert threading.active_count() <= before + 2
    go.set()
    wait_for(lambda: not proc_files._hung, "it has returned")
    assert proc_files.read(sleeper, "stat").startswith(sleeper.encode())


def test_a_thread_that_is_not_let_run_has_not_hung(monkeypatch: pytest.MonkeyPatch, sleeper: str) -> None:
    """On a busy machine a read takes as long as it takes. This one needs twice the patience of CPU time alone."""
    real = proc_files._read

    def read(path: str, limit: int) -> bytes:
        if path.startswith(f"/proc/{sleeper}/"):
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 100_000)
        return real(path, limit)

    monkeypatch.setattr(proc_files, "_read", read)
    monkeypatch.setattr(proc_files, "PATIENCE", 0.02)
    assert proc_files.read(sleeper, "cmdline") == b"sleep\x001000\x00"
    assert not proc_files._hung


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes of another uid")
def test_one_users_hundreds_are_its_own(
    hangs: tuple[set[str], threading.Event], sleeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 256 of one user's that hung, no process was read any more: none of root's places was put in order."""
    monkeypatch.setattr(proc_files, "OF_ONE_USER", 3)
    monkeypatch.setattr(proc_files, "PATIENCE", 0.01)
    paths, _ = hangs
    theirs = [subprocess.Popen(["sleep", "1000"], cwd="/", user=65534, group=65534) for _ in range(4)]
    try:
        for child in theirs:
            paths.add(f"/proc/{child.pid}/maps")
            with pytest.raises(proc_files.ReadHung):
                proc_files.read(child.pid, "maps")
        assert len(proc_files._hung) == 3
        with pytest.raises(proc_files.ReadHung):
            proc_files.read(theirs[-1].pid, "cmdline")
        assert proc_files.read(sleeper, "maps")
    finally:
        for child in theirs:
            child.kill()
            child.wait()


def test_errors_are_the_kernels(sleeper: str) -> None:
    """Gone is gone."""
    with pytest.raises(FileNotFoundError):
        proc_files.read(2**22 + 1, "stat")
    assert proc_files.is_ours(sleeper)
    assert not proc_files.is_ours(2**22 + 1)
    assert proc_files.uid_of(sleeper) == os.getuid()


def only(pid: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy host the maps of a neighbour that forks can take longer than the patience of these tests."""
    monkeypatch.setattr(occupancy, "_visible", lambda: iter([str(pid)]))


def test_what_hangs_is_an_occupant(
    hangs: tuple[set[str], threading.Event], sleeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of our own uid: it may have a file there in its memory."""
    paths, _ = hangs
    only(sleeper, monkeypatch)
    assert occupancy.occupant(str(tmp_path)) is None
    paths.add(f"/proc/{sleeper}/maps")
    assert f"process {sleeper} cannot be read now" in str(occupancy.occupant(str(tmp_path)))
    assert occupancy.is_mapped_to_write(str(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes of another uid")
@pytest.mark.parametrize(("mode", "kept"), [(0o700, False), (0o755, True)])
def test_of_another_user_it_is_one_only_where_that_user_can_come(
    mode: int, kept: bool, hangs: tuple[set[str], threading.Event], public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each user could keep all of root's places for ever."""
    paths, _ = hangs
    (public / "closed").mkdir(mode=mode)
    (public / "closed").chmod(mode)
    place = public / "closed" / "place"
    place.mkdir()
    child = subprocess.Popen(["sleep", "1000"], cwd="/", user=65534, group=65534, extra_groups=())
    only(child.pid, monkeypatch)
    try:
        paths.add(f"/proc/{child.pid}/maps")
        assert (occupancy.occupant(str(place)) is not None) == kept
        assert occupancy.is_mapped_to_write(str(place)) == kept
    finally:
        child.kill()
        child.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: acting as another uid")
def test_what_is_not_ours_is_not_opened() -> None:
    """Its open hangs as well as its read, before the kernel asks whose it is: each user could stop all cleanups."""
    code = """
import os
from watchdog.owner import occupancy, proc_files
opened = []
real = proc_files._read
proc_files._read = lambda path, limit: opened.append(path) or real(path, limit)
occupancy.occupant("/dev")
own = str(os.getpid())
print({path.split("/")[2] for path in opened if path.endswith("/maps")} - {own})
"""
    # A uid of its own: what other tests run as nobody meanwhile would be ours.
    words = ["setpriv", "--reuid=61234", "--regid=61234", "--clear-groups", sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parent.parent.parent)
    if done.returncode != 0 and "ermission denied" in done.stderr:
        pytest.skip("root may have an interpreter that nobody else can execute")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "set()"


def test_a_git_that_hangs_is_at_work_everywhere(hangs: tuple[set[str], threading.Event], sleeper: str) -> None:
    """Nobody can say that it is none."""
    paths, _ = hangs
    assert sleeper not in {git.pid for git in git_processes.at_work()}
    paths.add(f"/proc/{sleeper}/status")
    paths.add(f"/proc/{sleeper}/environ")
    found = next(git for git in git_processes.at_work() if git.pid == sleeper)
    assert found.unseen


def test_a_session_that_hangs_is_not_known_to_be_over(hangs: tuple[set[str], threading.Event], sleeper: str) -> None:
    """Its process may be that program."""
    paths, _ = hangs
    paths.add(f"/proc/{sleeper}/cmdline")
    assert f"process {sleeper} cannot be read now" in str(session_dirs.living().unknown)
