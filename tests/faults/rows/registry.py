"""Faults of the registry: the same story under each (registry/story.py), in SQLite and in PostgreSQL."""

from contextlib import contextmanager
from functools import partial

from tests.faults.registry import postgresql, sqlite
from tests.faults.registry.detour import detour
from tests.faults.registry.postgresql import Site, make_site
from tests.faults.registry.story import LONG, Fault, outlive
from tests.faults.table import Row, Run
from tests.world import World, make_world

ORDERS = "SELECT status FROM kill_request"
BOTH = [("done",), ("done",)]  # as somebody else reads it: no intent was lost


def in_sqlite(fault: Fault[World], _: Run) -> None:
    """A file of its own for each."""
    with contextmanager(make_world)(registry={"url": ""}) as world, fault.ready(world):
        outlive(world, fault, world)
        assert sqlite.by_hand(world, ORDERS) == BOTH


def in_postgresql(fault: Fault[Site], run: Run) -> None:
    """A database of its own for each, on one server."""
    server = run.fixture("server")
    with contextmanager(make_world)() as world, detour(server.dir) as way:
        site = make_site(world, server, way)
        with fault.ready(site):
            outlive(world, fault, site)
            assert site.sql(ORDERS) == BOTH


ROWS = [
    *(
        Row(
            f"registry in SQLite: {fault.name}",
            "done to the file under a daemon with three agents",
            str(fault.end),
            partial(in_sqlite, fault),
            alike=True,
            root=fault.root,
        )
        for fault in sqlite.FAULTS
    ),
    *(
        Row(
            f"registry in PostgreSQL: {fault.name}",
            "done to the server under a daemon with three agents",
            str(fault.end),
            partial(in_postgresql, fault),
            alike=True,
            root=fault.root,
            limit=120 + LONG,
        )
        for fault in postgresql.FAULTS
    ),
]
