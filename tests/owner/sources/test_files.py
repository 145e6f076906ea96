"""What is cut out of another program's JSON leaves all else as it stood, byte for byte."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import files

PRETTY = '{\n  "agents": [\n    {\n      "name": "A"\n    },\n    {\n      "name": "B"\n    }\n  ],\n  "n": 1.50\n}'


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        (("agents", 0), '{\n  "agents": [\n    {\n      "name": "B"\n    }\n  ],\n  "n": 1.50\n}'),
        (("agents", 1), '{\n  "agents": [\n    {\n      "name": "A"\n    }\n  ],\n  "n": 1.50\n}'),
        (("agents",), '{\n  "n": 1.50\n}'),
        (("agents", 0, "name"), PRETTY.replace('{\n      "name": "A"\n    }', "{}")),
    ],
    ids=["first", "last", "member", "the-only-one"],
)
def test_one_value_is_cut_out(steps: tuple[files.Step, ...], left: str) -> None:
    """With its comma, as the program would have written the rest; an empty list is `[]`."""
    assert files.without(PRETTY, *steps) == left


def test_one_value_is_put_in_place_of_another() -> None:
    """And what stands around it is not written anew."""
    assert files.with_value(PRETTY, 1.5, "n") == PRETTY.replace("1.50", "1.5")
    assert files.with_value('{ "a" : {"b":[1, 2]} , "c":"\\u00e9"}', 3, "a", "b", 1) == (
        '{ "a" : {"b":[1, 3]} , "c":"\\u00e9"}'
    )


@pytest.mark.parametrize("text", ["", "{", '{"a":', "[1,", "nonsense", '{"a":1}x'])
def test_what_is_no_whole_json_is_told(tmp_path: Path, text: str) -> None:
    """It is being written just now: nothing is changed."""
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(OwnerCallFailed, match="no whole JSON"):
        files.read_json(str(path))


def test_who_writes_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    """The other's text is edited in turn, and mode and owner stay."""
    path = tmp_path / "f.json"
    path.write_text('{"a":1,"b":2}')
    path.chmod(0o640)
    seen = []

    def edit(text: str) -> str:
        seen.append(text)
        if len(seen) == 1:
            path.write_text('{"a":1,"b":2,"c":3}')
        return files.without(text, "b")

    assert files.change(str(path), edit)
    assert path.read_text() == '{"a":1,"c":3}'
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["f.json"]


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    """No link leads elsewhere, no pipe holds us, none is read that has no end."""
    (tmp_path / "real").write_text("{}")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="symbolic"):
        files.read(str(tmp_path / "link"))
    with pytest.raises(OwnerCallFailed, match="not a regular file"):
        files.read(str(tmp_path / "pipe"))
    with pytest.raises(OwnerCallFailed, match="longer than 1 bytes"):
        files.read(str(tmp_path / "real"), 1)
    assert not files.change(str(tmp_path / "none"), lambda text: text + " ")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """With pages enough that a change does not fit into a small cache."""
    path = tmp_path / "x.db"
    made = sqlite3.connect(path, isolation_level=None)
    made.execute("CREATE TABLE t (text)")
    made.executemany("INSERT INTO t VALUES (?)", [("before" + "x" * 4000,)] * 50)
    made.close()
    return path


def test_what_a_writer_left_that_was_killed_in_its_commit_is_rolled_back(database: Path) -> None:
    """Before that nobody can read, and an agent that is its only other writer may be the one that hangs."""
    half = (
        "import os, sqlite3, sys; d = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "d.execute('PRAGMA cache_size = 1'); d.execute('BEGIN'); d.execute('UPDATE t SET text = 1 || text');"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", half, str(database)], check=False).returncode == -9
    assert Path(f"{database}-journal").stat().st_size > 0
    with files.database(str(database)) as connection:
        texts = {row["text"][:6] for row in connection.execute("SELECT text FROM t")}
    assert texts == {"before"}


def test_words_that_are_no_utf8_spoil_themselves_alone(database: Path) -> None:
    """They can be read, and are never written again as something else."""
    made = sqlite3.connect(database, isolation_level=None)
    made.execute("INSERT INTO t VALUES (CAST(X'41FF' AS TEXT))")
    made.close()
    with files.database(str(database)) as connection:
        assert connection.execute("SELECT text FROM t ORDER BY rowid DESC").fetchone()["text"] == "A\ufffd"
    with (
        pytest.raises(OwnerCallFailed, match="no UTF-8"),
        files.database(str(database), write=True) as connection,
    ):
        (text,) = connection.execute("SELECT text FROM t ORDER BY rowid DESC").fetchone()
        connection.execute("UPDATE t SET text = ?", (text,))


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan"), 1e300, True, "1", None, [1]])
def test_what_can_be_no_time_is_none(value: object) -> None:
    """JSON has numbers of any length; one of them must not hide all others."""
    assert files.number(value) is None
    assert (files.number(1), files.number(1.5)) == (1.0, 1.5)
