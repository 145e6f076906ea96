"""`dirty_worktree = "rescue"`: work is saved and compared before anything moves, and comes back byte for byte."""

from pathlib import Path

import pytest

from tests.owner.repositories import Repository, context, git, hashes
from tests.owner.states import STATES
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.owner.hooks.worktree import worktree

AGENT = "a" * 32
RESCUE = hooks.CleanupSettings(dirty_worktree="rescue")
REF = f"refs/agent-watchdog/rescue/{AGENT}"


def run(path: Path, settings: hooks.CleanupSettings = RESCUE) -> HookResult:
    """The hook in this process."""
    return worktree(context(worktree=str(path)), settings)


def make(name: str, path: Path, repository: Repository) -> None:
    """Bring it into a state of the table."""
    next(state for state in STATES if state.make.__name__ == name).make(path, repository)


def test_all_three_kinds_of_work_are_in_a_ref_and_the_tree_in_the_trash(repository: Repository) -> None:
    """Case E1."""
    path = repository.worktree()
    make("three_kinds", path, repository)
    before = hashes(path)

    result = run(path)

    assert result.outcome is HookOutcome.DONE, result.message
    assert REF in result.message
    assert not path.exists()
    assert repository.listed() == [str(repository.main)]
    assert hashes(repository.trash / AGENT / "tree") == before
    listed = git(repository.main, "ls-tree", "-r", "--name-only", f"{REF}/files").split()
    assert listed == [".gitignore", "file", "new", "notes"]
    for name in listed:
        assert git(repository.main, "show", f"{REF}/files:{name}").encode() == before[name]
    assert git(repository.main, "show", f"{REF}/index:new") == "new\n"


def test_a_detached_commit_is_held_by_a_ref(repository: Repository) -> None:
    """Case E4: nothing in the tree is changed, and still it would be lost."""
    path = repository.worktree()
    make("detached_commit", path, repository)
    head = git(path, "rev-parse", "HEAD").strip()

    assert run(path).outcome is HookOutcome.DONE
    git(repository.main, "reflog", "expire", "--expire=now", "--all")
    git(repository.main, "gc", "-q", "--prune=now")

    assert git(repository.main, "cat-file", "-t", head).strip() == "commit"
    assert git(repository.main, "for-each-ref", "--format=%(refname)", "refs/agent-watchdog").split() == [f"{REF}/head"]


@pytest.mark.parametrize("name", ["odd_names", "modes_and_links"])
def test_files_are_saved_as_they_lie_on_disk(repository: Repository, name: str) -> None:
    """Any name, any content; a mode that git does not know and an empty directory are in the message."""
    path = repository.worktree()
    make(name, path, repository)

    result = run(path)

    assert result.outcome is HookOutcome.DONE, result.message
    words = git(repository.main, "log", "-1", "--format=%B", f"{REF}/files")
    if name == "modes_and_links":
        assert 'mode 0600 "private"' in words
        assert 'empty directory 0755 "empty/er"' in words


def test_what_changes_while_it_is_saved_is_not_moved(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that no look at /proc has seen."""
    from watchdog.owner.git import rescue

    path = repository.worktree()
    make("modified", path, repository)
    real = rescue._set

    def then_write(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        (path / "late").write_text("late\n")
        monkeypatch.setattr(rescue, "_set", real)

    monkeypatch.setattr(rescue, "_set", then_write)

    result = run(path)

    assert result.outcome is HookOutcome.FAILED
    assert result.details["reason"] == "changed"
    assert (path / "late").read_text() == "late\n"
    assert not git(repository.main, "for-each-ref", "refs/agent-watchdog")
    assert not (repository.trash / AGENT).exists()
