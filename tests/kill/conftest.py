"""What the tests of a kill share."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kill.scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A place for agents that are real processes."""
    with contextlib.ExitStack() as held:
        made = Scene(tmp_path, held)
        held.callback(made.close)
        yield made
