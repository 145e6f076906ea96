"""Repositories in which everything that git may run is a canary, before every act of ours (H4 and its siblings).

The agent is dead; what it left must not run. None of the canaries may sing in any act, and work in repositories inside
must still keep the worktree.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.trapped_repository import ENVIRONMENT, Canaries, Trapped, inner
from tests.owner.repositories import Repository, context, git, own_config
from watchdog.core import hooks
from watchdog.core.findings import KnownAgents
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner.finders import finders
from watchdog.owner.git import lock_files, restore
from watchdog.owner.git.git import Git
from watchdog.owner.hooks.git_locks import git_locks as locks_hook
from watchdog.owner.hooks.worktree import worktree as hook

pytestmark = pytest.mark.attacks
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
AGENT = "a" * 32
STRANGER = 54321


@pytest.fixture(autouse=True)
def _git_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    own_config(monkeypatch, tmp_path_factory.mktemp("config"))


@pytest.fixture
def trapped(tmp_path: Path) -> Trapped:
    return Trapped(tmp_path)


def _environment(patch: pytest.MonkeyPatch, canaries: Canaries) -> None:
    """What the helper's environment would name, if it named anything."""
    for name in ENVIRONMENT:
        patch.setenv(name, canaries.program(f"variable-{name}"))
    patch.setenv("GIT_CONFIG_COUNT", "1")
    patch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    patch.setenv("GIT_CONFIG_VALUE_0", canaries.program("variable-config"))
    patch.setenv("GIT_DIR", "/nonexistent")
    patch.setenv("GIT_INDEX_FILE", "/nonexistent")
    patch.setenv("GIT_EXEC_PATH", str(canaries.programs))


def put_away(path: Path, **settings: str) -> HookResult:
    return hook(context(worktree=str(path)), hooks.CleanupSettings(**settings))  # type: ignore[arg-type]


def test_the_traps_are_set(trapped: Trapped) -> None:
    """Git itself, asked the same questions without what we turn off, runs them: else this file would prove nothing."""
    tree = trapped.worktree("wt")
    inner(tree / "sub", trapped.canaries, "inner")
    git(tree, "-c", "core.hooksPath=/dev/null", "add", "sub")
    trapped.close()
    (tree / "file").write_text("two\n")  # of the same size: only its content tells
    os.utime(tree / "a.long")
    trapped.canaries.forget()
    null = subprocess.DEVNULL
    plain = "-c core.fsmonitor=false status", "-c core.fsmonitor=false diff --ignore-submodules=all"
    others = "status", "commit --allow-empty -m x", "update-ref refs/heads/x HEAD", "fetch evil"
    # A filter process that ends at once may take its git along: after the first question it is off.
    for words in ("status", *(f"-c filter.long.process= {one}" for one in (*plain, *others))):
        argv = ["git", "--no-pager", "-C", str(tree), *words.split()]
        subprocess.run(argv, stdin=null, stdout=null, stderr=null, timeout=100, check=False)
    wanted = {
        *("outer.fsmonitor", "outer.filter-clean", "outer.filter-process"),
        *("outer.hook-reference-transaction", "outer.hook-post-index-change", "outer.hook-pre-commit"),
        *("inner.filter-clean", "inner.fsmonitor", "transport", "outer.diff-command"),
    }
    assert wanted <= trapped.canaries.sung(), wanted - trapped.canaries.sung()


def _gitlink(tree: Path, canaries: Canaries) -> None:
    """A gitlink, committed and pushed, whose repository lies in the worktree."""
    inner(tree / "sub", canaries, "inner")
    git(tree, "add", "sub")
    git(tree, "commit", "-qm", "a gitlink")
    git(tree, "push", "-q", "origin", tree.name)


def _untracked(tree: Path, canaries: Canaries) -> None:
    inner(tree / "new", canaries, "inner")


def _ignored(tree: Path, canaries: Canaries) -> None:
    (tree / "ignored").mkdir()
    inner(tree / "ignored" / "deep", canaries, "inner")


def _submodule(tree: Path, canaries: Canaries) -> None:
    """A real one: its git dir lies below the worktree's entry."""
    source = tree.parent / "source"
    inner(source, canaries, "source")
    git(source, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "checkout", "-q", "-f", "HEAD")
    canaries.forget()
    off = "-c", "protocol.file.allow=always"
    git(tree, *off, "submodule", "--quiet", "add", str(source), "sub")
    git(tree, "commit", "-qm", "a submodule")
    git(tree, "push", "-q", "origin", tree.name)
    git_dir = Path(git(tree / "sub", "rev-parse", "--absolute-git-dir").strip())
    for key, value in {"core.fsmonitor": "fsmonitor", "filter.inner.clean": "filter-clean"}.items():
        git(tree / "sub", "config", key, canaries.program(f"inner.{value}"))
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info" / "attributes").write_text("* filter=inner\n")
    (tree / "sub" / "file").write_text("two\n")  # of the same size: only its content tells


@pytest.mark.parametrize("nested", [_gitlink, _untracked, _ignored, _submodule])
@pytest.mark.parametrize("dirty", ["keep", "rescue"])
def test_a_repository_inside_keeps_the_worktree_and_runs_nothing(
    trapped: Trapped, nested: Callable[[Path, Canaries], None], dirty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H4. f87b3bd: `git status` of the worktree ran inner.filter-clean and inner.fsmonitor, for a gitlink and for a
    submodule.
    """
    tree = trapped.worktree("wt")
    nested(tree, trapped.canaries)
    trapped.close()
    trapped.canaries.forget()
    _environment(monkeypatch, trapped.canaries)

    result = put_away(tree, dirty_worktree=dirty)

    assert trapped.canaries.sung() == set()
    assert result.outcome is HookOutcome.KEPT, result.message
    assert "submodule" in result.message or "a repository lies in it" in result.message
    assert tree.is_dir()


@pytest.mark.parametrize("dirty", [False, True])
def test_nothing_runs_from_the_removal_to_the_restore_and_the_end_of_the_trash(
    trapped: Trapped, dirty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status, rescue, the drop of the entry and the branch, all looks of the reaper, restore, locks, retention.

    f87b3bd: nothing ran here either, with git 2.39; it stays so.
    """
    tree = trapped.worktree("wt")
    main = trapped.repository.main
    git(main, "merge", "-q", "wt")
    git(main, "push", "-q", "origin", "main")
    if dirty:
        (tree / "file").write_text("work\n")
        (tree / "c.long").write_text("work\n")
    trapped.close()
    trapped.canaries.forget()
    with pytest.MonkeyPatch.context() as patch:
        _environment(patch, trapped.canaries)
        settings = hooks.CleanupSettings(dirty_worktree="rescue", merged_branch="delete", trash_retention_hours=0)
        for lock in (main / ".git" / "worktrees" / "wt" / "HEAD.lock", main / ".git" / "packed-refs.lock"):
            lock.touch()
            os.utime(lock, (1, 1))
        monkeypatch.setattr(lock_files, "APART", 0.0)
        monkeypatch.setattr(lock_files, "MIN_AGE", 0.0)
        assert locks_hook(context(worktree=str(tree)), settings).outcome is HookOutcome.DONE
        result = hook(context(worktree=str(tree)), settings)
        assert result.outcome is HookOutcome.DONE, result.message
        assert trapped.canaries.sung() == set()

        assert len(restore.restorable([str(main)])["found"]) == 1  # type: ignore[arg-type]
        assert "would be restored" in str(restore.restore(AGENT, [str(main)], dry_run=True)["message"])
        assert "restored" in str(restore.restore(AGENT, [str(main)])["message"])
        assert tree.is_dir()
        assert trapped.canaries.sung() == set()

        assert hook(context(worktree=str(tree), run_id="run-2"), settings).outcome is HookOutcome.DONE
        known = KnownAgents(ended={AGENT: 1e6}, worktrees={AGENT: str(tree)}, commons=(str(main / ".git"),))
        for kind in finders.FINDERS:
            for finding in list(finders.look(kind, settings, known)):
                finders.act(finding, settings, known)
        assert trapped.canaries.sung() == set()
    assert (main / ".git" / "agent-watchdog" / "trash").is_dir()
    assert not list((main / ".git" / "agent-watchdog" / "trash").iterdir())


def test_an_object_that_a_partial_clone_misses_is_not_fetched(
    trapped: Trapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blob of HEAD is missing, and its promisor's address is a program (ext::)."""
    tree = trapped.worktree("wt")
    blob = git(tree, "rev-parse", "HEAD:a.long").strip()
    trapped.close()
    objects = trapped.repository.main / ".git" / "objects"
    (objects / blob[:2] / blob[2:]).unlink()
    (tree / "a.long").write_text("changed\n")
    trapped.canaries.forget()
    _environment(monkeypatch, trapped.canaries)

    with pytest.raises(OwnerCallFailed):
        Git(str(tree), 20).digests([blob])
    result = put_away(tree, dirty_worktree="rescue")

    assert trapped.canaries.sung() == set()
    assert result.outcome in (HookOutcome.KEPT, HookOutcome.FAILED, HookOutcome.DONE)


@pytest.mark.parametrize("kind", [_gitlink, _submodule])
def test_locks_in_a_submodule_go_aside_without_a_git_in_there(
    trapped: Trapped, kind: Callable[[Path, Canaries], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sibling: the hook git_locks ran git in each submodule. Its index and pointer are read from outside now.

    f87b3bd: five git commands ran there under its configuration, though none of them ran a canary.
    """
    tree = trapped.worktree("wt")
    kind(tree, trapped.canaries)
    inner_dir = Path(git(tree / "sub", "rev-parse", "--absolute-git-dir").strip())
    trapped.close()
    (inner_dir / "index.lock").touch()
    os.utime(inner_dir / "index.lock", (1, 1))
    trapped.canaries.forget()
    monkeypatch.setattr(lock_files, "APART", 0.0)
    monkeypatch.setattr(lock_files, "MIN_AGE", 0.0)
    asked: list[str] = []

    def noting(place: str, seconds: float, *, git_dir: str | None = None) -> Git:
        asked.append(place)
        return Git(place, seconds, git_dir=git_dir)

    monkeypatch.setattr(lock_files, "Git", noting)

    result = locks_hook(context(worktree=str(tree)), hooks.CleanupSettings())

    assert result.outcome is HookOutcome.DONE, result.message
    assert not (inner_dir / "index.lock").exists()
    assert set(asked) == {str(tree)}
    assert trapped.canaries.sung() == set()


def test_a_git_file_in_a_submodules_place_leads_to_no_other_repository(
    trapped: Trapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sibling: a pointer to another repository of the same user would have had that one's locks moved."""
    tree = trapped.worktree("wt")
    _gitlink(tree, trapped.canaries)
    other = tree.parent / "other"
    git(tree.parent, "init", "-q", str(other))
    lock = other / ".git" / "index.lock"
    lock.touch()
    os.utime(lock, (1, 1))
    (tree / "sub" / ".git").rename(tree.parent / "moved")
    (tree / "sub" / ".git").write_text(f"gitdir: {other}/.git\n")
    monkeypatch.setattr(lock_files, "APART", 0.0)
    monkeypatch.setattr(lock_files, "MIN_AGE", 0.0)

    locks_hook(context(worktree=str(tree)), hooks.CleanupSettings())

    assert lock.exists()


def _foreign_common(repository: Repository, tree: Path) -> None:
    """Its entry names another user's repository as its common dir."""
    entry = Path(git(tree, "rev-parse", "--absolute-git-dir").strip())
    theirs = repository.place / "theirs"
    subprocess.run(["cp", "-a", str(repository.main / ".git"), str(theirs)], check=True)
    subprocess.run(["chown", "-R", f"{STRANGER}:{STRANGER}", str(theirs)], check=True)
    (entry / "commondir").write_text(f"{theirs}\n")


def _foreign_config(repository: Repository, tree: Path) -> None:
    os.chown(repository.main / ".git" / "config", STRANGER, STRANGER)


def _open_config(repository: Repository, tree: Path) -> None:
    (repository.main / ".git" / "config").chmod(0o666)


def _foreign_entry(repository: Repository, tree: Path) -> None:
    entry = Path(git(tree, "rev-parse", "--absolute-git-dir").strip())
    os.chown(entry, STRANGER, STRANGER)


@needs_root
@pytest.mark.parametrize("make", [_foreign_common, _foreign_config, _open_config, _foreign_entry])
def test_a_repository_that_a_stranger_can_configure_is_not_asked(
    tmp_path: Path, make: Callable[[Repository, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sibling: a filter that is added between our listing and `git status`, by the living owner of the common dir.

    f87b3bd: git ran there, with whatever that owner's configuration named by then (a root whose own configuration has
    safe.directory=*).
    """
    git(tmp_path, "config", "--global", "safe.directory", "*")
    repository = Repository(tmp_path)
    tree = repository.worktree()
    make(repository, tree)

    def ran(*_: object, **__: object) -> None:
        raise AssertionError("a git was run")

    monkeypatch.setattr("watchdog.owner.git.git.subprocess.run", ran)
    with pytest.raises(PathRefused) as caught:
        Git(str(tree), 20)
    assert caught.value.reason == "not_yours"
    assert put_away(tree).details["refused"] == "not_yours"
    assert tree.is_dir()


@pytest.mark.parametrize("pointer", ["gitdir: \0", "x" * 10000, "gitdir: /dev/zero", "fifo"])
def test_a_pointer_that_is_none_is_kept_within_its_time(tmp_path: Path, pointer: str) -> None:
    """A .git file, or a commondir, that is no file or never ends: kept, and nobody hangs."""
    repository = Repository(tmp_path)
    tree = repository.worktree()
    entry = Path(git(tree, "rev-parse", "--absolute-git-dir").strip())
    (entry / "commondir").unlink()
    if pointer == "fifo":
        os.mkfifo(entry / "commondir")
        return_after = time.monotonic() + 5
        with pytest.raises((OwnerCallFailed, PathRefused)):
            Git(str(tree), 1.0)
        assert time.monotonic() < return_after + 20
        return
    (tree / ".git").write_text(pointer)
    assert put_away(tree).outcome in (HookOutcome.KEPT, HookOutcome.FAILED)
    assert tree.is_dir()


def test_what_is_put_at_its_place_meanwhile_is_not_looked_into(
    trapped: Trapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sibling: `git worktree remove PATH` looks into what lies at PATH, and deletes it when it calls that clean.

    f87b3bd: a copy that was put there between the rename and that command was deleted, ignored files included.
    """
    tree = trapped.worktree("wt")
    twin = tree.parent / "twin"
    subprocess.run(["cp", "-a", str(tree), str(twin)], check=True)
    (twin / ".env").write_text("work that git ignores\n")
    trapped.close()
    trapped.canaries.forget()
    renamed = os.rename

    def renaming(source: object, target: object, **more: object) -> None:
        renamed(source, target, **more)  # type: ignore[arg-type]
        if source == "wt":
            twin.rename(tree)

    monkeypatch.setattr(os, "rename", renaming)
    try:
        result = put_away(tree)
    except OSError as left:  # the place is taken: the tree stays in the trash, from where `restore` brings it beside
        result = hooks.failed(str(left))

    assert trapped.canaries.sung() == set()
    assert result.outcome is HookOutcome.FAILED, result.message
    assert (tree / ".env").read_text() == "work that git ignores\n"
    assert (trapped.repository.trash / AGENT / "tree" / "file").exists()
