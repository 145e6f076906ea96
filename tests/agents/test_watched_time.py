"""How long an agent was watched: as long as the daemon ran, at most two intervals at a time, and no time twice."""

from datetime import timedelta

from tests.clocks import Later
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.watched_time import WatchedTime
from watchdog.config.paths import places_for
from watchdog.config.schema import Config
from watchdog.config.settings import settings_of
from watchdog.core.agent import Policy, Registration, Status


def test_time_is_counted_once_for_each_agent() -> None:
    clock, fleet = Later(), Fleet()
    config = Config.model_validate({"sweep": {"interval_seconds": 10}})
    watched = WatchedTime(settings_of(config, None, places_for(0, {})), fleet, clock)
    agent = Agent(Registration("a" * 32, "alpha", 1000, "h", "boot"), Policy(), Status.RUNNING)
    fleet.add(agent)
    assert watched.catch_up(agent) == timedelta(), "nobody was looked at yet"
    watched.reckon(missed=False)
    clock.at += 4
    assert watched.catch_up(agent) == timedelta(seconds=4)
    clock.at += 6
    watched.reckon(missed=False)
    assert agent.heartbeat.ages.age == timedelta(seconds=10)
    clock.at += 3600
    watched.reckon(missed=True)
    assert agent.heartbeat.ages.age == timedelta(seconds=30), "we were away: two intervals at most"
    assert watched.next_deadline() == 10
