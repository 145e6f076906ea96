"""A directory that is not really ours is refused, not repaired."""

import os
from pathlib import Path

import pytest

from watchdog.config.paths import ensure_directories, ensure_directory, places_for
from watchdog.errors import UnsafeDirectory


def test_directories_are_made_with_their_modes_whatever_the_umask(tmp_path: Path) -> None:
    """State for the owner alone; root's runtime directory can be entered by those who beat."""
    old = os.umask(0o077)
    try:
        ensure_directories(str(tmp_path / "a" / "b" / "state"), str(tmp_path / "run"))
        ensure_directories(str(tmp_path / "a" / "b" / "state"), str(tmp_path / "run"))  # there already
    finally:
        os.umask(old)
    assert (tmp_path / "a" / "b" / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "run").stat().st_mode & 0o777 == (0o755 if os.geteuid() == 0 else 0o700)


def test_a_link_is_refused(tmp_path: Path) -> None:
    """In /tmp anybody could have put it there."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UnsafeDirectory, match="a link or a file"):
        ensure_directory(str(tmp_path / "link"), 0o700)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(UnsafeDirectory):
        ensure_directory(str(tmp_path / "dangling"), 0o700)
    assert not (tmp_path / "nothing").exists()


def test_a_directory_that_others_may_write_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """Somebody may have put a socket or a registry into it already."""
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(0o770)
    with pytest.raises(UnsafeDirectory, match="mode 0770"):
        ensure_directory(str(path), 0o700)
    assert path.stat().st_mode & 0o777 == 0o770


def test_somebody_elses_directory_is_refused(tmp_path: Path) -> None:
    """Owned by another uid: root's for a user, a user's for root."""
    path = Path("/usr")
    if os.geteuid() == 0:
        path = tmp_path / "theirs"
        path.mkdir()
        os.chown(path, 65534, 65534)
    with pytest.raises(UnsafeDirectory, match="belongs to uid"):
        ensure_directory(str(path), 0o700)


def test_a_file_and_a_missing_right_are_said_so(tmp_path: Path) -> None:
    """With the path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UnsafeDirectory, match="file: a link or a file"):
        ensure_directory(str(tmp_path / "file"), 0o700)
    with pytest.raises(UnsafeDirectory):
        ensure_directory(str(tmp_path / "file" / "below"), 0o700)


def test_a_uid_without_a_home_is_told_what_to_set() -> None:
    """No guess below /tmp, where somebody else could be first."""
    with pytest.raises(UnsafeDirectory, match="set HOME"):
        places_for(3_999_999_999, {})
