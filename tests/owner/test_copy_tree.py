"""Copies of small trees, byte for byte with modes, times and links; and whether a copy is still one."""

import os
import stat
from pathlib import Path

import pytest

from watchdog.errors import PathRefused
from watchdog.owner.copy_tree import copy_file, copy_tree, same


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """What git's own record of a worktree may look like."""
    top = tmp_path / "source"
    (top / "refs" / "bisect").mkdir(parents=True)
    (top / "HEAD").write_bytes(b"ref: refs/heads/x\n")
    (top / "index").write_bytes(bytes(range(256)) * 9000)  # more than one read
    (top / "refs" / "odd \udcff\n").write_text("")
    (top / "link").symlink_to("nowhere")
    (top / "dir-link").symlink_to("refs")
    (top / "HEAD").chmod(0o440)
    (top / "refs").chmod(0o755)
    os.utime(top / "HEAD", ns=(5, 1_000_000_007))
    return top


@pytest.fixture
def container(tmp_path: Path) -> Path:
    made = tmp_path / "container"
    made.mkdir()
    return made


def copied(source: Path, container: Path) -> Path:
    """A copy in there, made by its descriptor."""
    fd = os.open(container, os.O_RDONLY | os.O_DIRECTORY)
    try:
        copy_tree(str(source), fd, "copy")
    finally:
        os.close(fd)
    return container / "copy"


def test_a_copy_is_the_same_with_modes_and_times(source: Path, container: Path) -> None:
    """A file that is younger than the index would be compared by content, and hide changes."""
    copy = copied(source, container)
    assert same(str(source), str(copy))
    head = (copy / "HEAD").stat()
    assert (stat.S_IMODE(head.st_mode), head.st_mtime_ns) == (0o440, 1_000_000_007)
    assert os.readlink(copy / "link") == "nowhere"
    assert os.readlink(copy / "dir-link") == "refs"
    assert stat.S_IMODE((copy / "refs").stat().st_mode) == 0o755


@pytest.mark.parametrize("change", ["content", "name", "link", "kind", "less", "more"])
def test_a_copy_that_was_changed_is_none(source: Path, container: Path, change: str) -> None:
    """One byte, one name."""
    copy = copied(source, container)
    match change:
        case "content":
            with (copy / "index").open("r+b") as file:
                file.seek(2_000_000)
                file.write(b"\xff\xff")
        case "name":
            (copy / "HEAD").rename(copy / "HEAT")
        case "link":
            (copy / "link").unlink()
            (copy / "link").symlink_to("elsewhere")
        case "kind":
            (copy / "refs" / "odd \udcff\n").unlink()
            os.mkfifo(copy / "refs" / "odd \udcff\n")
        case "less":
            (copy / "refs" / "bisect").rmdir()
        case "more":
            (copy / "refs" / "x").write_text("")
    assert not same(str(source), str(copy))


def test_nothing_that_lies_there_is_written_over(source: Path, container: Path) -> None:
    """Neither a file nor a tree."""
    (container / "HEAD").write_text("mine")
    with pytest.raises(FileExistsError):
        copy_file(str(source / "HEAD"), str(container / "HEAD"))
    assert (container / "HEAD").read_text() == "mine"
    copied(source, container)
    with pytest.raises(FileExistsError):
        copied(source, container)


def test_a_fifo_is_refused_and_holds_up_nobody(source: Path, container: Path) -> None:
    """A read of it would wait for ever."""
    os.mkfifo(source / "fifo")
    with pytest.raises(PathRefused) as caught:
        copy_file(str(source / "fifo"), str(container / "fifo"))
    assert caught.value.reason == "not_regular"
    assert not (container / "fifo").exists()
    assert not same(str(source), str(container))
