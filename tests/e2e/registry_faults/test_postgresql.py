"""Faults of a registry in PostgreSQL: nobody is ended for them, no intent is lost, each is told once."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.registry_faults.detour import detour
from tests.e2e.registry_faults.postgresql import FAULTS, Site, make_site
from tests.e2e.registry_faults.story import FULL, Fault, share, survive
from tests.postgresql import BINARIES, Server, running_server
from tests.world import make_world

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not BINARIES, reason="PostgreSQL is not installed"),
    pytest.mark.timeout(120 + FULL),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One for all: each fault is undone again."""
    with running_server("-c max_connections=30") as running:
        yield running


@pytest.mark.parametrize("fault", share(FAULTS), ids=lambda fault: fault.name)
def test_a_fault_of_the_server_ends_nobody_and_loses_nothing(fault: Fault[Site], server: Server) -> None:
    """The same daemon, one alert; both orders are in the database as somebody else reads it."""
    fault.skip()
    with contextmanager(make_world)() as world, detour(server.dir) as way:
        site = make_site(world, server, way)
        with fault.ready(site):
            survive(world, fault, site)
            assert site.sql("SELECT status FROM kill_request") == [("done",), ("done",)]
