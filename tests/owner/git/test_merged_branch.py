"""Which branch of a worktree that was put away goes, and that it comes back."""

import pytest

from tests.owner.git.test_rescue import AGENT, make, run
from tests.owner.repositories import Repository, context, git
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome
from watchdog.owner.git.restore import restore
from watchdog.owner.hooks.worktree import worktree

MERGED = hooks.CleanupSettings(merged_branch="delete")


def test_a_merged_branch_goes_and_comes_back_with_its_reflog(repository: Repository) -> None:
    """Only where another branch holds its tip; not where only the remote's copy of it does (case E11)."""
    path, other = repository.worktree(), repository.worktree("other")
    (path / "file").write_text("two\n")
    git(path, "commit", "-qam", "more")
    git(repository.main, "merge", "-q", "wt")
    (other / "file").write_text("three\n")
    git(other, "commit", "-qam", "pushed only")
    git(other, "push", "-q", "origin", "other")
    log = git(repository.main, "reflog", "wt")

    assert "was deleted: refs/heads/main holds it" in run(path, MERGED).message
    told = worktree(context(agent_id="b" * 32, worktree=str(other)), MERGED).message

    assert "other stays: no other branch and no tag holds it" in told
    assert git(repository.main, "branch", "--list", "wt") == ""
    restore(AGENT, [str(repository.main)])
    assert git(path, "symbolic-ref", "HEAD") == "refs/heads/wt\n"
    assert git(repository.main, "reflog", "wt") == log


@pytest.mark.parametrize(
    ("head", "target"),
    [("refs/tags/first", None), ("refs/remotes/origin/main", None), ("refs/heads/wt", "refs/heads/it")],
)
def test_what_is_no_branch_or_has_another_name_stays(repository: Repository, head: str, target: str | None) -> None:
    """HEAD may be on a tag, on a remote's branch, or on another name for a branch; that main holds it is not asked."""
    path = repository.worktree()
    git(repository.main, "tag", "first")
    git(repository.main, "update-ref", "refs/heads/it", "main")
    if target:
        git(repository.main, "symbolic-ref", head, target)
    (repository.main / ".git" / "worktrees" / "wt" / "HEAD").write_text(f"ref: {head}\n")
    refs = git(repository.main, "for-each-ref")

    told = run(path, MERGED)

    assert told.outcome is HookOutcome.DONE, told.message
    assert git(repository.main, "for-each-ref") == refs


def test_a_branch_that_only_a_graft_calls_merged_stays(repository: Repository) -> None:
    """Git takes the graft's parents for the commit's own; without it nothing would hold them."""
    path = repository.worktree()
    make("grafted", path, repository)

    told = run(path, MERGED)

    assert told.outcome is HookOutcome.KEPT, told.message
    assert "wt" in git(repository.main, "for-each-ref", "--format=%(refname:short)").split()
