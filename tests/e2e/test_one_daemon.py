"""One agent, one daemon: a host's daemon and a user's that both may know an agent (O1, invariant 15)."""

import os
from collections.abc import Iterator

import pytest

from tests.household import Household, household
from tests.world import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a host's daemon and another uid's")
PROMISE = ("--stall-after", "4s")


@pytest.fixture
def home() -> Iterator[Household]:
    with household() as made:
        yield made


def test_an_agent_stays_with_the_hosts_daemon_when_its_user_starts_one(home: Household) -> None:
    """It goes on beating there, over a restart of that daemon as well; the user's knows nothing of it."""
    home.host.start()
    home.user.start_agent("alpha", *home.user.world.script("agent.py", "witness", "beat=0.5"), options=PROMISE)
    home.host.world.wait_event("agent.first_beat", name="alpha")
    home.user.start()
    home.host.world.wait_sweeps(12)
    assert home.host.world.stop() == 0
    home.host.start()
    beats = home.host.agents()["alpha"]["beats"]
    wait_for(lambda: home.host.agents()["alpha"]["beats"] > beats + 2, "it is heard")
    home.host.world.wait_sweeps(12)
    assert home.host.agents()["alpha"]["status"] == "running"
    assert home.signalled() == set()
    assert home.user.world.witnessed() == []
    assert home.user.world.count("agent.registered") == 0
