"""One running daemon a test, with short times."""

from collections.abc import Iterator

import pytest

from tests.world import World, make_world


@pytest.fixture
def world() -> Iterator[World]:
    """A world whose daemon is not started yet."""
    yield from make_world()
