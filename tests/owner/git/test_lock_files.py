"""Case E12 on real repositories: a dead git's lock goes aside, everybody else's stays."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.owner.repositories import Repository, context, git
from tests.world import wait_for
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.owner.git import git_processes, lock_files
from watchdog.owner.hooks.git_locks import git_locks as hook

AGENT = "a" * 32


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is young stays young, and the second look comes at once: nobody here is slow."""
    monkeypatch.setattr(lock_files, "APART", 0.0)
    monkeypatch.setattr(lock_files, "MIN_AGE", 0.0)


def run(path: Path) -> HookResult:
    """When no git of this uid is there that cannot be looked at: another suite's, which would keep every lock."""
    wait_for(lambda: not any(one.unseen for one in git_processes.at_work()), "every git of this uid can be looked at")
    return hook(context(worktree=str(path), agent_id=AGENT), hooks.CleanupSettings())


def aside(repository: Repository) -> list[str]:
    place = repository.main / ".git" / "agent-watchdog" / "locks" / AGENT
    return sorted(found.name for found in place.iterdir()) if place.is_dir() else []


@contextmanager
def committing(tree: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`git commit -a` whose editor waits for us, with the index locked and its file closed; killed afterwards."""
    (tree / "file").write_text("changed\n")
    up = tree.parent / f"{tree.name}.up"
    environment = os.environ | {"GIT_EDITOR": f"touch {up}; sleep 600; :"}
    with subprocess.Popen(["git", "commit", "-a"], cwd=tree, env=environment, start_new_session=True) as committer:
        try:
            wait_for(up.exists, "the editor is there")
            yield committer
        finally:
            os.killpg(committer.pid, signal.SIGKILL)


def killed_in_a_commit(tree: Path) -> Path:
    """The index lock that a killed git left."""
    with committing(tree):
        pass
    lock = Path(git(tree, "rev-parse", "--absolute-git-dir").strip()) / "index.lock"
    assert lock.exists()
    return lock


@pytest.mark.parametrize("linked", [False, True])
def test_the_lock_of_a_killed_git_goes_aside_and_git_works_again(repository: Repository, linked: bool) -> None:
    """In a main checkout and in a linked worktree; its content, half an index, is kept."""
    tree = repository.worktree() if linked else repository.main
    lock = killed_in_a_commit(tree)
    held = lock.read_bytes()
    refused = subprocess.run(["git", "add", "-A"], cwd=tree, capture_output=True)
    assert refused.returncode == 128

    result = run(tree)

    assert result.outcome is HookOutcome.DONE, result.message
    assert not lock.exists()
    name = "worktrees+wt+index.lock" if linked else "index.lock"
    assert aside(repository) == [name]
    assert (Path(str(result.details["area"])) / name).read_bytes() == held
    git(tree, "add", "-A")
    assert run(tree).outcome is HookOutcome.NOTHING


@pytest.mark.parametrize("linked", [False, True])
def test_a_lock_in_a_submodule_goes_aside_while_a_git_works_around_it(repository: Repository, linked: bool) -> None:
    """A submodule's git dir is a repository of its own, in the checkout's; a living git in it keeps its locks."""
    tree = repository.worktree() if linked else repository.main
    git(tree, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(repository.origin), "deps/sub")
    git(tree, "commit", "-qm", "a submodule")
    with committing(tree / "deps" / "sub"):
        assert run(tree).outcome is HookOutcome.KEPT
    lock = Path(git(tree / "deps" / "sub", "rev-parse", "--absolute-git-dir").strip()) / "index.lock"
    assert lock.exists()

    with committing(tree):
        result = run(tree)

    assert result.outcome is HookOutcome.DONE, result.message
    assert list(result.details["moved"]) == [str(lock)]  # type: ignore[call-overload]
    assert "at work there" in result.message
    git(tree / "deps" / "sub", "add", "-A")


@pytest.mark.parametrize("how", ["cwd", "GIT_DIR", "--git-dir"])
def test_a_living_git_keeps_its_lock(repository: Repository, how: str) -> None:
    """Though it has closed the file while its editor waits, however old the lock is, and wherever it was called."""
    tree = repository.worktree()
    lock = Path(git(tree, "rev-parse", "--absolute-git-dir").strip()) / "index.lock"
    with committing(tree) if how == "cwd" else elsewhere(tree, lock, how):
        os.utime(lock, (0, 0))
        result = run(tree)
        assert lock.exists()
    assert result.outcome is HookOutcome.KEPT, result.message
    assert "is at work there" in result.message
    assert run(tree).outcome is HookOutcome.DONE


@contextmanager
def elsewhere(tree: Path, lock: Path, how: str) -> Iterator[None]:
    """A git that sits in / and names the repository; it waits for input."""
    lock.write_text("")
    words = [f"--git-dir={lock.parent}"] if how == "--git-dir" else []
    environment = os.environ | ({"GIT_DIR": str(lock.parent)} if how == "GIT_DIR" else {})
    argv = ["git", *words, "cat-file", "--batch"]
    with subprocess.Popen(argv, cwd="/", env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asking:
        assert asking.stdin is not None and asking.stdout is not None
        asking.stdin.write(b"HEAD\n")
        asking.stdin.flush()
        asking.stdout.readline()
        yield
        asking.stdin.close()


def test_a_git_next_door_keeps_only_what_is_shared(repository: Repository) -> None:
    """Its own worktree's index is not this one's; packed refs are everybody's."""
    mine, theirs = repository.worktree("mine"), repository.worktree("theirs")
    lock = killed_in_a_commit(mine)
    shared = repository.main / ".git" / "packed-refs.lock"
    shared.touch()

    with committing(theirs):
        result = run(mine)
    foreign = repository.main / ".git" / "worktrees" / "theirs" / "index.lock"

    assert (lock.exists(), shared.exists(), foreign.exists()) == (False, True, True)
    assert "packed-refs.lock: git, process" in result.message
    assert run(mine).outcome is HookOutcome.DONE
    assert (shared.exists(), foreign.exists()) == (False, True)
    assert aside(repository) == ["packed-refs.lock", "worktrees+mine+index.lock"]


def test_a_lock_that_somebody_has_open_stays(repository: Repository) -> None:
    """Whoever that is: a program of another name may know git's files."""
    lock = repository.main / ".git" / "index.lock"
    argv = [
        sys.executable,
        "-c",
        "import sys; open(sys.argv[1], 'w'); f = open(sys.argv[1]); print(flush=True); input()",
    ]
    with subprocess.Popen([*argv, str(lock)], cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        result = run(repository.main)
        holder.communicate(b"\n")
    assert result.outcome is HookOutcome.KEPT
    assert f"process {holder.pid} has it open" in result.message
    assert lock.exists()


def test_young_locks_and_those_written_again_stay(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the looks somebody may come; what was written after the agent's end is not the agent's."""
    lock = repository.main / ".git" / "index.lock"
    lock.touch()
    found = lock_files.of_worktree(str(repository.main))

    outcome = lock_files.put_aside(found, AGENT, time.time() + 60, wait=lambda _: lock.write_text("again"))
    assert (outcome.moved, "written again" in outcome.kept[0]) == ([], True)

    outcome = lock_files.put_aside(found, AGENT, time.time() - 60, wait=lambda _: None)
    assert (outcome.moved, "after the agent's end" in outcome.kept[0]) == ([], True)

    monkeypatch.setattr(lock_files, "MIN_AGE", 3600.0)
    waited: list[float] = []
    outcome = lock_files.put_aside(found, AGENT, time.time() + 60, wait=waited.append)
    assert (outcome.moved, "is younger than" in outcome.kept[0]) == ([], True)
    assert 3590 < waited[0] < 3601
    assert lock.exists()


def test_every_kind_of_lock_is_known_and_nothing_else_is_taken(repository: Repository) -> None:
    """Refs, reflogs, config, maintenance; what other programs call a lock, links and directories stay."""
    git_dir = repository.main / ".git"
    locks = {
        *("HEAD.lock", "ORIG_HEAD.lock", "next-index-17.lock", "packed-refs.lock", "packed-refs.new", "config.lock"),
        *("shallow.lock", "gc.pid.lock", "objects/maintenance.lock", "objects/info/commit-graph.lock"),
        *(
            "info/sparse-checkout.lock",
            "refs/heads/a/b.lock",
            "refs/tags/v1.lock",
            "logs/HEAD.lock",
            "logs/refs/x.lock",
        ),
    }
    others = {"lfs.lock", "yarn.lock", "refs/heads/a/b", "objects/pack/x.lock", "hooks/index.lock", "index.lock.save"}
    for name in locks | others:
        (git_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (git_dir / name).touch()
    (git_dir / "refs" / "heads" / "link.lock").symlink_to("/etc/passwd")
    (git_dir / "refs" / "heads" / "directory.lock").mkdir()

    result = run(repository.main)

    assert result.outcome is HookOutcome.DONE, result.message
    assert {name for name in locks if (git_dir / name).exists()} == set()
    assert {name for name in others if not (git_dir / name).exists()} == set()
    assert (git_dir / "refs" / "heads" / "link.lock").is_symlink()
    assert aside(repository) == sorted(name.replace("/", "+") for name in locks)


KILLED_AT = """
import os, signal, sys, time
from watchdog.core import hooks
from watchdog.owner.git import lock_files
from watchdog.owner.hooks.git_locks import git_locks as hook
from tests.owner.repositories import context
left = int(sys.argv[2])
def audit(event, args):
    global left
    if event in ("os.rename", "os.mkdir", "os.link", "os.remove"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
lock_files.APART = lock_files.MIN_AGE = 0.0
sys.addaudithook(audit)
hook(context(worktree=sys.argv[1]), hooks.CleanupSettings())
"""


@pytest.mark.faults
def test_killed_before_any_effect_the_next_run_leaves_the_same_place(repository: Repository) -> None:
    """Each lock lies in one place or the other, with its content, after every SIGKILL; one more run moves the rest."""
    locks = [repository.main / ".git" / name for name in ("index.lock", "HEAD.lock")]
    for step in range(20):
        for lock in locks:
            lock.write_text(f"{lock.name} {step}")
        killed = subprocess.run([sys.executable, "-c", KILLED_AT, str(repository.main), str(step)], capture_output=True)
        assert killed.returncode in (0, -signal.SIGKILL), killed.stderr

        assert run(repository.main).outcome in (HookOutcome.DONE, HookOutcome.NOTHING)
        area = repository.main / ".git" / "agent-watchdog" / "locks" / AGENT
        assert not any(lock.exists() for lock in locks)
        assert sorted(path.read_text() for path in area.iterdir()) == [f"HEAD.lock {step}", f"index.lock {step}"]
        shutil.rmtree(area.parent.parent)
        if killed.returncode == 0:
            break
    assert step == 5


def test_two_dead_locks_of_one_name_lie_side_by_side(repository: Repository) -> None:
    """Nothing that was moved is overwritten."""
    lock = repository.main / ".git" / "index.lock"
    for content in ("one", "two"):
        lock.write_text(content)
        assert run(repository.main).outcome is HookOutcome.DONE
    assert aside(repository) == ["index.lock", "index.lock.1"]


def test_what_is_no_checkout_of_this_uid_is_left_alone(repository: Repository, tmp_path: Path) -> None:
    """A plain directory, a subdirectory, a copied worktree that names another's entry, a link, nothing at all."""
    tree = repository.worktree()
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(tree), str(copy)], check=True)
    (tmp_path / "link").symlink_to(tree)
    (tmp_path / "plain").mkdir()
    (repository.main / "sub").mkdir()
    lock = repository.main / ".git" / "worktrees" / "wt" / "index.lock"
    lock.touch()

    refused = [run(path).details.get("refused") for path in (copy, tmp_path / "link", tmp_path / "plain")]

    assert refused == ["back_pointer", "link", "no_worktree"]
    assert run(repository.main / "sub").details["refused"] == "no_worktree"
    assert run(tmp_path / "gone").outcome is HookOutcome.NOTHING
    assert lock.exists()
    if os.geteuid() == 0:
        os.chown(tree, 12345, 12345)
        assert run(tree).details["refused"] == "not_yours"


def test_git_that_says_nothing_is_not_a_worktree_that_is_not_there(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q10: its locks may lie there all the same."""
    path = repository.worktree()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    result = run(path)
    assert result.outcome is HookOutcome.FAILED
    assert "not there" not in result.message
