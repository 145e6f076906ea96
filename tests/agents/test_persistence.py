"""One alert per fault of the registry, and no long wait for a probe to find one."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path

import pytest

from tests.control.office import Recorder as Kept
from watchdog.agents import judging
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.persistence import AGES_EVERY, PROBE_EVERY, YOUNG, AgentPersistence, restore
from watchdog.clock import Clock
from watchdog.core.agent import Beat, Policy, Registration, State, Status
from watchdog.core.process import Identity, Presence, TreeMember
from watchdog.core.verdict import judge
from watchdog.errors import RegistryUnavailable
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.registry.schema import REVISION

INTERVAL = 10.0


class Ticking(Clock):
    """Advances by a sweep interval at each reading, when switched on."""

    at = 0.0

    def mono(self) -> float:
        return self.at


class Bench:
    """An `AgentPersistence` on a real file, with any number of sweeps."""

    def __init__(self, path: Path, registry: AsyncRegistry) -> None:
        self.registry, self.log, self.clock = registry, Kept(), Ticking()
        self._path, self._fleet = path, Fleet()
        self._recorder = AgentPersistence(self._fleet, registry, self.clock, self.log)

    def by_hand(self, statement: str) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as other:
            other.execute(statement)

    def admit(self, name: str) -> Agent:
        """A running agent."""
        reg = Registration(name * 4, name, 0, "host", "boot", stall_after=timedelta(minutes=2))
        self.registry.agents.add(reg, Status.RUNNING, self.clock.now().wall, "test")
        self._fleet.add(agent := Agent(reg, Policy(), Status.RUNNING))
        return agent

    def written(self) -> dict[str, tuple[float, int]]:
        """Silence in seconds and beats of each agent, as in its row."""
        with closing(sqlite3.connect(self._path)) as other:
            rows = other.execute("SELECT name, silence_seconds, beats FROM agent_lifecycle").fetchall()
        return {name: (silence, beats) for name, silence, beats in rows}

    @property
    def trouble(self) -> str | None:
        """The error that `status` would show."""
        return self._recorder.trouble

    async def sweep(self) -> bool:
        recorded = await self._recorder.record(INTERVAL)
        self.clock.at += INTERVAL
        return recorded

    def told(self) -> list[object]:
        return [event["event"] for event in self.log.events]


@asynccontextmanager
async def bench(directory: Path) -> AsyncIterator[Bench]:
    registry = AsyncRegistry(Registry(f"sqlite:///{directory}/registry.db").open())
    try:
        yield Bench(directory / "registry.db", registry)
    finally:
        registry.close()


def test_a_fault_that_no_probe_meets_is_reported_once_and_ends_once(tmp_path: Path) -> None:
    """The history fails in each sweep, while everything that a probe tests works."""

    async def story() -> None:
        async with bench(tmp_path) as made:
            refused = (
                "BEFORE INSERT ON lifecycle_event WHEN new.event <> '' BEGIN SELECT abs(-9223372036854775807 - 1); END"
            )
            made.by_hand(f"CREATE TRIGGER refuse {refused}")
            for _ in range(5):
                assert await made.sweep(), "the rest works: orders are tried"
                with pytest.raises(RegistryUnavailable):
                    await made.registry.write(
                        made.registry.history.add_event, "agent.late", None, "t", "w", made.clock.now().wall
                    )
            assert made.told() == ["registry.unavailable"]
            made.by_hand("DROP TRIGGER refuse")
            for _ in range(2):
                assert await made.sweep()
            assert made.told() == ["registry.unavailable", "registry.recovered"]

    asyncio.run(story())


def test_the_present_error_is_shown_not_the_first_one(tmp_path: Path) -> None:
    """B2: "terminating connection due to administrator command" stayed the cause when there was no server any more."""

    async def story() -> None:
        async with bench(tmp_path) as made:
            for wrong, looks in ("9999", PROBE_EVERY), ("8888", 1):
                made.by_hand(f"UPDATE alembic_version SET version_num = '{wrong}'")
                for _ in range(looks):
                    await made.sweep()
                assert f"has revision '{wrong}' now" in str(made.trouble)
            assert made.told() == ["registry.unavailable"]

    asyncio.run(story())


def test_a_fault_that_only_a_probe_meets_is_found_within_a_minute(tmp_path: Path) -> None:
    """Six intervals of 10 s; sooner with shorter ones."""

    async def story() -> None:
        async with bench(tmp_path) as made:
            assert await made.sweep()
            made.by_hand("UPDATE alembic_version SET version_num = '9999'")
            recorded = [await made.sweep() for _ in range(PROBE_EVERY)]
            assert recorded == [True] * (PROBE_EVERY - 1) + [False]
            assert made.told() == ["registry.unavailable"]
            made.by_hand(f"UPDATE alembic_version SET version_num = '{REVISION}'")
            assert await made.sweep()
            assert await made.sweep()
            assert made.told() == ["registry.unavailable", "registry.recovered"]

    asyncio.run(story())


def test_a_row_is_written_if_more_than_time_has_changed(tmp_path: Path) -> None:
    """All are, once a minute; in between after a new report, and after a beat that makes the row's silence too long."""

    async def story() -> None:
        async with bench(tmp_path) as made:
            made._recorder._began -= YOUNG
            agents = [made.admit(name) for name in ("quiet", "beats", "waits", "late")]
            _, beats, waits, late = agents

            async def sweep() -> dict[str, tuple[float, int]]:
                for agent in agents:
                    agent.watch(made.clock.at - INTERVAL, made.clock.at, 2 * INTERVAL)
                    judging.remember(
                        agent,
                        judge(judging.observe(agent, Presence.ALIVE, made.clock.at, INTERVAL), agent.policy),
                        0,
                        INTERVAL,
                    )
                await made.sweep()
                return made.written()

            for agent in agents:
                agent.beat(Beat(), 0, made.clock.now().wall)
            late.heartbeat.silence.lasted = timedelta(seconds=60)
            first = await sweep()
            assert first == {"quiet": (0, 1), "beats": (0, 1), "waits": (0, 1), "late": (60, 1)}
            for agent in (beats, late):
                agent.beat(Beat(), made.clock.at - 2, made.clock.now().wall)
            waits.beat(Beat(state=State.WAITING), made.clock.at - 2, made.clock.now().wall)

            assert await sweep() == {**first, "waits": (2, 2), "late": (2, 2)}
            for _ in range(AGES_EVERY - 2):
                seen = await sweep()
            assert seen["quiet"] == first["quiet"]
            later = await sweep()
            assert later["quiet"] == (first["quiet"][0] + AGES_EVERY * INTERVAL, 1)
            assert later["beats"][1] == 2

    asyncio.run(story())


def test_a_tree_is_written_when_a_scan_changed_it_and_read_back(tmp_path: Path) -> None:
    """The next daemon knows its members, and the cgroup of the main process; a broken value is quarantined."""

    def member(pid: int) -> TreeMember:
        return TreeMember(Identity("host", "boot", pid, 7, 8), 1, 0, "sh", "S", "marker")

    async def story() -> None:
        async with bench(tmp_path) as made:
            agent = made.admit("alpha")
            agent.tree.home_cgroup, agent.tree.members = "/home", (member(10), member(11))
            made.by_hand(
                "CREATE TRIGGER refuse BEFORE UPDATE ON agent_lifecycle BEGIN SELECT abs(-9223372036854775807 - 1); END"
            )
            assert not await made.sweep()
            made.by_hand("DROP TRIGGER refuse")
            assert await made.sweep(), "it is tried again"
            made.by_hand("UPDATE agent_lifecycle SET home_cgroup = 'by hand'")
            agent.tree.members = (member(10), member(11))
            assert await made.sweep()
            row = made.registry.agents.get("alpha" * 4)
            assert row is not None
            assert row.home_cgroup == "by hand", "the same processes are not written again"
            later = Agent(agent.reg, Policy(), Status.RUNNING)
            restore(later, row)
            assert [one.identity for one in later.tree.members] == [one.identity for one in agent.tree.members]
            assert later.tree.home_cgroup == "by hand"
            for broken in ("{}", "[1]", "[[]]", "[[10]]", '[["a", 7, 8]]', "[[10, 7, 8, 9]]"):
                made.by_hand(f"UPDATE agent_lifecycle SET members = '{broken}'")
                _, problems = made.registry.agents.live("host")
                assert len(problems) == 1, broken

    asyncio.run(story())


def test_a_row_that_could_not_be_written_is_written_by_the_next_sweep(tmp_path: Path) -> None:
    """The content of a failed statement is not forgotten for a minute."""

    async def story() -> None:
        async with bench(tmp_path) as made:
            agent = made.admit("alpha")
            await made.sweep()
            made.by_hand(
                "CREATE TRIGGER refuse BEFORE UPDATE ON agent_lifecycle BEGIN SELECT abs(-9223372036854775807 - 1); END"
            )
            agent.beat(Beat(state=State.WAITING), made.clock.at, made.clock.now().wall)
            assert not await made.sweep()
            made.by_hand("DROP TRIGGER refuse")
            assert await made.sweep()
            assert made.written()["alpha"][1] == 1

    asyncio.run(story())
