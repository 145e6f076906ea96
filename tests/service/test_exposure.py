"""Which files others may read, by mode and by the directories above; which contain a secret, by their form."""

import os
from pathlib import Path

import pytest

from watchdog.service import exposure


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file in a directory that others may enter."""
    for above in (tmp_path, *tmp_path.parents):
        if above.stat().st_uid != os.geteuid() or above == Path("/tmp"):
            break
        above.chmod(0o711)
    made = tmp_path / "f"
    made.write_text("x")
    return made


def test_access_depends_on_its_mode_and_each_directory_above(file: Path) -> None:
    file.chmod(0o604)
    assert exposure._readers(str(file)) == "every user (mode 0604)"
    file.parent.chmod(0o700)
    assert exposure._readers(str(file)) is None
    file.parent.chmod(0o711)
    file.chmod(0o600)
    assert exposure._readers(str(file)) is None


def test_ones_own_group_and_special_files_expose_nothing(file: Path) -> None:
    file.chmod(0o640)
    os.chown(file, -1, os.getegid())
    assert exposure._readers(str(file)) is None
    link = file.with_name("link")
    link.symlink_to(file)
    assert exposure._readers(str(link)) is exposure._readers(str(file.parent)) is exposure._readers("/none") is None


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ('url = "postgresql://u:pw@h/d"', True),
        ('url = "postgresql://u@h/d?password=pw"', True),
        ("PGPASSWORD=pw", True),
        ('# url = "postgresql://u:pw@h/d"', False),
        ('url = "postgresql://u@h/d"', False),
        ("", False),
    ],
)
def test_a_comment_contains_no_secret(file: Path, text: str, secret: bool) -> None:
    """The shipped file shows a URL with a password in one."""
    file.write_text(text + "\n")
    assert exposure._has_secret(exposure._text(str(file))) is secret


def test_an_unreadable_file_contains_nothing(tmp_path: Path) -> None:
    """A FIFO is not waited for."""
    os.mkfifo(tmp_path / "fifo")
    assert exposure._text(str(tmp_path / "fifo")) == exposure._text(str(tmp_path)) == exposure._text("/none") == ""
