"""Worktrees of git-lfs, by the real program: what is proved to be kept elsewhere goes, all else stays or is copied."""

import os
import shutil
from pathlib import Path

import pytest

from tests.owner.repositories import Repository, context, git
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.owner.git.restore import restore
from watchdog.owner.hooks.worktree import worktree

pytestmark = pytest.mark.skipif(shutil.which("git-lfs") is None, reason="needs git-lfs")
AGENT = "a" * 32
CONTENT = bytes(range(256)) * 300


@pytest.fixture
def path(repository: Repository) -> Path:
    """A linked worktree with a file of git-lfs, clean, in no time that git would trust: it was touched since."""
    git(repository.main, "lfs", "install", "--local")
    (repository.main / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    (repository.main / "a.bin").write_bytes(CONTENT)
    git(repository.main, "add", "-A")
    git(repository.main, "commit", "-qm", "large")
    tree = repository.worktree()
    assert (tree / "a.bin").read_bytes() == CONTENT
    os.utime(tree / "a.bin", (1, 1))
    return tree


def run(path: Path, dirty: str = "keep") -> HookResult:
    return worktree(context(worktree=str(path)), hooks.CleanupSettings(dirty_worktree=dirty))


def store(repository: Repository) -> list[Path]:
    """The content that the repository keeps."""
    return [one for one in (repository.main / ".git" / "lfs" / "objects").rglob("*") if one.is_file()]


@pytest.mark.parametrize("without_program", [False, True])
def test_a_clean_one_goes(
    repository: Repository, path: Path, monkeypatch: pytest.MonkeyPatch, without_program: bool
) -> None:
    """Case N06: kept for ever as "not clean", since no filter is run. It comes back as it was."""
    if without_program:
        monkeypatch.setenv("PATH", os.path.dirname(shutil.which("git") or ""))
        git(repository.main, "config", "--remove-section", "filter.lfs")
    result = run(path)
    assert result.outcome is HookOutcome.DONE, result.message
    restore(AGENT, [str(repository.main)])
    assert (path / "a.bin").read_bytes() == CONTENT


def test_its_executable_bit_is_a_change(path: Path) -> None:
    """Content alone says nothing of it."""
    (path / "a.bin").chmod(0o755)
    assert "not clean" in run(path).message


@pytest.mark.parametrize("change", [CONTENT[:-1] + b"!", b"", b"short"])
def test_a_changed_one_stays_and_a_rescue_has_its_content(repository: Repository, path: Path, change: bytes) -> None:
    """Also one of the same size. The copy is the content, byte for byte, and no pointer to what no store has."""
    (path / "a.bin").write_bytes(change)
    assert "not clean" in run(path).message
    assert run(path, "rescue").outcome is HookOutcome.DONE
    saved = git(repository.main, "rev-parse", f"refs/agent-watchdog/rescue/{AGENT}/files:a.bin").strip()
    assert git(repository.main, "cat-file", "-s", saved).strip() == str(len(change))


def test_a_rescue_of_other_work_copies_no_content_that_is_kept(repository: Repository, path: Path) -> None:
    """The sibling: each rescue doubled the content of all LFS files."""
    (path / "file").write_text("changed\n")
    assert run(path, "rescue").outcome is HookOutcome.DONE
    rescued = f"refs/agent-watchdog/rescue/{AGENT}/files"
    assert git(repository.main, "show", f"{rescued}:a.bin").startswith("version https://git-lfs")
    git(repository.main, "worktree", "add", "-q", str(repository.place / "again"), rescued)
    assert (repository.place / "again" / "a.bin").read_bytes() == CONTENT


def test_one_that_only_an_unpushed_commit_names_is_copied(repository: Repository, path: Path) -> None:
    """`git lfs prune` deletes what only a rescue ref names."""
    (path / "b.bin").write_bytes(CONTENT * 2)
    git(path, "add", "-A")
    git(path, "commit", "-qm", "mine")
    git(path, "switch", "-q", "--detach")
    git(repository.main, "branch", "-qD", "wt")
    assert run(path, "rescue").outcome is HookOutcome.DONE
    blob = git(repository.main, "rev-parse", f"refs/agent-watchdog/rescue/{AGENT}/files:b.bin").strip()
    assert git(repository.main, "cat-file", "-s", blob).strip() == str(len(CONTENT) * 2)


@pytest.mark.parametrize("broken", [False, True])
def test_content_that_no_store_has_stays(repository: Repository, path: Path, broken: bool) -> None:
    """Git calls it clean by its times: the sibling in which it was lost. With "rescue" it is copied."""
    git(path, "status")  # refreshes the index: from now on times say that it is clean
    (kept,) = store(repository)
    kept.chmod(0o600)
    if broken:
        kept.write_bytes(bytes(len(CONTENT)))
    else:
        kept.unlink()
    assert git(path, "status", "--porcelain") == ""

    result = run(path)

    assert result.outcome is HookOutcome.KEPT
    assert "no LFS store" in result.message and "'a.bin'" in result.message
    assert run(path, "rescue").outcome is HookOutcome.DONE
    blob = git(repository.main, "rev-parse", f"refs/agent-watchdog/rescue/{AGENT}/files:a.bin").strip()
    assert git(repository.main, "cat-file", "-s", blob).strip() == str(len(CONTENT))


def test_a_store_may_lie_elsewhere(repository: Repository, path: Path) -> None:
    """`lfs.storage`, by its whole path or below the git dir."""
    elsewhere = repository.place / "store"
    shutil.move(repository.main / ".git" / "lfs", elsewhere)
    assert "no LFS store" in run(path).message
    git(repository.main, "config", "lfs.storage", str(elsewhere))
    assert run(path).outcome is HookOutcome.DONE


def test_pointers_that_were_never_fetched_are_clean(repository: Repository, path: Path) -> None:
    """GIT_LFS_SKIP_SMUDGE: the pointer itself lies there."""
    (path / "a.bin").write_text(git(path, "show", "HEAD:a.bin"))
    for one in store(repository):
        one.chmod(0o600)
        one.unlink()
    assert run(path).outcome is HookOutcome.DONE


def test_what_another_filter_makes_is_not_known(repository: Repository) -> None:
    """An encrypting filter, clean for git: kept, and the reason names it. Line endings are git's own."""
    main = repository.main
    git(main, "config", "filter.crypt.clean", "tr a-z n-za-m")
    git(main, "config", "filter.crypt.smudge", "tr a-z n-za-m")
    (main / ".gitattributes").write_text("*.key filter=crypt\n*.txt text eol=crlf\n")
    (main / "a.key").write_text("secret\n")
    (main / "a.txt").write_bytes(b"one\r\n")
    git(main, "add", "-A")
    git(main, "commit", "-qm", "filters")
    path = repository.worktree()
    os.utime(path / "a.key", (1, 1))
    os.utime(path / "a.txt", (1, 1))
    assert git(path, "status", "--porcelain") == ""
    os.utime(path / "a.key", (2, 2))

    result = run(path)

    assert result.outcome is HookOutcome.KEPT
    assert "1 paths" in result.message and "what the filter crypt would make of some is not known" in result.message
    assert run(path, "rescue").outcome is HookOutcome.DONE
    assert git(main, "show", f"refs/agent-watchdog/rescue/{AGENT}/files:a.key") == "secret\n"
