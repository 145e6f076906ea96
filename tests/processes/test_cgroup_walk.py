"""Walks down directories deeper than any path reaches; plain ones stand for cgroups, whose files do not matter here."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchdog.processes.cgroup_walk import each, remove

DEPTH = 200
NAME = "x" * 100  # so that the last one's path has five times as many characters as a path may have


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A chain of directories, each in the one before."""
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir(NAME, dir_fd=here)
        above, here = here, os.open(NAME, os.O_RDONLY, dir_fd=here)
        os.close(above)
    os.close(here)
    yield top
    shutil.rmtree(top, ignore_errors=True)


def inodes(directory: Path) -> list[int]:
    return [os.fstat(fd).st_ino for fd in each(str(directory))]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_each_is_visited_once_however_deep(deep: Path) -> None:
    """From the top down; whoever stops half-way leaves no descriptor open."""
    before = open_files()
    found = inodes(deep)
    assert found[0] == deep.stat().st_ino
    assert len(set(found)) == len(found) == DEPTH + 1
    walk = each(str(deep))
    next(walk)
    next(walk)
    walk.close()  # type: ignore[attr-defined]
    assert open_files() == before


def test_branches_are_all_visited_and_links_are_not(tmp_path: Path) -> None:
    """A link would lead out of the tree."""
    made = [tmp_path / name for name in ("t", "t/a", "t/a/b", "t/a/c", "t/d")]
    for directory in made:
        directory.mkdir()
    (tmp_path / "t" / "out").symlink_to(tmp_path)
    (tmp_path / "t" / "cgroup.procs").write_text("")
    assert sorted(inodes(made[0])) == sorted(directory.stat().st_ino for directory in made)


def test_what_goes_while_it_is_visited_is_passed_over(tmp_path: Path) -> None:
    """Its user removes it when he likes."""
    for name in ("t", "t/a", "t/b"):
        (tmp_path / name).mkdir()
    walk = each(str(tmp_path / "t"))
    next(walk)
    seen = os.fstat(next(walk)).st_ino
    gone = next(one for one in (tmp_path / "t").iterdir() if one.stat().st_ino != seen)
    gone.rmdir()
    assert list(walk) == []
    assert list(each(str(tmp_path / "never"))) == []


def test_what_is_no_directory_is_an_error(tmp_path: Path) -> None:
    """It is not the same as empty, or gone."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(NotADirectoryError):
            list(each(str(tmp_path / name)))
        with pytest.raises(NotADirectoryError):
            remove(str(tmp_path / name))


def test_empty_ones_are_removed_however_deep(deep: Path) -> None:
    """Twice does no harm."""
    before = open_files()
    assert remove(str(deep))
    assert not deep.exists()
    assert remove(str(deep))
    assert open_files() == before
