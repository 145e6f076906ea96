"""What keeps an owner from writing a beat, asked without trying."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from watchdog.owner.os_errors import unwritable

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to mount a file system of its own")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for little, and the file of a beat in it."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=8", "none", str(tmp_path)], check=True)
    try:
        (tmp_path / "beat").touch()
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@ROOT
def test_a_file_system_with_no_room_for_a_journal_takes_no_beat(small: Path) -> None:
    """Case P3: an UPDATE needs a page for its journal, also where a page of the file is free."""
    assert unwritable(str(small / "beat"), rights=True) == ""
    filler = small / "filler"
    filler.write_bytes(b"x" * (250 << 10))
    assert unwritable(str(small / "beat"), rights=True) == "its file system is full"
    filler.unlink()
    assert unwritable(str(small / "beat"), rights=True) == ""


@ROOT
def test_a_file_system_without_inodes_or_read_only_takes_none(small: Path) -> None:
    """Siblings of P3: a journal is a new file."""
    for number in range(8):
        try:
            (small / f"{number}").touch()
        except OSError:
            break
    assert unwritable(str(small / "beat"), rights=False) == "its file system has no inode left"
    (small / "0").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    assert unwritable(str(small / "beat"), rights=False) == "its file system is mounted read-only"


def test_a_file_that_its_owner_may_not_write_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sibling of P3. A file whose time alone is a beat needs no such right: `touch` is the owner's."""
    file = tmp_path / "orchestrator.db"
    file.touch(0o444)
    monkeypatch.chdir(tmp_path)  # what lies above may be closed to others
    told = as_a_user(lambda: unwritable(file.name, rights=True), file)
    assert told == "orchestrator.db may not be written by its owner (mode 0444)"
    assert unwritable(str(file), rights=False) == ""


def as_a_user(asked: Callable[[], str], file: Path) -> str:
    """What a user hears whose file it is: modes do not bind root."""
    if os.geteuid() != 0:
        return asked()
    os.chown(file, 65534, 65534)
    file.parent.chmod(0o755)
    here, there = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setresuid(65534, 65534, 65534)
            os.write(there, asked().encode())
        finally:
            os._exit(0)
    os.close(there)
    os.waitpid(child, 0)
    with open(here) as told:
        return told.read()
