"""Git's entry of a worktree goes by one rename, and comes back when something came in between."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.owner.repositories import Repository, git
from watchdog.errors import OwnerCallFailed
from watchdog.owner.git import entries


@pytest.fixture(name="into")
def _into(tmp_path: Path) -> Iterator[int]:
    """An open directory of the repository's own file system."""
    (tmp_path / "into").mkdir()
    directory = os.open(tmp_path / "into", os.O_PATH | os.O_DIRECTORY)
    yield directory
    os.close(directory)


def entry_of(repository: Repository, path: Path) -> Path:
    return repository.main / ".git/worktrees" / path.name


def away(repository: Repository, name: str) -> Path:
    """A worktree whose directory was moved away."""
    path = repository.worktree(name)
    path.rename(repository.place / f"{name}-was-here")
    return path


def test_it_alone_goes_and_the_list_of_entries_with_the_last_one(repository: Repository, into: int) -> None:
    path, other = away(repository, "wt"), away(repository, "other")

    assert entries.take_out(str(entry_of(repository, path)), str(path), into, "it") == ""

    assert repository.listed() == [str(repository.main), str(other)]
    assert os.listdir(f"/proc/self/fd/{into}") == ["it"]
    entries.take_out(str(entry_of(repository, other)), str(other), into, "other")
    assert not (repository.main / ".git/worktrees").exists()


def locks(entry: Path, path: Path) -> None:
    (entry / "locked").write_text("mine\n")


def puts_something_there(entry: Path, path: Path) -> None:
    path.mkdir()


def makes_it_anew(entry: Path, path: Path) -> None:
    entry.rename(entry.with_name("former"))
    entry.mkdir()


@pytest.mark.parametrize("when", ["before", "at the last moment"])
@pytest.mark.parametrize(
    ("act", "reason"), [(locks, "locked"), (puts_something_there, "changed"), (makes_it_anew, "changed")]
)
def test_what_comes_in_between_leaves_it_where_it_lay(
    repository: Repository,
    into: int,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Path, Path], None],
    reason: str,
    when: str,
) -> None:
    path = away(repository, "wt")
    entry = entry_of(repository, path)
    inode, renamed = entry.stat().st_ino, os.rename

    def renaming(source: Any, target: Any, **more: Any) -> None:
        if source == str(entry):
            monkeypatch.setattr(os, "rename", renamed)
            act(entry, path)
        renamed(source, target, **more)

    if when == "before":
        act(entry, path)
    else:
        monkeypatch.setattr(os, "rename", renaming)
    with pytest.raises(OwnerCallFailed) as refused:
        entries.take_out(str(entry), str(path), into, "it", lambda fd: os.fstat(fd).st_ino == inode)

    assert refused.value.reason == reason
    assert os.listdir(f"/proc/self/fd/{into}") == []
    assert entry.is_dir()


def test_a_lock_whose_maker_has_ended_goes_with_it(repository: Repository, into: int) -> None:
    path = away(repository, "wt")
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    git(repository.main, "worktree", "lock", "--reason", f"openclaw pid={pid}", str(path))

    words = entries.take_out(str(entry_of(repository, path)), str(path), into, "it")

    assert words == f"process {pid}, which made its lock, has ended"
