"""What lies at a place is seen by git's own entry of it; the hooks leave a stranger's alone."""

import os
import time
from pathlib import Path

import pytest

from tests.owner.repositories import Repository, context, git
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome
from watchdog.core.sites import KnownSite, Site, known_json, site_of, stranger
from watchdog.owner import temp_dirs
from watchdog.owner.hooks.git_locks import git_locks
from watchdog.owner.hooks.temp_dir import temp_dir
from watchdog.owner.hooks.worktree import worktree
from watchdog.owner.sites import site


def seen(path: Path) -> Site:
    """What lies there."""
    found = site(str(path))
    assert found is not None
    return site_of(found)


def test_a_worktree_is_known_by_its_entry_and_branch(repository: Repository) -> None:
    """Work, commits and a new branch change nothing of what it is; made again it is another one."""
    path = repository.worktree()
    first = seen(path)
    assert (first.branch, first.entry is not None) == ("refs/heads/wt", True)
    (path / "new").write_text("x")
    git(path, "add", "-A")
    git(path, "commit", "-qm", "second")
    git(path, "switch", "-qc", "more")
    assert stranger(KnownSite(first), seen(path)) is None
    git(repository.main, "worktree", "remove", str(path))
    git(repository.main, "worktree", "add", "-q", str(path), "wt")
    assert stranger(KnownSite(first), seen(path)) is not None


def test_a_main_checkout_and_a_plain_directory_have_no_entry(repository: Repository, tmp_path: Path) -> None:
    """Nothing lies at a path that is not there, or behind a link."""
    assert seen(repository.main).entry is None
    assert seen(repository.place).entry is None
    (tmp_path / "link").symlink_to(repository.place)
    assert site(str(tmp_path / "link")) is None
    assert site(str(tmp_path / "nothing")) is None


def replaced(repository: Repository, path: Path) -> None:
    """`git worktree remove` and another one made there."""
    git(repository.main, "worktree", "remove", str(path))
    git(repository.main, "worktree", "add", "-q", "-b", "mine", str(path))


def moved_there(repository: Repository, path: Path) -> None:
    """A clean stranger, older than the agent, that was moved there."""
    git(repository.main, "worktree", "remove", str(path))
    git(repository.main, "worktree", "move", str(repository.place / "older"), str(path))


def cloned(repository: Repository, path: Path) -> None:
    """The entry was pruned, and another tree got its name and, perhaps, its inode."""
    path.rename(repository.place / "aside")
    git(repository.main, "worktree", "prune")
    git(repository.main, "worktree", "add", "-q", "-b", "mine", str(path))


@pytest.mark.parametrize("change", [replaced, moved_there, cloned], ids=lambda change: change.__name__)
@pytest.mark.parametrize("was_seen", [True, False])
def test_a_strangers_worktree_at_that_path_stays(repository: Repository, change: object, was_seen: bool) -> None:
    """Clean, merged and unused, with an ignored file in it; also where a row of version 0.1 knows no more than when."""
    repository.worktree("older")
    path = repository.worktree()
    known = KnownSite(seen(path) if was_seen else None, until=time.time())
    time.sleep(0.01)  # time stamps of files are those of the last tick of the kernel's clock
    assert callable(change)
    change(repository, path)
    (path / ".env").write_text("secret\n")
    about = context(worktree=str(path), sites={"worktree": known_json(known)})

    result = worktree(about, hooks.CleanupSettings())

    assert (result.outcome, result.details.get("refused")) == (HookOutcome.KEPT, "stranger"), result.message
    assert "so it is not the agent's" in result.message
    assert (path / ".env").read_text() == "secret\n"
    assert str(path) in repository.listed()


@pytest.mark.parametrize("was_seen", [True, False])
def test_the_agents_own_worktree_goes(repository: Repository, was_seen: bool) -> None:
    """Also of a row of version 0.1: what is older than the row was there when the agent was registered."""
    path = repository.worktree()
    known = KnownSite(seen(path) if was_seen else None, until=time.time(), watched=False)
    about = context(worktree=str(path), sites={"worktree": known_json(known)})
    assert worktree(about, hooks.CleanupSettings()).outcome is HookOutcome.DONE


def test_a_branch_that_was_changed_while_nobody_watched_keeps_it(repository: Repository) -> None:
    """Somebody went on in it after the agent's end."""
    path = repository.worktree()
    known = KnownSite(seen(path), watched=False)
    git(path, "switch", "-qc", "mine")
    about = context(worktree=str(path), sites={"worktree": known_json(known)})
    result = worktree(about, hooks.CleanupSettings())
    assert result.outcome is HookOutcome.KEPT
    assert "it is on mine, and was on wt" in result.message


def test_locks_in_a_strangers_worktree_stay(repository: Repository) -> None:
    """The sibling: the path leads to another one's git dir."""
    path = repository.worktree()
    known = KnownSite(seen(path))
    replaced(repository, path)
    lock = Path(git(path, "rev-parse", "--absolute-git-dir").strip()) / "index.lock"
    lock.write_text("")
    os.utime(lock, (1, 1))
    result = git_locks(context(worktree=str(path), sites={"worktree": known_json(known)}), hooks.CleanupSettings())
    assert (result.outcome, result.details.get("refused")) == (HookOutcome.KEPT, "stranger")
    assert lock.exists()


@pytest.mark.parametrize("was_seen", [True, False])
def test_a_strangers_directory_at_a_temp_dirs_path_stays(tmp_path: Path, was_seen: bool) -> None:
    """The sibling: it would be deleted at once. One with the agent's mark is its own, whenever it was made."""
    place = tmp_path / "t"
    place.mkdir()
    known = KnownSite(seen(place) if was_seen else None, until=time.time())
    time.sleep(0.01)
    place.rename(tmp_path / "aside")
    place.mkdir()
    (place / "work").write_text("mine\n")
    about = context(temp_dir=str(place), sites={"temp_dir": known_json(known)})
    settings = hooks.CleanupSettings(roots=(str(tmp_path),))

    result = temp_dir(about, settings)

    assert (result.outcome, result.details.get("refused")) == (HookOutcome.KEPT, "stranger"), result.message
    assert (place / "work").read_text() == "mine\n"
    (place / temp_dirs.MARK).write_text("a" * 32)
    assert temp_dir(about, settings).outcome is HookOutcome.DONE
