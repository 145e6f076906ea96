"""What is cut out of another program's JSON leaves all else as it stood, byte for byte."""

import os
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
    with pytest.raises(OwnerCallFailed, match="no regular file"):
        files.read(str(tmp_path / "pipe"))
    with pytest.raises(OwnerCallFailed, match="longer than 1 bytes"):
        files.read(str(tmp_path / "real"), 1)
    assert not files.change(str(tmp_path / "none"), lambda text: text + " ")
