"""The worktree hook on real repositories: what it moves, and everything that it leaves alone."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.owner.repositories import Repository, context, git
from watchdog.core.model import HookOutcome, HookResult
from watchdog.errors import OwnerCallFailed
from watchdog.owner import worktrees
from watchdog.owner.git import Git
from watchdog.owner.hooks import base
from watchdog.owner.hooks.worktree import worktree

AGENT = "a" * 32


def run(path: Path | str | None) -> HookResult:
    """The hook in this process."""
    return worktree(context(worktree=None if path is None else str(path)), base.CleanupSettings())


def hashes(top: Path) -> dict[str, bytes]:
    """All content below a directory, links as their target."""
    found = {}
    for directory, _, files in os.walk(top):
        for name in files:
            file = Path(directory) / name
            found[str(file.relative_to(top))] = os.readlink(file).encode() if file.is_symlink() else file.read_bytes()
    return found


def test_a_clean_merged_tree_goes_to_the_trash_and_its_entry_alone_is_dropped(repository: Repository) -> None:
    """Invariant 8: rename, then one entry; the branch stays."""
    path, other = repository.worktree("wt"), repository.worktree("other")
    before = hashes(path)

    result = run(path)

    assert result.outcome is HookOutcome.DONE, result.message
    assert not path.exists()
    assert hashes(repository.trash / AGENT / "tree") == before
    assert repository.listed() == [str(repository.main), str(other)]
    assert "wt" in git(repository.main, "branch", "--list", "wt")
    assert not (repository.place / f".agent-watchdog-trash-{os.geteuid()}").exists()


@pytest.mark.parametrize("theirs", ["", "tmp"])
def test_a_tree_that_another_living_agent_has_is_kept(repository: Repository, theirs: str) -> None:
    """Agents share a worktree; it goes with the last of them. One above it, in the main checkout, is none."""
    path = repository.worktree("wt")
    about = context(worktree=str(path), in_use=((str(path / theirs), "beta (bb)"),))

    result = worktree(about, base.CleanupSettings())

    assert result.outcome is HookOutcome.KEPT
    assert "another living agent, beta (bb), works there" in result.message
    assert path.is_dir()
    about = context(worktree=str(path), in_use=((str(repository.place), "gamma (cc)"),))
    assert worktree(about, base.CleanupSettings()).outcome is HookOutcome.DONE


def test_the_trash_holds_what_a_restore_needs(repository: Repository) -> None:
    """The entry's copy and the manifest bring the tree back with git's own `repair`."""
    path = repository.worktree()
    (path / ".env").write_text("secret\n")
    assert run(path).outcome is HookOutcome.DONE

    place = repository.trash / AGENT
    manifest = json.loads((place / "manifest.json").read_text())
    assert manifest["path"] == str(path)
    assert manifest["branch"] == "refs/heads/wt"
    shutil.copytree(place / "entry", repository.main / ".git" / "worktrees" / manifest["entry"], symlinks=True)
    (place / "tree").rename(path)
    git(repository.main, "worktree", "repair", str(path))

    assert git(path, "status", "--porcelain") == ""
    assert (path / ".env").read_text() == "secret\n"
    assert git(path, "symbolic-ref", "HEAD").strip() == "refs/heads/wt"


def test_ignored_files_go_with_the_tree(repository: Repository) -> None:
    """A plain `git worktree remove` would delete them; here they lie in the trash."""
    path = repository.worktree()
    (path / "ignored").mkdir()
    (path / "ignored" / "data.db").write_text("rows\n")

    assert run(path).outcome is HookOutcome.DONE

    assert (repository.trash / AGENT / "tree" / "ignored" / "data.db").read_text() == "rows\n"


def test_a_pushed_branch_is_held_by_its_upstream(repository: Repository) -> None:
    """Commits that origin has are not lost with the tree."""
    path = repository.worktree()
    commit(path)
    git(path, "push", "-q", "origin", "wt")

    assert run(path).outcome is HookOutcome.DONE


def test_the_main_checkouts_clean_and_add_change_nothing_of_the_trash(repository: Repository) -> None:
    """The trash lies in the git dir, where neither `git clean -fdx` nor `git add -A` looks."""
    path = repository.worktree()
    assert run(path).outcome is HookOutcome.DONE
    before = hashes(repository.trash)

    git(repository.main, "clean", "-fdxq")
    git(repository.main, "add", "-A")

    assert hashes(repository.trash) == before
    assert git(repository.main, "status", "--porcelain") == ""


def commit(path: Path, text: str = "two\n") -> None:
    """One commit more."""
    (path / "file").write_text(text)
    git(path, "commit", "-qam", "more")


def modified(path: Path, repository: Repository) -> None:
    """A tracked file was changed."""
    (path / "file").write_text("changed\n")


def same_size_and_time(path: Path, repository: Repository) -> None:
    """A tracked file was changed behind the back of its mtime and size."""
    file = path / "file"
    status = file.stat()
    file.write_text("ONE\n")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def untracked(path: Path, repository: Repository) -> None:
    """A file that git does not know."""
    (path / "notes").write_text("mine\n")


def staged(path: Path, repository: Repository) -> None:
    """Something is in the index only."""
    (path / "new").write_text("new\n")
    git(path, "add", "new")
    (path / "new").unlink()


def conflicted(path: Path, repository: Repository) -> None:
    """A merge stopped at a conflict."""
    commit(path, "ours\n")
    commit(repository.main, "theirs\n")
    subprocess.run(["git", "-C", str(path), "merge", "-q", "main"], capture_output=True, check=False)


def rebase_stopped(path: Path, repository: Repository) -> None:
    """A rebase stopped at a conflict."""
    commit(path, "ours\n")
    commit(repository.main, "theirs\n")
    subprocess.run(["git", "-C", str(path), "rebase", "-q", "main"], capture_output=True, check=False)


def bisecting(path: Path, repository: Repository) -> None:
    """A bisect runs."""
    git(path, "bisect", "start")


def detached(path: Path, repository: Repository) -> None:
    """HEAD is detached, here even at a commit that main holds."""
    git(path, "checkout", "-q", "--detach")


def unpushed(path: Path, repository: Repository) -> None:
    """A commit that only the branch holds."""
    commit(path)


def upstream_gone(path: Path, repository: Repository) -> None:
    """It was pushed once, but the remote branch is gone."""
    commit(path)
    git(path, "push", "-q", "-u", "origin", "wt")
    git(path, "push", "-q", "origin", ":wt")


def locked(path: Path, repository: Repository) -> None:
    """Somebody locked it."""
    git(repository.main, "worktree", "lock", "--reason", "on a stick", str(path))


def stashed(path: Path, repository: Repository) -> None:
    """A stash was made on the branch."""
    (path / "file").write_text("changed\n")
    git(path, "stash", "-q")


def assumed_unchanged(path: Path, repository: Repository) -> None:
    """The index was told not to look at a changed file."""
    git(path, "update-index", "--assume-unchanged", "file")
    (path / "file").write_text("changed\n")


def skipped(path: Path, repository: Repository) -> None:
    """The index was told that a file is not there, but it is."""
    git(path, "update-index", "--skip-worktree", "file")
    (path / "file").write_text("changed\n")


def nested(path: Path, repository: Repository) -> None:
    """A repository in an ignored directory."""
    (path / "ignored").mkdir()
    git(path / "ignored", "init", "-q", "inner")


def nested_bare(path: Path, repository: Repository) -> None:
    """A bare repository in an ignored directory."""
    (path / "ignored").mkdir()
    git(path / "ignored", "init", "-q", "--bare", "inner")


def submodule(path: Path, repository: Repository) -> None:
    """A submodule is checked out."""
    url = str(repository.origin)
    git(path, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub")
    git(path, "commit", "-qm", "submodule")
    git(path, "push", "-q", "origin", "wt")


def lock_file(path: Path, repository: Repository) -> None:
    """A git is at work in it, or died in it."""
    (repository.main / ".git" / "worktrees" / "wt" / "index.lock").touch()


def only_in_reflog(path: Path, repository: Repository) -> None:
    """A commit was made on a detached HEAD and left."""
    git(path, "checkout", "-q", "--detach")
    commit(path)
    git(path, "checkout", "-q", "wt")


def index_truncated(path: Path, repository: Repository) -> None:
    """The index cannot be read."""
    index = repository.main / ".git" / "worktrees" / "wt" / "index"
    index.write_bytes(index.read_bytes()[:20])


def pointer_broken(path: Path, repository: Repository) -> None:
    """Its .git points nowhere."""
    (path / ".git").write_text("gitdir: /nonexistent/worktrees/wt\n")


def copied(path: Path, repository: Repository) -> None:
    """It was copied: the entry points to another place."""
    moved = path.with_name("moved")
    shutil.copytree(path, moved, symlinks=True)
    shutil.rmtree(path)
    moved.rename(path)
    (repository.main / ".git" / "worktrees" / "wt" / "gitdir").write_text(str(repository.place / "elsewhere" / ".git"))
    (repository.place / "elsewhere").mkdir()
    (repository.place / "elsewhere" / ".git").write_text("gitdir: x\n")


STATES: list[Callable[[Path, Repository], None]] = [
    modified,
    same_size_and_time,
    untracked,
    staged,
    conflicted,
    rebase_stopped,
    bisecting,
    detached,
    unpushed,
    upstream_gone,
    locked,
    stashed,
    assumed_unchanged,
    skipped,
    nested,
    nested_bare,
    submodule,
    lock_file,
    only_in_reflog,
    index_truncated,
    pointer_broken,
    copied,
]


@pytest.mark.parametrize("make", STATES, ids=lambda make: make.__name__)
def test_whatever_is_not_plainly_safe_stays_where_it_is(
    repository: Repository, make: Callable[[Path, Repository], None]
) -> None:
    """Invariant 8: dirty, unheld, locked, in progress, not understood: kept with the reason, every byte in place."""
    path = repository.worktree()
    make(path, repository)
    before, listed = hashes(path), repository.listed()

    result = run(path)

    assert result.outcome in (HookOutcome.KEPT, HookOutcome.FAILED), result.message
    assert len(result.message) > len(f"kept {path}: ")
    assert hashes(path) == before
    assert repository.listed() == listed
    assert not (repository.trash / AGENT).exists()


@pytest.mark.parametrize("which", ["main", "origin.git", "plain"])
def test_what_is_no_linked_worktree_is_never_touched(repository: Repository, which: str) -> None:
    """Not the main checkout, not a bare repository, not a plain directory, even inside a checkout."""
    path = repository.main / "plain" if which == "plain" else repository.place / which
    path.mkdir(exist_ok=True)
    before = hashes(path)

    assert run(path).outcome is HookOutcome.KEPT
    assert hashes(path) == before


def test_a_link_to_a_worktree_is_refused(repository: Repository) -> None:
    """Nothing is opened through a link."""
    path = repository.worktree()
    (repository.place / "link").symlink_to(path)

    result = run(repository.place / "link")

    assert result.outcome is HookOutcome.KEPT
    assert result.details["refused"] == "link"
    assert path.is_dir()


def test_a_tree_in_which_somebody_works_is_kept(repository: Repository) -> None:
    """A process's cwd below it is a user."""
    path = repository.worktree()
    with subprocess.Popen(["sleep", "600"], cwd=path) as somebody:
        try:
            result = run(path)
        finally:
            somebody.kill()

    assert result.outcome is HookOutcome.KEPT
    assert str(somebody.pid) in result.message


def test_a_bystander_that_was_moved_away_keeps_its_entry(repository: Repository) -> None:
    """Case E9: a bare prune would take the other's index; only our entry goes."""
    path, other = repository.worktree("wt"), repository.worktree("other")
    (other / "new").write_text("new\n")
    git(other, "add", "new")
    other.rename(repository.place / "away")

    assert run(path).outcome is HookOutcome.DONE

    (repository.place / "away").rename(other)
    assert git(other, "status", "--porcelain") == "A  new\n"


def test_no_program_of_the_repository_runs(repository: Repository) -> None:
    """Hooks, fsmonitor and filters are config that whoever works there writes."""
    path = repository.worktree()
    canary = repository.place / "canary"
    script = repository.place / "script"
    script.write_text(f"#!/bin/sh\ntouch {canary}\ncat\n")
    script.chmod(0o755)
    shutil.copy(script, repository.main / ".git" / "hooks" / "post-index-change")
    git(repository.main, "config", "filter.evil.clean", str(script))
    git(repository.main, "config", "filter.evil.smudge", str(script))
    (repository.main / ".git" / "info").mkdir(exist_ok=True)
    (repository.main / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    git(repository.main, "config", "core.fsmonitor", str(script))
    os.utime(path / "file")
    canary.unlink(missing_ok=True)

    assert run(path).outcome is HookOutcome.DONE
    assert not canary.exists()


def test_without_git_it_is_kept(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case E2: an inspection that failed is not "clean"."""
    path = repository.worktree()
    monkeypatch.setenv("PATH", "/nonexistent")

    result = run(path)

    assert result.outcome is HookOutcome.FAILED
    assert result.details["reason"] == "git_missing"
    assert path.is_dir()


def test_git_that_fails_at_any_question_keeps_the_tree(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case E2, one question after the other: `git` fails the n-th time until it is never asked so often."""
    real = shutil.which("git")
    fake = tmp_path / "bin"
    fake.mkdir()
    counter = tmp_path / "counter"
    (fake / "git").write_text(
        f'#!/bin/sh\necho >> {counter}\n[ "$(wc -l < {counter})" = "$FAIL_AT" ] && exit 1\nexec {real} "$@"\n'
    )
    (fake / "git").chmod(0o755)
    path = repository.worktree()
    before, asked = hashes(path), 0
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    for asked in range(1, 40):
        counter.write_text("")
        monkeypatch.setenv("FAIL_AT", str(asked))
        result = run(path)
        if result.outcome is HookOutcome.DONE and len(counter.read_text()) < asked:
            break
        # Exit status 1 of `git config` says that nothing is configured.
        if result.outcome is HookOutcome.DONE:
            monkeypatch.setenv("FAIL_AT", "0")
            shutil.rmtree(repository.trash)
            git(repository.main, "branch", "-D", "wt")
            path = repository.worktree()
            continue
        assert result.outcome is HookOutcome.FAILED, result.message
        assert hashes(path) == before
        assert str(path) in repository.listed()
    assert asked > 8


def test_nothing_registered_and_nothing_there_is_nothing_to_do(repository: Repository) -> None:
    """A second run, and an agent without a worktree."""
    path = repository.worktree()
    assert run(path).outcome is HookOutcome.DONE

    assert run(path).outcome is HookOutcome.NOTHING
    assert run(None).outcome is HookOutcome.NOTHING
    assert run(repository.place / "no" / "such").outcome is HookOutcome.NOTHING


KILLED_AT = """
import os, signal, sys
from tests.owner.repositories import context
from watchdog.owner.hooks import base
from watchdog.owner.hooks.worktree import worktree
left = int(sys.argv[2])
def audit(event, args):
    global left
    writing = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_CREAT)
    if writing or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "subprocess.Popen", "os.symlink"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(audit)
print(worktree(context(worktree=sys.argv[1]), base.CleanupSettings()).message)
"""


def test_killed_before_any_effect_the_next_run_finishes(repository: Repository) -> None:
    """Invariant 7: SIGKILL before each rename, mkdir, unlink and git run; then one more run ends the story."""
    for step in range(100):
        name = f"wt{step}"
        path = repository.worktree(name)
        before = hashes(path)
        killed = subprocess.run([sys.executable, "-c", KILLED_AT, str(path), str(step)], capture_output=True, text=True)
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL, killed.stderr

        again = run(path)

        assert again.outcome in (HookOutcome.DONE, HookOutcome.NOTHING), again.message
        assert not path.exists()
        assert str(path) not in repository.listed()
        assert hashes(repository.trash / AGENT / "tree") == before
        assert not (repository.place / f".agent-watchdog-trash-{os.geteuid()}" / f"{AGENT}.worktree.json").exists()
        shutil.rmtree(repository.trash)
    assert step > 15


def test_a_lock_that_comes_in_between_brings_the_tree_back(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git refuses to drop a locked entry; then the tree lies where it lay."""
    path = repository.worktree()
    before = hashes(path)
    look = worktrees.reasons_to_keep

    def look_then_lock(*arguments: object) -> list[str]:
        found = look(*arguments)  # type: ignore[arg-type]
        git(repository.main, "worktree", "lock", str(path))
        return found

    monkeypatch.setattr(worktrees, "reasons_to_keep", look_then_lock)

    result = run(path)

    assert result.outcome is HookOutcome.FAILED
    assert hashes(path) == before
    assert str(path) in repository.listed()
    assert not (repository.trash / AGENT).exists()


def test_an_open_socket_in_the_tree_keeps_it(repository: Repository) -> None:
    """A server that others reach by that name."""
    path = repository.worktree()
    (path / "ignored").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path / "ignored" / "s"))
        result = run(path)

    assert result.outcome is HookOutcome.KEPT
    assert "socket" in result.message


def test_an_entry_that_a_killed_git_left_half_deleted_is_finished(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git no longer lists it, so it would refuse for ever; the rest is moved to the trash."""
    path, other = repository.worktree("wt"), repository.worktree("other")
    real = Git.run

    def half(self: Git, *arguments: str, **options: object) -> str:
        if arguments[:2] == ("worktree", "remove"):
            (repository.main / ".git" / "worktrees" / "wt" / "gitdir").unlink()
            raise OwnerCallFailed("git_failed", "killed")
        return real(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Git, "run", half)

    assert run(path).outcome is HookOutcome.DONE
    assert repository.listed() == [str(repository.main), str(other)]
    assert (repository.trash / AGENT / "entry" / "gitdir").exists()
