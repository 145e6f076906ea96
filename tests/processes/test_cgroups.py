"""What the kernel says of real cgroups, v2 and v1, and that a missing one frightens nobody."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cgroups import needs_v1, needs_v2, path_of, scratch
from tests.processes.conftest import Family, until, wait_readable
from watchdog.processes import cgroups, identity, oom

NOBODY = "/agent-watchdog-test-nobody-made-this"
pytestmark = pytest.mark.usefixtures("no_leak")


@pytest.fixture
def made() -> Iterator[Path]:
    with scratch() as directory:
        yield directory


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@needs_v2
def test_members_are_those_of_the_whole_subtree(made: Path, family: Family) -> None:
    """Wherever below it they sit, and whoever started them; not the neighbours."""
    path = path_of(made)
    inside, deeper, outside = (family.start("sleep", "100").pid for _ in range(3))
    cgroups.create(f"{path}/a/b")
    assert cgroups.below(path) == ["a"]
    assert cgroups.owner_of(path) == os.geteuid()
    cgroups.move(inside, path)
    cgroups.move(deeper, f"{path}/a/b")

    assert cgroups.members(path) == {inside, deeper}
    assert cgroups.path_of(deeper) == f"{path}/a/b"
    assert cgroups.path_of(outside) == cgroups.path_of(os.getpid())
    assert cgroups.events(path) == cgroups.Events(populated=True, frozen=False)
    assert cgroups.remove(path) is False
    assert cgroups.members(path) == {inside, deeper}


@needs_v2
def test_frozen_means_that_nobody_moves_until_thawed(made: Path, family: Family) -> None:
    """`freeze` returns when they stand still; a fork bomb's next child is not born meanwhile."""
    path = path_of(made)
    child = family.python("import os\nprint('up')\nwhile True: os.wait() if os.fork() else os._exit(0)")
    assert family.line(child) == "up"
    cgroups.move(child.pid, path)

    assert cgroups.freeze(path, 10) is True
    first = cgroups.members(path)
    assert cgroups.events(path).frozen
    assert cgroups.frozen_by(child.pid) == str(made)
    assert cgroups.frozen_among((child.pid, os.getpid())) == {child.pid: str(made)}
    assert cgroups.thaw_command(str(made)) == f"echo 0 > {made}/cgroup.freeze"
    assert cgroups.members(path) == first
    cgroups.thaw(path)
    cgroups.thaw(path)
    until(lambda: not cgroups.events(path).frozen, "thawed")
    until(lambda: cgroups.members(path) != first, "forking again")
    assert cgroups.frozen_by(child.pid) is None


@needs_v2
def test_who_is_frozen_from_above_is_told_of_that_cgroup(made: Path, family: Family) -> None:
    """O39: thawing its own would help nobody."""
    child = family.start("sleep", "100")
    cgroups.create(f"{path_of(made)}/a")
    cgroups.move(child.pid, f"{path_of(made)}/a")
    assert cgroups.freeze(path_of(made), 10) is True
    assert cgroups.frozen_by(child.pid) == str(made)
    cgroups.thaw(path_of(made))


@needs_v1("freezer")
def test_who_is_frozen_from_above_is_told_of_that_old_cgroup(family: Family) -> None:
    """O39: there `freezer.state` of each cgroup below says FROZEN, too; what is named is thawed by the command."""
    child = family.start("sleep", "100")
    with scratch("freezer") as above:
        (above / "a").mkdir()
        (above / "a/cgroup.procs").write_text(str(child.pid))
        (above / "freezer.state").write_text("FROZEN")
        until(lambda: (above / "a/freezer.state").read_text() == "FROZEN\n", "frozen from above")
        assert cgroups.frozen_by(child.pid) == str(above)
        subprocess.run(["sh", "-c", cgroups.thaw_command(str(above))], check=True)
        assert cgroups.frozen_by(child.pid) is None


@needs_v2
@needs_v1("freezer")
def test_one_who_sleeps_uninterruptibly_is_not_waited_for_longer_than_told(made: Path, family: Family) -> None:
    """Held in state D by the other freezer: this one never has him."""
    path = path_of(made)
    assert cgroups.freeze(path, 10) is True, "an empty one is frozen at once"
    cgroups.thaw(path)
    with scratch("freezer") as other:
        child = family.start("sleep", "100")
        cgroups.move(child.pid, path)
        (other / "cgroup.procs").write_text(str(child.pid))
        (other / "freezer.state").write_text("FROZEN")
        until(lambda: state(child.pid) == "D", "in state D")

        assert cgroups.freeze(path, 0.05) is False
        assert not cgroups.events(path).frozen
        cgroups.thaw(path)


@needs_v2
def test_an_empty_one_goes_with_the_empty_ones_below(made: Path, family: Family) -> None:
    path = path_of(made)
    child = family.start("sleep", "100")
    cgroups.create(f"{path}/a/b")
    cgroups.create(f"{path}/a/b")
    cgroups.move(child.pid, f"{path}/a")
    child.kill()
    child.wait()

    until(lambda: cgroups.remove(path), "removed")
    assert not made.exists()
    assert cgroups.owner_of(path) is None
    assert cgroups.below(path) == []


@needs_v2
def test_one_nested_too_deep_for_a_path_or_a_recursion_hides_nobody_and_goes_too(made: Path, family: Family) -> None:
    """An agent of root can do so in its leaf: no daemon started while it was there, and who was in it was not seen."""
    here = os.open(made, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d" * 9, dir_fd=here)
        here, upper = os.open("d" * 9, os.O_RDONLY, dir_fd=here), here
        os.close(upper)
    child = family.start("sleep", "100")
    procs = os.open("cgroup.procs", os.O_WRONLY, dir_fd=here)
    os.write(procs, str(child.pid).encode())
    os.close(procs)
    os.close(here)
    assert cgroups.members(path_of(made)) == {child.pid}
    assert cgroups.remove(path_of(made)) is False
    child.kill()
    child.wait()
    until(lambda: cgroups.remove(path_of(made)), "removed")
    assert not made.exists()


def test_a_missing_cgroup_has_nobody_in_it() -> None:
    """Also where there is no cgroup v2 at all."""
    for path in (NOBODY, "/", "", "/..", "/a/../b", "/gone (deleted)", "relative"):
        assert cgroups.members(path) == frozenset()
        assert cgroups.events(path) == cgroups.Events(populated=False, frozen=False)
        assert cgroups.owner_of(path) is None
        assert cgroups.freeze(path, 10) is False
        assert cgroups.remove(path) is True
        cgroups.thaw(path)
        with pytest.raises(FileNotFoundError):
            cgroups.move(os.getpid(), path)
    assert oom.kills_in(NOBODY) is None


def test_who_is_gone_is_told_apart_from_who_has_none(family: Family) -> None:
    child = family.start("true")
    child.wait()
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        cgroups.path_of(child.pid)
    assert cgroups.path_of(os.getpid(), "no-such-controller") is None


def test_a_mount_that_shows_a_part_shows_only_that() -> None:
    """As in a container that got a part of the host's hierarchy, without a namespace of its own."""
    mount = cgroups.CgroupMount("/sys/fs/cgroup", "/docker/x")

    assert mount.directory_of("/docker/x/agent") == "/sys/fs/cgroup/agent"
    assert mount.directory_of("/docker/xy") is None
    assert mount.directory_of("/docker/x") is None
    assert cgroups.CgroupMount("/sys/fs/cgroup", "/../..").directory_of("/agent") is None


@needs_v1("freezer")
def test_a_v1_freezer_is_seen_and_swallows_even_kill(family: Family) -> None:
    with scratch("freezer") as directory:
        child = family.start("sleep", "100")
        assert cgroups.frozen_by(child.pid) is None
        (directory / "cgroup.procs").write_text(str(child.pid))
        (directory / "freezer.state").write_text("FROZEN")
        until(lambda: (directory / "freezer.state").read_text() == "FROZEN\n", "frozen")

        assert cgroups.frozen_by(child.pid) == str(directory)
        child.send_signal(signal.SIGKILL)
        assert child.poll() is None
        (directory / "freezer.state").write_text("THAWED")
        assert child.wait(60) == -signal.SIGKILL


@needs_v1("memory")
def test_who_is_ended_for_want_of_memory_is_counted(family: Family) -> None:
    """By the cgroup that it was in, as long as that is there."""
    with scratch("memory") as directory:
        own = directory / "own"
        own.mkdir()
        (own / "memory.limit_in_bytes").write_text(str(16 << 20))
        code = "import sys\nprint('up')\nsys.stdin.readline()\nwaste = [b'x' * (1 << 20) for _ in range(200)]"
        child = family.start(sys.executable, "-u", "-c", code)
        assert family.line(child) == "up"
        (own / "cgroup.procs").write_text(str(child.pid))
        before = oom.counts_of(child.pid, {})
        assert before == {str(own): 0}
        pidfd = identity.open_pidfd(child.pid)
        assert pidfd is not None
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        wait_readable(pidfd)
        os.close(pidfd)

        assert child.wait(60) == -signal.SIGKILL
        assert oom.kills_in(str(own)) == 1
        until(lambda: _removed(own), "removed")
        assert oom.kills_in(str(own)) is None


def _removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:
        return False
    return True


def test_whether_root_has_to_thaw_it_is_seen_by_its_owner(tmp_path: Path) -> None:
    """A5: nothing said that the command needs root."""
    assert cgroups.thawed_by_root(str(tmp_path / "gone"))
    file = tmp_path / "cgroup.freeze"
    file.touch(0o644)
    assert cgroups.thawed_by_root(str(tmp_path)) is (os.geteuid() == 0)
    if os.geteuid() == 0:
        os.chown(file, 61001, -1)
        assert not cgroups.thawed_by_root(str(tmp_path))
