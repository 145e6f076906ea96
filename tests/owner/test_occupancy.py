"""Who uses a directory, by the real /proc: where a process's own words are no path of ours."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.owner.repositories import Repository, context, git
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.owner import occupancy
from watchdog.owner.hooks.temp_dir import temp_dir
from watchdog.owner.hooks.worktree import worktree

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and foreign uids need root")
MAPPED = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
kept = mmap.mmap(fd, 0)
os.closerange(3, 100)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def living(*command: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it is ready; it ends when its stdin does."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def put_away(path: Path) -> HookResult:
    return worktree(context(worktree=str(path)), hooks.CleanupSettings())


def test_a_mapped_file_is_in_use_when_it_was_closed(repository: Repository) -> None:
    """A database, or the library of an environment that lies in the tree, needs no descriptor."""
    path = repository.worktree()
    (path / "ignored").mkdir()
    (path / "ignored" / "db").write_bytes(bytes(8192))

    with living(sys.executable, "-c", MAPPED, str(path / "ignored" / "db"), cwd=repository.place) as process:
        result = put_away(path)

    assert result.outcome is HookOutcome.KEPT
    assert f"process {process.pid} has its mapped file at {path}/ignored/db" in result.message
    assert put_away(path).outcome is HookOutcome.DONE


@needs_root
@pytest.mark.parametrize("bound", ["wt", "wt/ignored", "."])
def test_who_works_in_a_container_has_another_name_for_it(repository: Repository, bound: str) -> None:
    """The tree, a part of it, or what it lies in is mounted there at a place of the container's own."""
    path, mounted = repository.worktree(), repository.place / "mounted"
    (path / "ignored").mkdir()
    mounted.mkdir()
    inside = mounted / ("wt" if bound == "." else "")
    script = f"mount --bind {repository.place / bound} {mounted} && cd {inside} && echo ready && exec cat"

    with living("unshare", "-m", "--propagation", "private", "sh", "-c", script, cwd=repository.place) as process:
        result = put_away(path)

    assert result.outcome is HookOutcome.KEPT
    assert f"process {process.pid} has its cwd at {inside}" in result.message


@needs_root
def test_a_mount_of_something_else_is_nobodys_use(repository: Repository) -> None:
    """A neighbour whose name begins alike, and one at the same path on another device."""
    path, other = repository.worktree(), repository.place / "wt2"
    other.mkdir()
    script = f"mount --bind {other} /mnt && cd /mnt && mount -t tmpfs none {path} && echo ready && exec cat"

    with living("unshare", "-m", "--propagation", "private", "sh", "-c", script, cwd=repository.place):
        assert occupancy.occupant(str(path)) is None


def test_a_served_socket_keeps_a_worktree_whatever_it_was_bound_by(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case G6: bound by a relative name, by a server that works elsewhere. One that nobody serves keeps nothing."""
    path = repository.worktree()
    (path / "ignored").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        with monkeypatch.context() as there:
            there.chdir(path / "ignored")
            server.bind("s.sock")
        server.listen()
        kept = put_away(path)
    assert kept.outcome is HookOutcome.KEPT
    assert "a socket in it is served: 'ignored/s.sock'" in kept.message

    assert put_away(path).outcome is HookOutcome.DONE


def test_a_repository_may_have_any_name(tmp_path: Path) -> None:
    """Git prints each of its places on a line of its own, and a name may hold newlines."""
    place = tmp_path / "two\nlines"
    place.mkdir()
    repository = Repository(place)
    path = tmp_path / "wt"
    repository.worktree("../wt", "-b", "wt")

    result = put_away(path)

    assert result.outcome is HookOutcome.DONE, result.message
    assert (repository.trash / ("a" * 32) / "tree" / "file").read_text() == "one\n"


def test_who_sits_in_a_former_directory_of_that_name_keeps_no_new_one(repository: Repository) -> None:
    """Case P11, the reverse: `git worktree remove` under a shell, and another tree made there."""
    path = repository.worktree()
    script = "mkdir ignored && cd ignored && exec 3>file && echo ready && exec cat"
    with living("sh", "-c", script, cwd=path):
        assert "has its cwd at" in put_away(path).message
        git(repository.main, "worktree", "remove", "--force", str(path))
        git(repository.main, "worktree", "add", "-q", str(path), "wt")
        result = put_away(path)
    assert result.outcome is HookOutcome.DONE, result.message


@pytest.mark.parametrize("variable", ["TMPDIR", "XDG_RUNTIME_DIR", "PATH"])
def test_a_temp_dir_that_a_living_process_names_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Case P18: it has nothing open there, and makes its next file there."""
    place = tmp_path / "t"
    place.mkdir()
    with monkeypatch.context() as theirs:
        theirs.setenv(variable, f"{os.environ['PATH']}:{place}/bin" if variable == "PATH" else str(place))
        settings = hooks.CleanupSettings(roots=(str(tmp_path),))
        with living("sh", "-c", "echo ready; exec cat", cwd=tmp_path) as process:
            theirs.undo()
            result = temp_dir(context(temp_dir=str(place)), settings)
    assert result.outcome is HookOutcome.KEPT
    assert f"process {process.pid} names it in its environment: {variable}" in result.message
    assert temp_dir(context(temp_dir=str(place)), settings).outcome is HookOutcome.DONE


def test_what_another_uid_uses_keeps_both(repository: Repository, tmp_path: Path) -> None:
    """As root's daemon saw it; the reaper looks again, since nothing else keeps the tree."""
    words = "process 1 of uid 0 has its cwd at /x"
    path = repository.worktree()
    result = worktree(context(worktree=str(path), used_by=words), hooks.CleanupSettings())
    assert (result.outcome, result.details["in_use"]) == (HookOutcome.KEPT, True)
    assert f"in use: {words}" in result.message
    place = tmp_path / "t"
    place.mkdir()
    settings = hooks.CleanupSettings(roots=(str(tmp_path),))
    assert temp_dir(context(temp_dir=str(place), used_by=words), settings).outcome is HookOutcome.KEPT


BOUND = "mkdir {0}/m && mount --bind {1} {0}/m"
SUB = "mkdir {0}/m {1}/ignored && mount --bind {1}/ignored {0}/m"
FILE = "touch {0}/m && mount --bind {1}/file {0}/m"
LOWER = "mkdir {0}/m && mount -t overlay -o lowerdir={0}/main:{1} none {0}/m"
# Its upper directory cannot lie on what is an overlay itself, as a container's root is.
UPPER = (
    "mkdir {0}/m {0}/fs && mount -t tmpfs none {0}/fs && mkdir {0}/fs/wt {0}/fs/w && cd {0}/fs"
    " && mount -t overlay -o lowerdir={0}/main,upperdir=wt,workdir={0}/fs/w none {0}/m"
)
LINKED = "mkdir {0}/m && ln -s wt {0}/link && mount -t overlay -o lowerdir={0}/link:{0}/main none {0}/m"
ASKING = "import sys; from watchdog.owner.occupancy import occupant; print(occupant(sys.argv[1]))"


@needs_root
@pytest.mark.parametrize("mounted", [BOUND, SUB, FILE, LOWER, LINKED, UPPER])
def test_what_a_mount_needs_is_in_use(tmp_path: Path, mounted: str) -> None:
    """No process is in it. In our own mount namespace, and in one of a process that is elsewhere."""
    (tmp_path / "main").mkdir()
    (tmp_path / "wt").mkdir()
    (tmp_path / "wt" / "file").write_text("one\n")
    path = tmp_path / ("fs/wt" if mounted is UPPER else "wt")
    script = f"{mounted.format(tmp_path, path)} && cd / && "
    unshared = ["unshare", "-m", "--propagation", "private", "sh", "-c"]

    ours = [*unshared, f'{script}exec "$@"', "sh", sys.executable, "-c", ASKING, str(path)]
    found = subprocess.run(ours, check=True, capture_output=True, text=True).stdout

    assert f"{tmp_path}/m" in found and ("is mounted at" in found or "the overlay at" in found)
    if mounted is UPPER:
        return  # that place is in that namespace alone
    subprocess.run(f"rm -rf {tmp_path}/m {tmp_path}/link {path}/ignored", shell=True, check=True)
    assert occupancy.occupant(str(path)) is None
    with living(*unshared, f"{script}echo ready && exec cat", cwd=Path("/")) as process:
        if mounted is LINKED:
            return  # what its words lead to there is not looked at
        seen = occupancy.occupant(str(path))
    assert seen is not None and f"{tmp_path}/m, where process {process.pid} lives" in seen.replace(
        f" has its lower directory at {path}", ""
    )
    assert occupancy.occupant(str(path)) is None


@needs_root
def test_a_temp_dir_with_a_mount_in_another_namespace_is_in_use(tmp_path: Path) -> None:
    """Its removal would take away what is mounted there. One on what hides the place there is none."""
    place = tmp_path / "t"
    (place / "in").mkdir(parents=True)
    settings = hooks.CleanupSettings(roots=(str(tmp_path),))
    unshared = ["unshare", "-m", "--propagation", "private", "sh", "-c"]
    hidden = f"mount -t tmpfs none {tmp_path} && mkdir -p {place}/in && mount -t tmpfs none {place}/in"
    with living(*unshared, f"{hidden} && cd / && echo ready && exec cat", cwd=Path("/")):
        assert occupancy.occupant(str(place)) is None
    mounted = f"mount -t tmpfs none {place}/in"
    with living(*unshared, f"{mounted} && cd / && echo ready && exec cat", cwd=Path("/")) as process:
        result = temp_dir(context(temp_dir=str(place)), settings)
    assert result.outcome is HookOutcome.KEPT
    assert f"tmpfs is mounted on {place}/in, where process {process.pid} lives" in result.message
    assert temp_dir(context(temp_dir=str(place)), settings).outcome is HookOutcome.DONE


@needs_root
def test_a_loop_device_uses_the_place_of_its_file(repository: Repository) -> None:
    """Also by the name that a mount gives to it. One whose file was deleted there has nothing to lose."""
    path = repository.worktree()
    (path / "ignored").mkdir()
    (path / "ignored" / "disk").write_bytes(bytes(1 << 20))
    asked = ["losetup", "--find", "--show", str(path / "ignored" / "disk")]
    device = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    try:
        result = put_away(path)
        assert result.outcome is HookOutcome.KEPT
        assert f"the loop device {os.path.basename(device)} has its file at {path}/ignored/disk" in result.message
        (path / "ignored" / "disk").unlink()
        assert occupancy.occupant(str(path)) is None
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
    assert put_away(path).outcome is HookOutcome.DONE


@needs_root
def test_swap_space_uses_the_place_of_its_file(tmp_path: Path) -> None:
    """The kernel's list is another one here: no test takes part in the host's memory."""
    place, swaps = tmp_path / "a b", tmp_path / "swaps"
    place.mkdir()
    name = str(place).replace(" ", "\\040")
    swaps.write_text(f"Filename\tType\tSize\tUsed\tPriority\n/dev/x partition 1 0 -2\n{name}/swap file 1 0 -3\n")
    script = f'mount --bind {swaps} /proc/swaps && exec "$@"'
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", sys.executable, "-c", ASKING]
    found = subprocess.run([*command, str(place)], check=True, capture_output=True, text=True).stdout
    assert found == f"the kernel swaps to {place}/swap\n"
