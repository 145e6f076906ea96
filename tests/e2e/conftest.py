"""One running daemon per test, with short times.

`REGISTRY=postgresql pytest tests/e2e` uses PostgreSQL for all of them.
"""

import os
from collections.abc import Iterator

import pytest

from tests.postgresql import running_server
from tests.world import World, make_world


@pytest.fixture(scope="session", autouse=True)
def registry() -> Iterator[None]:
    """One server per session, one database per world."""
    if os.environ.get("REGISTRY", "sqlite") == "sqlite":
        yield
        return
    with running_server() as server:
        World.server = server
        yield
        World.server = None


@pytest.fixture(scope="module", autouse=True)
def _forked(nursery: None) -> None:
    """The daemons of all worlds here."""


@pytest.fixture
def world() -> Iterator[World]:
    """A world whose daemon is not started yet."""
    yield from make_world()
