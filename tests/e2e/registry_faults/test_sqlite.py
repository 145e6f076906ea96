"""Faults of a registry in SQLite: nobody is ended for them, no intent is lost, each is told once."""

from contextlib import contextmanager

import pytest

from tests.e2e.registry_faults.sqlite import FAULTS, by_hand
from tests.e2e.registry_faults.story import Fault, share, survive
from tests.world import World, make_world

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("fault", share(FAULTS), ids=lambda fault: fault.name)
def test_a_fault_of_the_file_ends_nobody_and_loses_nothing(fault: Fault[World]) -> None:
    """The same daemon, one alert; both orders are in the file as somebody else reads it."""
    fault.skip()
    with contextmanager(make_world)(registry={"url": ""}) as world, fault.ready(world):
        survive(world, fault, world)
        assert by_hand(world, "SELECT status FROM kill_request") == [("done",), ("done",)]
