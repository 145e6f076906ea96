"""Each worker gets its share of the longest tests first; none is lost (tests/conftest.py)."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import _dealt


@dataclass(eq=False)
class Item:
    """What of one of pytest's is looked at."""

    nodeid: str
    path: Path


def made(**files: int) -> list[pytest.Item]:
    """So many tests of each file; `__` is a slash."""
    names = [(f"tests/{name.replace('__', '/')}.py", number) for name, n in files.items() for number in range(n)]
    return cast("list[pytest.Item]", [Item(f"{name}::test_{number}", Path(name)) for name, number in names])


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_each_is_dealt_once_and_each_piece_begins_with_stories(workers: int) -> None:
    """Pieces are of the size that xdist gives, so that its pieces are these."""
    items = made(core__test_a=300, e2e__test_b=7, e2e__test_c=9, e2e__test_d=8, test_layout=500, wire__test_w=8)

    dealt = _dealt(items, workers)

    assert sorted(map(id, dealt)) == sorted(map(id, items))
    size = len(items) // workers
    pieces = [dealt[number * size : (number + 1) * size] for number in range(workers)]
    is_story = [["/e2e/" in item.nodeid or "/wire/" in item.nodeid for item in piece] for piece in pieces]
    assert sum(map(any, is_story)) == min(workers, 4)  # files of stories
    assert is_story == [sorted(piece, reverse=True) for piece in is_story]


@pytest.mark.parametrize("files", [{}, {"e2e__test_a": 3}, {"e2e__test_a": 40, "core__test_b": 8}])
def test_a_few_are_dealt_as_well(files: dict[str, int]) -> None:
    """More workers than tests, or one file that is longer than a piece."""
    items = made(**files)

    assert sorted(map(id, _dealt(items, 8))) == sorted(map(id, items))
