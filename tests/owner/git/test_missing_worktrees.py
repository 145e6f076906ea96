"""A worktree whose directory was deleted: git's entry of it goes, alone, and only when nothing is held by it alone."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.owner.repositories import Repository, context, git
from watchdog.core import findings, hooks
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.core.sites import KnownSite, known_json, site_of
from watchdog.owner import trash
from watchdog.owner.finders import expired_trash
from watchdog.owner.hooks.worktree import worktree
from watchdog.owner.sites import site


def known(path: Path) -> KnownSite:
    """As the daemon saw it while its agent lived."""
    found = site(str(path))
    assert found is not None
    return KnownSite(site_of(found))


def run(path: Path, known: KnownSite, **changes: object) -> HookResult:
    """The hook after its agent's end."""
    return worktree(
        context(worktree=str(path), sites={"worktree": known_json(known)}, **changes), hooks.CleanupSettings()
    )


def committed(path: Path, name: str = "work") -> str:
    """A commit in that tree that nothing else holds; its id."""
    (path / name).write_text(name)
    git(path, "add", "-A")
    git(path, "commit", "-qm", name)
    return git(path, "rev-parse", "HEAD").strip()


def removed(path: Path) -> None:
    shutil.rmtree(path)


def emptied(path: Path) -> None:
    for one in path.iterdir():
        shutil.rmtree(one) if one.is_dir() else one.unlink()


@pytest.mark.parametrize("deleted", [removed, emptied], ids=["removed", "an empty directory is left"])
def test_the_entry_of_a_deleted_tree_goes_and_its_branch_with_all_commits_stays(
    repository: Repository, deleted: Callable[[Path], None]
) -> None:
    """Case P9: the branch was "already checked out" for ever. A bystander's entry, deleted likewise, stays."""
    path, other = repository.worktree("wt"), repository.worktree("other")
    commit, was = committed(path), known(path)
    deleted(path)
    shutil.rmtree(other)

    result = run(path, was)

    assert result.outcome is HookOutcome.DONE, result.message
    assert "git's entry of it is dropped; its branch wt stays" in result.message
    assert not path.exists()
    assert repository.listed() == [str(repository.main), str(other)]
    assert git(repository.main, "rev-parse", "wt").strip() == commit
    git(repository.main, "worktree", "add", "-q", str(path), "wt")
    assert run(path, was).outcome is HookOutcome.KEPT, "that is another tree"


def staged(path: Path) -> None:
    (path / "new").write_text("never committed")
    git(path, "add", "new")


def amended_on_no_branch(path: Path) -> None:
    git(path, "switch", "-q", "--detach")
    committed(path)


def left_in_the_reflog(path: Path) -> None:
    git(path, "switch", "-q", "--detach")
    committed(path)
    git(path, "switch", "-q", "wt")


def merging(path: Path) -> None:
    entry = Path(git(path, "rev-parse", "--absolute-git-dir").strip())
    (entry / "MERGE_HEAD").write_text(git(path, "rev-parse", "HEAD"))


def locked(path: Path) -> None:
    git(path, "worktree", "lock", "--reason", "on a portable device", str(path))


@pytest.mark.parametrize("what", [staged, amended_on_no_branch, left_in_the_reflog, merging, locked])
def test_an_entry_that_alone_holds_something_stays(repository: Repository, what: Callable[[Path], None]) -> None:
    """Work that was never committed, commits on no branch, a merge; a lock that somebody set."""
    path = repository.worktree()
    what(path)
    was = known(path)
    shutil.rmtree(path)

    result = run(path, was)

    assert result.outcome is HookOutcome.KEPT, result.message
    assert "git's entry of it stays: " in result.message
    assert str(path) in repository.listed()


def test_a_disk_that_is_not_mounted_is_no_deletion(repository: Repository) -> None:
    """The directory above is another one then."""
    disk = repository.place / "disk"
    disk.mkdir()
    git(repository.main, "worktree", "add", "-q", "-b", "wt", str(disk / "wt"))
    was = known(disk / "wt")
    disk.rename(repository.place / "away")
    disk.mkdir()

    result = run(disk / "wt", was)

    assert (result.outcome, result.details.get("refused")) == (HookOutcome.KEPT, "not_there"), result.message
    assert str(disk / "wt") in repository.listed()


def test_an_entry_that_another_agent_has_or_that_was_made_anew_stays(repository: Repository) -> None:
    """The same path and branch, and yet somebody else's."""
    path = repository.worktree()
    was = known(path)
    shutil.rmtree(path)
    assert run(path, was, in_use=((str(path), "beta (bb)"),)).outcome is HookOutcome.NOTHING
    git(repository.main, "worktree", "prune")
    git(repository.main, "worktree", "add", "-q", str(path), "wt")
    shutil.rmtree(path)
    assert run(path, was).outcome is HookOutcome.NOTHING
    assert str(path) in repository.listed()


def test_an_empty_directory_that_is_used_or_not_the_agents_stays(repository: Repository) -> None:
    """Somebody's shell sits in it; or it was made anew."""
    path = repository.worktree()
    was = known(path)
    emptied(path)
    with subprocess.Popen(["sleep", "1000"], cwd=path) as process:
        try:
            result = run(path, was)
        finally:
            process.kill()
    assert (result.outcome, path.is_dir()) == (HookOutcome.KEPT, True)
    path.rename(repository.place / "away")
    path.mkdir()
    assert run(path, was).outcome is HookOutcome.KEPT
    assert path.is_dir() and str(path) in repository.listed()
    assert os.listdir(path) == []


def clean_copy(path: Path) -> Path:
    """What git calls clean there, with a file in it that git ignores."""
    copy = path.with_name("copy")
    shutil.copytree(path, copy, symlinks=True)
    (copy / ".env").write_text("of nobody else\n")
    return copy


def test_what_is_put_at_its_place_meanwhile_is_not_deleted(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6a015a9: `git worktree remove` deleted it, after a look that had found nothing there."""
    path = repository.worktree()
    copy, was, there = clean_copy(path), known(path), os.path.lexists
    shutil.rmtree(path)

    def looking(one: str) -> bool:
        found = there(one)
        if one == str(path) and copy.exists():
            copy.rename(path)
        return found

    monkeypatch.setattr(os.path, "lexists", looking)

    result = run(path, was)

    assert (path / ".env").read_text() == "of nobody else\n"
    assert (result.outcome, result.details.get("reason")) == (HookOutcome.FAILED, "changed"), result.message
    assert str(path) in repository.listed()
    assert os.listdir(repository.trash) == []


def test_an_entry_that_was_made_anew_at_the_last_moment_is_another_ones(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruned, and its name given to a worktree that lies elsewhere."""
    path = repository.worktree()
    was, there, elsewhere = known(path), os.path.lexists, repository.place / "elsewhere" / "wt"
    shutil.rmtree(path)

    def looking(one: str) -> bool:
        if one == str(path) and not there(elsewhere):
            git(repository.main, "worktree", "prune")
            git(repository.main, "worktree", "add", "-q", str(elsewhere), "wt")
        return there(one)

    monkeypatch.setattr(os.path, "lexists", looking)

    result = run(path, was)

    assert (result.outcome, result.details.get("reason")) == (HookOutcome.FAILED, "changed"), result.message
    assert git(elsewhere, "status", "--porcelain") == ""


def test_an_entry_whose_deletion_was_cut_short_is_the_reapers(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed right after the rename: git does not list it, and its remains have the name of what is being deleted."""
    path = repository.worktree()
    was = known(path)
    shutil.rmtree(path)

    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(trash, "remove_container", killed)
    with pytest.raises(KeyboardInterrupt):
        run(path, was)

    (left,) = os.listdir(repository.trash)
    common = str(repository.main / ".git")
    monkeypatch.undo()
    places = findings.KnownAgents(commons=(common,))
    (found,) = expired_trash.look(hooks.CleanupSettings(), places)
    assert (found.action, os.path.basename(found.path)) == ("remove", left)
    assert expired_trash.act(found, hooks.CleanupSettings(), places).outcome is HookOutcome.DONE
    assert os.listdir(repository.trash) == []
