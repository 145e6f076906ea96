"""`restore`: tree, index and branch come back from the trash, and nothing that came meanwhile is replaced."""

from pathlib import Path

import pytest

from tests.owner.git.test_rescue import AGENT, make, run
from tests.owner.repositories import Repository, git, hashes, state_of
from watchdog.core.hooks import HookOutcome
from watchdog.errors import OwnerCallFailed
from watchdog.owner.git.restore import restorable, restore


@pytest.mark.parametrize("name", ["three_kinds", "conflicted", "modes_and_links", "clean", "relative_pointer"])
def test_restore_brings_tree_index_and_branch_back(repository: Repository, name: str) -> None:
    """Byte for byte, from what lies in the repository alone."""
    path = repository.worktree()
    make(name, path, repository)
    before = state_of(path)
    assert run(path).outcome is HookOutcome.DONE
    assert not path.exists()

    listed = restorable([str(repository.main / ".git")])["found"]
    told = restore(AGENT[:8], [str(repository.main)])

    assert isinstance(listed, list)
    assert [one["path"] for one in listed] == [told["path"]] == [str(path)]
    assert state_of(path) == before
    assert restorable([str(repository.main)])["problems"] == []
    assert not (repository.trash / AGENT).exists()


def test_nothing_that_came_meanwhile_is_replaced(repository: Repository) -> None:
    """Path and branch are taken: it comes back beside them."""
    path = repository.worktree()
    make("three_kinds", path, repository)
    before = hashes(path)
    assert run(path).outcome is HookOutcome.DONE
    git(repository.main, "worktree", "add", "-q", str(path), "wt")
    (path / "file").write_text("theirs\n")

    told = restore("alpha", [str(repository.main)])

    beside = repository.place / "wt.restored"
    assert told["path"] == str(beside)
    assert told["branch"] == "refs/heads/wt.restored"
    after = hashes(beside)
    assert {**after, ".git": b""} == {**before, ".git": b""}
    assert (path / "file").read_text() == "theirs\n"
    assert git(beside, "status", "--porcelain") == " M file\nA  new\n?? notes\n"
    assert sorted(repository.listed()) == sorted([str(repository.main), str(path), str(beside)])


def test_what_is_not_there_is_said(repository: Repository) -> None:
    """An id that nothing has, a place without a repository, and a dry run."""
    path = repository.worktree()
    assert run(path).outcome is HookOutcome.DONE
    for wanted, place, reason in (("feed", repository.main, "not_there"), ("alpha", Path("/nonexistent"), "not_there")):
        with pytest.raises(OwnerCallFailed) as failed:
            restore(wanted, [str(place)])
        assert failed.value.reason == reason

    told = restore(AGENT, [str(repository.main)], dry_run=True)

    assert str(told["message"]).startswith("would be restored")
    assert not path.exists()
