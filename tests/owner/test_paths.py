"""The way to a socket: directories that nobody else can change; attacks: tests/attacks/test_terminals.py."""

import os
from pathlib import Path

import pytest

from watchdog.errors import PathRefused
from watchdog.owner import paths


def _reason(path: Path) -> str:
    try:
        parent, _ = paths.open_private_parent(str(path))
    except PathRefused as refused:
        return refused.reason
    os.close(parent)
    return ""


def test_a_directory_of_ones_own_is_a_way(tmp_path: Path) -> None:
    """Down to one in /tmp, which others may write to and is sticky."""
    parent, name = paths.open_private_parent(str(tmp_path / "s"))
    assert (paths.real_path(parent), name) == (str(tmp_path.resolve()), "s")
    os.close(parent)


@pytest.mark.parametrize(("mode", "reason"), [(0o755, ""), (0o775, "writable"), (0o757, "writable"), (0o1777, "")])
def test_a_directory_that_others_may_write_to_is_none(tmp_path: Path, mode: int, reason: str) -> None:
    """Unless it is sticky: then they cannot rename what is ours."""
    place = tmp_path / "d"
    place.mkdir()
    place.chmod(mode)
    assert _reason(place / "s") == reason
    (place / "e").mkdir(0o700)
    assert _reason(place / "e" / "s") == reason


def test_a_link_is_none(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert _reason(tmp_path / "link" / "s") == "link"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_directory_of_somebody_elses_is_none(tmp_path: Path) -> None:
    """Though only its owner may write to it, and though it belongs to us again below."""
    place = tmp_path / "d"
    (place / "e").mkdir(parents=True)
    os.chown(place, 54321, 54321)
    assert _reason(place / "s") == _reason(place / "e" / "s") == "writable"
