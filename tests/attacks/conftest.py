"""The daemon that hostile users attack: the host's, whose sockets everybody can reach."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.world import World, make_world


@pytest.fixture
def settings() -> dict[str, dict[str, Any]]:
    """Tables of its configuration beyond those of `World`; a file of tests has its own."""
    return {}


@pytest.fixture
def world(settings: dict[str, dict[str, Any]]) -> Iterator[World]:
    """Others may pass to its sockets, and nowhere else."""
    for made in make_world(**settings):
        made.dir.chmod(0o755)
        made.runtime.chmod(0o755)
        yield made
