"""The path that a piece of work was at last is known to whoever ends it."""

import os
from collections.abc import Iterator

import pytest

from watchdog.owner import bounded_child, whereabouts


@pytest.fixture
def board() -> Iterator[int]:
    made = bounded_child.input_file(b"")
    yield made
    os.close(made)


def test_the_last_path_is_known(board: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shorter one after a longer one; one that is no UTF-8; one that is too long is cut."""
    monkeypatch.setattr(whereabouts, "_board", None)
    whereabouts.at("/nobody/asks")
    assert whereabouts.read(board) is None
    whereabouts.tell(board)
    for path in ("/a/long/one", "/b", "/\udcff"):
        whereabouts.at(path)
        assert whereabouts.read(board) == path
    whereabouts.at("/" + "x" * 5000)
    assert whereabouts.read(board) == "/" + "x" * (whereabouts.LIMIT - 1)
