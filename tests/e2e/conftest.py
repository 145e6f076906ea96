"""One running daemon per test, with short times.

`REGISTRY=postgresql pytest tests/e2e` uses PostgreSQL for all of them.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nursery import Nursery
from tests.postgresql import running_server
from tests.world import World, make_world
from watchdog.registry.registry import Registry


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


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nursery, Path] | None]:
    """Where the daemons of `world` are forked, with the empty registry that they start from, unless `NURSERY=0`."""
    if os.environ.get("NURSERY") == "0":
        yield None
        return
    forks, template = Nursery(), tmp_path_factory.mktemp("template") / "registry.db"
    Registry(f"sqlite:///{template}").open().close()
    template.chmod(0o600)
    yield forks, template
    forks.close()


@pytest.fixture
def world(nursery: tuple[Nursery, Path] | None) -> Iterator[World]:
    """A world whose daemon is not started yet."""
    for world in make_world():
        if nursery is not None:
            world.nursery, world.template = nursery
        yield world
