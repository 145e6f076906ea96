"""The accounting of a sweep, and the check of agents that exited since the last one."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from tests.kill.shop import HOST, shop
from tests.kill.test_safeguards import Set
from watchdog.agents.agent import Agent
from watchdog.agents.background_queries import BackgroundQueries
from watchdog.agents.history import EventRecorder
from watchdog.agents.persistence import AgentPersistence
from watchdog.agents.watched_time import WatchedTime
from watchdog.config.paths import places_for
from watchdog.config.schema import Config
from watchdog.config.settings import settings_of
from watchdog.core.agent import Policy, Registration, Status
from watchdog.helpers.users import Users
from watchdog.kill.safeguards import Safeguards
from watchdog.probes.process_scan import ProcessScanner
from watchdog.sweep.announcer import Announcer
from watchdog.sweep.enforcement import Enforcement
from watchdog.sweep.escalation import Escalation
from watchdog.sweep.probes import Probes
from watchdog.sweep.process_watch import ProcessWatch
from watchdog.sweep.stats import SweepStats
from watchdog.sweep.sweeper import Sweeper
from watchdog.telemetry.logger import get_logger
from watchdog.telemetry.metrics import Metrics


def test_a_check_of_an_exited_agent_accounts_for_its_time_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with shop(tmp_path) as (made, agent, _):
            clock, log = Set(), get_logger()
            with ThreadPoolExecutor(1) as executor:
                settings, users = settings_of(Config(), None, places_for(0, {})), Users(clock, log)
                safeguards = Safeguards(settings, made.registry, clock, made.holds, log, users)
                recorder, stats = (
                    EventRecorder(made.registry, clock, log),
                    SweepStats(made.fleet, clock, Metrics(), log),
                )
                scanner, announcer = ProcessScanner(made.fleet, executor, HOST), Announcer(recorder)
                processes = ProcessWatch(settings, made.fleet, clock, made.tracker, scanner, stats)
                watched, queries = WatchedTime(settings, made.fleet, clock), BackgroundQueries(made.owners, clock)
                probes = Probes(made.tracker, watched, processes, queries, made.registry, clock, announcer)
                escalation = Escalation(made.registry, made.owners, recorder)
                enforcement = Enforcement(settings, made.tracker, made.worker, safeguards, escalation, announcer, stats)
                persistence = AgentPersistence(made.fleet, made.registry, clock, log)
                sweeper = Sweeper(made.fleet, clock, probes, safeguards, enforcement, persistence, stats)
                other = Agent(Registration("b" * 32, "beta", 1000, HOST, "boot"), Policy(), Status.STARTING)
                made.fleet.add(other)
                agent.heartbeat.silence.touched, agent.heartbeat.silence.reckoned = (
                    None,
                    float("-inf"),
                )  # it came by another clock
                sweeper.reckon()
                clock.at = 4.0
                await sweeper.look_at_ended([agent])
                assert (agent.heartbeat.ages.age, other.heartbeat.ages.age) == (timedelta(seconds=4), timedelta())
                clock.at = 10.0
                sweeper.reckon()
                assert (agent.heartbeat.ages.age, agent.heartbeat.silence.lasted, other.heartbeat.ages.age) == (
                    timedelta(seconds=10),
                ) * 3

    asyncio.run(story())
