"""`dirty_worktree = "rescue"`: work is saved and compared before anything moves, and comes back byte for byte."""

from pathlib import Path

import pytest

from tests.owner.repositories import Repository, context, git, hashes, state_of
from tests.owner.states import STATES
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.errors import OwnerCallFailed
from watchdog.owner.git.restore import restorable, restore
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
