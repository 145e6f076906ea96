"""The temp dir hook on real files: what it removes, and the many things that it refuses."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.owner.repositories import Repository, context, git
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.errors import PathRefused
from watchdog.owner import paths, trash
from watchdog.owner.git import repositories
from watchdog.owner.hooks.temp_dir import temp_dir
from watchdog.owner.temp_dirs import MARK

AGENT = "a" * 32
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and foreign uids need root")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory that `cleanup.roots` names."""
    place = tmp_path / "root"
    place.mkdir()
    return place


def run(path: Path | str | None, root: Path, **settings: object) -> HookResult:
    """The hook in this process, with one root."""
    values = hooks.CleanupSettings(roots=(str(root),), **settings)  # type: ignore[arg-type]
    return temp_dir(context(temp_dir=None if path is None else str(path)), values)


def trash_of(place: Path) -> Path:
    return place / f".agent-watchdog-trash-{os.geteuid()}"


def test_a_registered_dir_below_a_root_is_removed_and_counted(root: Path) -> None:
    """Bytes and entries freed are told; no trash stays."""
    path = root / "work"
    (path / "sub").mkdir(parents=True)
    (path / "sub" / "file").write_bytes(b"x" * 10_000)
    (path / "link").symlink_to("/etc/passwd")

    result = run(path, root)

    assert result.outcome is HookOutcome.DONE, result.message
    assert not path.exists()
    assert not trash_of(root).exists()
    assert result.details["entries"] == 4
    assert int(str(result.details["bytes"])) >= 10_000


def test_a_dir_outside_the_roots_needs_our_mark(tmp_path: Path, root: Path) -> None:
    """`run --temp-dir auto` leaves the mark, with the agent's id."""
    path = tmp_path / "elsewhere"
    path.mkdir()
    assert run(path, root).details["refused"] == "outside_roots"

    (path / MARK).write_text(AGENT + "\n")
    assert run(path, root).outcome is HookOutcome.DONE


def test_the_mark_of_another_agent_refuses_even_below_a_root(root: Path) -> None:
    """A directory that was registered twice belongs to whose mark it carries."""
    path = root / "work"
    path.mkdir()
    (path / MARK).write_text("b" * 32)

    assert run(path, root).details["refused"] == "other_agent"
    assert path.is_dir()


def test_a_mark_that_is_a_fifo_hangs_nobody(tmp_path: Path, root: Path) -> None:
    """It is no mark, and opening it does not block."""
    path = tmp_path / "elsewhere"
    path.mkdir()
    os.mkfifo(path / MARK)

    assert run(path, root).details["refused"] == "outside_roots"


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "..",
        "/",
        "//",
        "/.",
        "~",
        "$HOME",
        "relative/dir",
        "../../canary",
        "{root}",
        "{root}/",
        "{root}/.",
        "{root}/..",
        "{root}/canary/..",
        "{root}/./canary",
        "{root}/canary\n",
        "{root}/canary\x00",
        "{root}/can\tary",
        "{root}-evil",
        "{parent}",
        "{parent}/canary",
        "{home}",
        "{home}/..",
        "/tmp",
        "/var/tmp",
        "/home",
        "/etc",
        "/proc/self/cwd",
        "/dev/shm",
        "{root}/link",
        "{root}/link/inner",
        "{root}/file",
    ],
)
def test_hostile_paths_are_refused_before_anything_is_touched(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Case G3: empty, relative, traversing, the root itself, a home, a link, a prefix twin."""
    home = root / "home"
    (home / "inner").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for place in (root / "canary", tmp_path / "canary", tmp_path / "root-evil", tmp_path / "outside" / "inner"):
        place.mkdir(parents=True)
        (place / "keep").write_text("keep")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "file").write_text("keep")
    before = sorted(str(found) for found in tmp_path.rglob("*"))
    monkeypatch.chdir(root / "canary")

    result = run(path.format(root=root, parent=tmp_path, home=home), root)

    assert result.outcome in (HookOutcome.KEPT, HookOutcome.NOTHING), result
    assert result.outcome is HookOutcome.KEPT or path == "/home"
    assert sorted(str(found) for found in tmp_path.rglob("*")) == before


def test_a_parent_of_a_home_or_of_the_daemons_own_dirs_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the protected directory itself."""
    (root / "people" / "me").mkdir(parents=True)
    (root / "state" / "registry").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(root / "people" / "me"))

    assert run(root / "people", root).details["refused"] == "protected"
    protected = (str(root / "state" / "registry"),)
    assert run(root / "state", root, protected=protected).details["refused"] == "protected"


def make_checkout(place: Path) -> None:
    git(place.parent, "init", "-q", place.name)


def make_bare(place: Path) -> None:
    git(place.parent, "init", "-q", "--bare", place.name)


def make_git_file(place: Path) -> None:
    place.mkdir()
    (place / ".git").write_text("gitdir: /somewhere/.git/worktrees/x\n")


def make_separate(place: Path) -> None:
    """A git dir by another name; its checkout lies elsewhere."""
    git(place.parent, "init", "-q", "--separate-git-dir", str(place), str(place.parent.parent / "apart"))


@pytest.mark.parametrize("depth", ["", "sub", "a/b/c/d"])
@pytest.mark.parametrize("make", [make_checkout, make_bare, make_git_file, make_separate])
@pytest.mark.parametrize("marked", [False, True])
def test_a_repository_at_any_depth_keeps_the_dir(
    root: Path, depth: str, make: Callable[[Path], None], marked: bool
) -> None:
    """Invariant 8: only its own git knows what it holds, so a clone in an agent's own TMPDIR keeps that too."""
    path = root / "work"
    place = path / depth
    place.parent.mkdir(parents=True, exist_ok=True)
    make(place)
    (path / "hours.txt").write_text("work")
    if marked:
        (path / MARK).write_text(AGENT)

    result = run(path, root)

    assert (result.outcome, result.details["refused"]) == (HookOutcome.KEPT, "repository"), result
    assert result.message.endswith(f"{path}: {depth or '.'}")
    assert (path / "hours.txt").read_text() == "work"


@pytest.mark.parametrize("name", [".fslckout", "_FOSSIL_"])
def test_a_checkout_of_fossil_is_one_by_either_name(root: Path, name: str) -> None:
    """Both hold its stash and what was undone (fossil-scm.org, "checkout database")."""
    path = root / "work"
    (path / "project").mkdir(parents=True)
    (path / "project" / name).touch()

    result = run(path, root)

    assert (result.outcome, result.details["refused"]) == (HookOutcome.KEPT, "repository"), result


def test_a_dir_inside_a_repository_is_kept(root: Path) -> None:
    """A subdirectory of a checkout, of a linked worktree or of a bare repository; a .git; something in that."""
    repository = Repository(root)
    tree = repository.worktree()
    for place in (repository.main / "sub" / "deep", tree / "deep", repository.origin / "new"):
        place.mkdir(parents=True)
        (place / "hours.txt").write_text("work")
    git_dir = repository.main / ".git"
    inside = repository.main / "sub" / "deep", repository.main / "sub", tree / "deep", repository.origin / "new"

    for path in (*inside, git_dir, git_dir / "hooks", git_dir / "worktrees" / "wt", tree, repository.origin):
        result = run(path, root)
        assert (result.outcome, result.details["refused"]) == (HookOutcome.KEPT, "repository"), (path, result)
        assert path.is_dir()
    assert (repository.main / "sub" / "deep" / "hours.txt").exists()


def test_a_dir_made_for_the_agent_goes_wherever_it_lies(root: Path) -> None:
    """TMPDIR may point into a checkout; what `run` made there itself is no part of it. Nor is a .git in the root."""
    make_checkout(root / "main")
    path = root / "main" / "tmp" / "work"
    path.mkdir(parents=True)
    (path / MARK).write_text(AGENT)
    assert run(path, root).outcome is HookOutcome.DONE

    make_checkout(root)
    (root / "plain").mkdir()
    assert run(root / "plain", root).outcome is HookOutcome.DONE


def test_a_dir_too_large_or_too_closed_to_look_through_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not seen is not absent (invariant 5)."""
    path = root / "work"
    for number in range(6):
        (path / f"sub{number}").mkdir(parents=True)
    fd = os.open(path, os.O_PATH)
    with contextlib.ExitStack() as held:
        held.callback(os.close, fd)
        assert repositories.inside(fd, limit=6) is None
        with pytest.raises(PathRefused, match="too large to look through"):
            repositories.inside(fd, limit=5)

    real = paths.step_inside

    def refuse(parent: int, name: str) -> int:
        if name == "sub3":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(parent, name)

    monkeypatch.setattr(paths, "step_inside", refuse)
    result = run(path, root)
    assert (result.outcome, result.details["refused"]) == (HookOutcome.KEPT, "unreadable")


def test_looking_leaves_closed_directories_as_they_were(root: Path) -> None:
    """A repository behind mode 0 is seen, and what is kept is kept with its modes."""
    path = root / "work"
    (path / "closed").mkdir(parents=True)
    make_checkout(path / "closed" / "clone")
    (path / "closed").chmod(0)

    assert run(path, root).details["refused"] == "repository"
    assert (path / "closed").stat().st_mode & 0o777 == 0
    (path / "closed").chmod(0o700)


def test_a_link_inside_is_removed_as_a_link(root: Path, tmp_path: Path) -> None:
    """Case E10: what it points to is not touched; a hard link costs the other name nothing."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "module").write_text("shared")
    path = root / "work"
    path.mkdir()
    (path / "node_modules").symlink_to(shared)
    os.link(shared / "module", path / "hard")

    assert run(path, root).outcome is HookOutcome.DONE
    assert (shared / "module").read_text() == "shared"


@pytest.mark.faults
def test_depth_costs_neither_recursion_nor_descriptors(root: Path) -> None:
    """10,000 levels."""
    path = root / "work"
    path.mkdir()
    current = os.open(path, os.O_RDONLY)
    for _ in range(10_000):
        os.mkdir("d", dir_fd=current)
        inner = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = inner
    os.close(current)

    result = run(path, root)

    assert result.outcome is HookOutcome.DONE, result.message
    told = result.details["entries"], result.details.get("more", False)
    assert told in ((10_001, False), (10_000, True))  # a slow disk ends the call after its first round, and it says so


def test_read_only_directories_are_no_obstacle(root: Path) -> None:
    """Module caches are written so; they are this uid's own all the same."""
    path = root / "work"
    (path / "cache" / "inner").mkdir(parents=True)
    (path / "cache" / "inner" / "file").write_text("x")
    (path / "cache" / "inner").chmod(0o500)
    (path / "cache").chmod(0)

    assert run(path, root).outcome is HookOutcome.DONE


def test_a_dir_in_which_a_process_lives_is_kept(root: Path) -> None:
    """A cwd, or an open file."""
    path = root / "work"
    path.mkdir()
    with subprocess.Popen(["sleep", "600"], cwd=path) as somebody:
        try:
            result = run(path, root)
        finally:
            somebody.kill()
    assert result.outcome is HookOutcome.KEPT
    assert f"process {somebody.pid} has its cwd" in result.message

    with (path / "log").open("w") as log, subprocess.Popen(["sleep", "600"], stdout=log) as somebody:
        try:
            result = run(path, root)
        finally:
            somebody.kill()
    assert result.outcome is HookOutcome.KEPT
    assert "open file" in result.message

    assert run(path, root).outcome is HookOutcome.DONE


@pytest.mark.parametrize("theirs", ["work", "work/sub", "link/sub/deep"])
def test_a_dir_with_another_living_agents_place_is_kept(root: Path, theirs: str) -> None:
    """Also when that agent named it through a link, and when nothing runs there just now."""
    path = root / "work"
    (path / "sub").mkdir(parents=True)
    (root / "link").symlink_to(path)
    in_use = (("/elsewhere", "gamma (cc)"), (str(root / "workshop"), "delta (dd)"), (str(root / theirs), "beta (bb)"))
    about = context(temp_dir=str(path), in_use=in_use)
    about = hooks.context_of(json.loads(json.dumps(hooks.context_json(about))))

    result = temp_dir(about, hooks.CleanupSettings(roots=(str(root),)))

    assert result.outcome is HookOutcome.KEPT
    assert f"another living agent, beta (bb), works there: {root / theirs}" in result.message
    assert (path / "sub").is_dir()
    about = context(temp_dir=str(path), in_use=in_use[:2])
    assert temp_dir(about, hooks.CleanupSettings(roots=(str(root),))).outcome is HookOutcome.DONE


def test_a_served_socket_keeps_the_dir_and_a_stale_one_does_not(root: Path) -> None:
    """Case G6: a tmux server that nobody could reach any more."""
    path = root / "work"
    path.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(path)
        try:
            server.bind(str(path / "s") if len(str(path)) < 90 else "s")
        finally:
            os.chdir("/")
        if len(str(path)) < 90:
            server.listen()
            assert run(path, root).outcome is HookOutcome.KEPT

    assert run(path, root).outcome is HookOutcome.DONE


def test_a_socket_that_was_bound_by_a_relative_name_is_found_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc/net/unix has it by that name alone; whether somebody listens the file itself says."""
    path = root / "work"
    (path / "sub").mkdir(parents=True)
    monkeypatch.chdir(path / "sub")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        server.bind("s")
        monkeypatch.chdir("/")
        server.listen()
        assert run(path, root).details["refused"] == "socket"
        server.close()
        monkeypatch.chdir(path)
        other.bind("d")
        monkeypatch.chdir("/")
        assert run(path, root).details["refused"] == "socket"

    assert run(path, root).outcome is HookOutcome.DONE


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_the_socket_of_a_tmux_server_stays_however_old_it_looks(root: Path) -> None:
    """Case G6: `tmux ls` works afterwards; a stale socket beside it is no reason to keep another directory."""
    kept, stale = root / "kept", root / "stale"
    kept.mkdir()
    stale.mkdir()
    tmux = ["tmux", "-f", "/dev/null", "-S", str(kept / "s1.sock")]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{os.open(stale, os.O_RDONLY)}/s")
    subprocess.run([*tmux, "new-session", "-d", "sleep", "600"], check=True, cwd="/")
    try:
        os.utime(kept / "s1.sock", (0, 0))
        assert run(kept, root).outcome is HookOutcome.KEPT
        assert subprocess.run([*tmux, "ls"], capture_output=True).returncode == 0
        assert run(stale, root).outcome is HookOutcome.DONE
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)


def test_a_held_lock_keeps_the_dir(root: Path) -> None:
    """As with systemd-tmpfiles: whoever holds a BSD lock keeps it."""
    path = root / "work"
    path.mkdir()
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    try:
        result = run(path, root)
    finally:
        os.close(fd)

    assert result.outcome is HookOutcome.KEPT
    assert "lock" in result.message


@pytest.mark.parametrize("how", ["link", "open", "file"])
def test_trash_that_is_a_link_or_open_to_others_is_not_used(root: Path, tmp_path: Path, how: str) -> None:
    """In /tmp another user may have made that name before us: another beside it is used, and said."""
    path = root / "work"
    path.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if how == "link":
        trash_of(root).symlink_to(elsewhere)
    elif how == "open":
        trash_of(root).mkdir()
        trash_of(root).chmod(0o755)
    else:
        trash_of(root).touch()

    result = run(path, root)

    assert result.outcome is HookOutcome.DONE
    assert f"since {trash_of(root).name} there" in result.message
    assert list(root.iterdir()) == [trash_of(root)]
    assert list(elsewhere.iterdir()) == []


def test_many_at_once_share_one_trash(root: Path) -> None:
    """Whoever empties it takes it away, perhaps under the others' hands; each finds or makes it again."""
    for number in range(80):
        (root / f"work{number}").mkdir()

    def one(number: int) -> HookResult:
        about = context(temp_dir=str(root / f"work{number}"), agent_id=f"agent{number}")
        return temp_dir(about, hooks.CleanupSettings(roots=(str(root),)))

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(one, range(80)))

    assert {result.outcome for result in results} == {HookOutcome.DONE}
    assert list(root.iterdir()) == []


def test_a_trash_that_another_run_makes_meanwhile_is_ours(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look for it and the choice of a name: no second one is made beside it."""
    usual = f".agent-watchdog-trash-{os.geteuid()}"

    def made_meanwhile(_: int) -> list[str]:
        (root / usual).mkdir(mode=0o700)
        return []

    monkeypatch.setattr(trash, "_all_names", made_meanwhile)
    assert trash.beside_name(str(root)) == usual


def test_a_name_that_is_no_utf_8_can_be_told(root: Path) -> None:
    """Messages go into logs and a database."""
    name = os.fsencode(root) + b"/w\xffrk"
    os.mkdir(name)

    result = hooks.result_of(json.loads(json.dumps(hooks.result_json(run(os.fsdecode(name), root)))))

    assert result.outcome is HookOutcome.DONE
    assert "w\\udcffrk" in result.message


def test_nothing_registered_and_nothing_there_is_nothing_to_do(root: Path) -> None:
    """A second run, and an agent without a temp dir."""
    assert run(None, root).outcome is HookOutcome.NOTHING
    assert run(root / "gone", root).outcome is HookOutcome.NOTHING
    assert run(root / "gone" / "too", root).outcome is HookOutcome.NOTHING


KILLED_AT = """
import os, signal, sys
from tests.owner.repositories import context
from watchdog.core import hooks
from watchdog.owner.hooks.temp_dir import temp_dir
left = int(sys.argv[3])
def audit(event, args):
    global left
    if event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(audit)
temp_dir(context(temp_dir=sys.argv[1]), hooks.CleanupSettings(roots=(sys.argv[2],)))
"""


@pytest.mark.faults
def test_killed_before_any_effect_the_next_run_finishes(root: Path) -> None:
    """Invariant 7: SIGKILL before each rename, mkdir, chmod and unlink; then one more run leaves nothing."""
    for step in range(100):
        path = root / "work"
        for inner in ("a/b/c", "a/d", "e"):
            (path / inner).mkdir(parents=True)
            (path / inner / "file").write_text("x")
        argv = [sys.executable, "-c", KILLED_AT, str(path), str(root), str(step)]
        killed = subprocess.run(argv, capture_output=True, text=True)
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL, killed.stderr

        assert run(path, root).outcome in (HookOutcome.DONE, HookOutcome.NOTHING)
        assert list(root.iterdir()) == []
    assert step > 10


MOUNTED = """
import os, subprocess, sys
from pathlib import Path
from tests.owner.repositories import context
from watchdog.core import hooks
from watchdog.owner.hooks.temp_dir import temp_dir
root, how = Path(sys.argv[1]), sys.argv[2]
path, shared = root / "work", root.parent / "shared"
target = path if how.startswith("top") else path / "sub"
target.mkdir(parents=True)
shared.mkdir()
(shared / "canary").write_text("canary")
argv = ["-t", "tmpfs", "none"] if how.endswith("tmpfs") else ["--bind", str(shared)]
subprocess.run(["mount", *argv, str(target)], check=True)
(target / "canary").write_text("canary")
result = temp_dir(context(temp_dir=str(path)), hooks.CleanupSettings(roots=(str(root),)))
assert (target / "canary").read_text() == "canary", "emptied"
print(result.outcome, result.details.get("refused"))
"""


@needs_root
@pytest.mark.parametrize("how", ["tmpfs", "bind", "top-tmpfs", "top-bind"])
def test_a_mount_in_or_at_the_dir_keeps_it(root: Path, how: str) -> None:
    """Also a bind mount of the same device, which st_dev does not tell."""
    argv = ["unshare", "-m", "--propagation", "private", sys.executable, "-c", MOUNTED, str(root), how]
    ran = subprocess.run(argv, capture_output=True, text=True)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["kept", "mount_point" if how.startswith("top") else "mount_inside"]


@needs_root
def test_another_uids_dir_is_refused(root: Path) -> None:
    """Only what is this uid's own."""
    path = root / "work"
    path.mkdir()
    os.chown(path, 12345, 12345)

    assert run(path, root).details["refused"] == "not_yours"


def test_what_cannot_be_deleted_is_told_and_the_rest_goes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case E14: the system's words once, the file stays in the trash, all else is gone."""
    path = root / "work"
    (path / "sub").mkdir(parents=True)
    (path / "sub" / "immutable").write_text("x")
    (path / "other").write_text("x")
    unlink = os.unlink

    def refuse(name: str, *, dir_fd: int | None = None) -> None:
        if name == "immutable":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)

    result = run(path, root)

    assert result.outcome is HookOutcome.FAILED
    assert "Operation not permitted (EPERM)" in result.message
    assert result.details["reason"] == "not_permitted"
    assert [found.name for found in trash_of(root).rglob("*") if found.is_file()] == ["immutable"]
    monkeypatch.undo()
    assert run(path, root).outcome is HookOutcome.DONE


def test_a_directory_that_becomes_a_link_at_the_worst_moment_leads_nowhere(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exchanged right after it was seen to be a directory, in the trash too; the race for it is a row of the faults."""
    canary = tmp_path / "canary"
    (canary / "deep").mkdir(parents=True)
    (canary / "keep").write_text("keep")
    for name in ("a/b", "c"):
        (root / "work" / name).mkdir(parents=True)
    real = trash.Emptying._writable

    def exchanged(self: trash.Emptying, parent: int, name: str) -> int:
        os.rename(name, name + ".aside", src_dir_fd=parent, dst_dir_fd=parent)
        os.symlink(canary, name, dir_fd=parent)
        return real(self, parent, name)

    monkeypatch.setattr(trash.Emptying, "_writable", exchanged)
    result = run(root / "work", root)

    assert (result.outcome, result.details["reason"]) == (HookOutcome.FAILED, "link")
    assert sorted(path.name for path in canary.iterdir()) == ["deep", "keep"]


@pytest.mark.parametrize("times", [10, pytest.param(50, marks=pytest.mark.faults)])
def test_swapping_a_directory_for_a_link_never_leads_outside(root: Path, tmp_path: Path, times: int) -> None:
    """A race of somebody who exchanges a subdirectory for a link all the time; the canary lives."""
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "keep").write_text("keep")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            try:
                place = next(iter([*trash_of(root).glob("*/tree/sub"), root / "work" / "sub"]))
                place.rename(place.with_name("aside"))
                place.symlink_to(canary)
                place.unlink()
                place.with_name("aside").rename(place)
            except OSError:
                continue

    racer = threading.Thread(target=swap)
    racer.start()
    try:
        for _ in range(times):
            with contextlib.suppress(OSError):
                (root / "work" / "sub" / "inner").mkdir(parents=True, exist_ok=True)
            run(root / "work", root)
    finally:
        stop.set()
        racer.join()

    assert (canary / "keep").read_text() == "keep"
