"""Who holds the write lock of a real database, in both of its modes, and whether that one stands still."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.world import wait_for
from watchdog.owner.sources.sqlite_locks import above, holder, stands_still

WRITER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute(sys.argv[2])
print("there", flush=True)
sys.stdin.read()
"""


@contextmanager
def process(database: Path, statement: str) -> Iterator["subprocess.Popen[str]"]:
    """One that has carried out that statement, and waits."""
    words = [sys.executable, "-c", WRITER, str(database), statement]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "there\n"
            yield child
        finally:
            child.kill()


@pytest.fixture(params=["delete", "wal"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as made:
        made.execute(f"pragma journal_mode={request.param}")
        made.execute("create table t (x)")
        made.commit()
    return path


def test_who_is_in_a_transaction_that_writes_is_seen(database: Path) -> None:
    """A reader is none; and when it has gone nobody is."""
    with process(database, "select * from t"):
        assert holder(str(database)) is None
    with process(database, "begin immediate") as writer:
        assert holder(str(database)) == writer.pid
    assert holder(str(database)) is None


def test_who_has_it_only_once_merely_writes(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two looks its transaction has ended."""
    with process(database, "begin immediate") as writer:

        def passed(_seconds: float) -> None:
            writer.kill()
            writer.wait()

        monkeypatch.setattr("watchdog.owner.sources.sqlite_locks.time.sleep", passed)
        assert holder(str(database)) is None


def test_what_is_no_database_is_held_by_nobody(tmp_path: Path) -> None:
    """And holds up nobody: a FIFO, a link, nothing at all."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for name in ("fifo", "link", "nothing", "."):
        assert holder(str(tmp_path / name)) is None


def test_those_that_started_it_stand_above(tmp_path: Path) -> None:
    """From itself upwards."""
    with process(tmp_path / "y.db", "select 1") as child:
        assert above(child.pid)[:2] == [child.pid, os.getpid()]


def test_one_that_was_stopped_stands_still(tmp_path: Path) -> None:
    """Until it is continued; who is not there does not."""
    with process(tmp_path / "y.db", "select 1") as child:
        assert not stands_still(child.pid)
        child.send_signal(signal.SIGSTOP)
        wait_for(lambda: stands_still(child.pid) or None, "it is stopped")
        child.send_signal(signal.SIGCONT)
        wait_for(lambda: not stands_still(child.pid) or None, "it goes on")
    assert not stands_still(2**22 + 7)
