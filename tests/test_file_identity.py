"""What an open descriptor leads to, whatever its name is by then."""

import os
import time
from pathlib import Path

import pytest

from watchdog.file_identity import born, file_id, mount_id


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY)


def test_a_directory_stays_the_same_under_another_name(tmp_path: Path) -> None:
    """And one that takes its name is another."""
    (tmp_path / "a").mkdir()
    fd = opened(tmp_path / "a")
    try:
        before = file_id(fd)
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "a").mkdir()
        other = opened(tmp_path / "a")
        try:
            assert file_id(fd) == before == ((tmp_path / "b").stat().st_dev, (tmp_path / "b").stat().st_ino)
            assert file_id(other) != before
        finally:
            os.close(other)
    finally:
        os.close(fd)


def test_when_a_file_was_made_is_not_when_it_was_written(tmp_path: Path) -> None:
    """As far as the file system says it: a copy's older times, and later writes, change nothing of it."""
    before = time.time_ns()
    path = tmp_path / "f"
    path.write_text("x")
    after = time.time_ns()
    fd = opened(path)
    try:
        made = born(fd)
        os.utime(path, ns=(0, 0))
        path.write_text("y")
        assert born(fd) == made
    finally:
        os.close(fd)
    tick = 20_000_000  # the kernel's own clock for files lags by up to one tick
    assert made is None or before - tick <= made <= after


def test_what_knows_no_time_of_creation_says_none() -> None:
    """A file system that does not keep it, and a descriptor that is none."""
    fd = opened(Path("/proc/self"))
    try:
        assert born(fd) is None
    finally:
        os.close(fd)
    assert born(2**20) is None


def test_two_mounts_have_two_numbers(tmp_path: Path) -> None:
    """/proc is a mount of its own everywhere; two names of one are on one."""
    one, other, proc = opened(tmp_path), opened(tmp_path), opened(Path("/proc"))
    try:
        assert mount_id(one) == mount_id(other)
        assert mount_id(one) != mount_id(proc)
    finally:
        for fd in (one, other, proc):
            os.close(fd)
    with pytest.raises(FileNotFoundError):
        mount_id(2**20)
