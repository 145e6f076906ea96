"""One running daemon a test, with short times. `REGISTRY=postgresql pytest tests/e2e`: all of them on PostgreSQL."""

import os
from collections.abc import Iterator

import pytest

from tests.nursery import Nursery
from tests.postgresql import running_server
from tests.world import World, make_world
from watchdog.registry.store import Store


@pytest.fixture(scope="session", autouse=True)
def registry() -> Iterator[None]:
    """One server a session, one database a world."""
    if os.environ.get("REGISTRY", "sqlite") == "sqlite":
        yield
        return
    with running_server() as server:
        World.server = server
        yield
        World.server = None


@pytest.fixture(scope="session", autouse=True)
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Daemons are forked, and begin with a registry that is made already, unless `NURSERY=0`."""
    if os.environ.get("NURSERY") == "0":
        yield
        return
    World.nursery, World.template = Nursery(), tmp_path_factory.mktemp("template") / "registry.db"
    Store(f"sqlite:///{World.template}").open().close()
    World.template.chmod(0o600)
    yield
    World.nursery.close()
    World.nursery = World.template = None


@pytest.fixture
def world() -> Iterator[World]:
    """A world whose daemon is not started yet."""
    yield from make_world()
