"""What ended long ago is deleted, a few rows at a time; what is live or needed stays."""

import asyncio
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests.registry.samples import NOW, add
from watchdog.clock import Clock, Instant
from watchdog.core.agent import Status
from watchdog.core.kill import Reason
from watchdog.reaper.retention import Retention
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.registry.rows import SweepRow
from watchdog.telemetry.logger import get_logger

LATER = NOW + timedelta(days=31)
KEEP = timedelta(days=30)


class At(Clock):
    """The machine's clock at another wall time."""

    def now(self) -> Instant:
        return Instant(time.monotonic(), time.monotonic(), LATER)


def end(registry: Registry, agent_id: str, days_ago: float = 31) -> None:
    """End an agent that many days before now."""
    at = LATER - timedelta(days=days_ago)
    assert registry.agents.transition(agent_id, {Status.RUNNING}, Status.KILLED, now=at, who="t", why="w")


def forget(registry: Registry, host: str = "h1") -> None:
    """Run one round."""

    async def play() -> None:
        await Retention(AsyncRegistry(registry), At(), get_logger(), keep=KEEP, host=host).round()

    asyncio.run(play())


def there(registry: Registry) -> set[str]:
    return {row.agent_id for row in registry.agents.newest(ended=True, limit=100_000)}


def test_an_agent_that_ended_long_ago_goes_with_all_that_is_about_it(registry: Registry) -> None:
    """Requests, runs, events, its finished task; not those of an agent that ended later or is live."""
    for agent in ("old", "young", "alive"):
        add(registry, agent, task_id=f"T-{agent}")
        registry.history.assign_task(f"T-{agent}", agent, NOW)
        registry.kills.open_request(f"r-{agent}", agent, Reason.STALLED, by="daemon", now=NOW)
        registry.history.open_run(f"run-{agent}", agent, "temp_dir", NOW)
        registry.history.add_hold(agent, "h", 0, NOW, host="h1")
    for agent, days in (("old", 30.1), ("young", 29.9)):
        registry.kills.finish_request(f"r-{agent}", "done", {}, now=NOW, who="t", why="w")
        registry.history.update_task(f"T-{agent}", "failed", "killed", agent, NOW)
        end(registry, agent, days)
    for hold in registry.history.active_holds("h1"):
        registry.history.end_hold(hold.id, NOW)
    registry.history.add_event("hold.started", None, "t", "w", NOW)
    registry.history.add_event("hold.started", None, "t", "w", LATER)

    forget(registry)

    assert there(registry) == {"young", "alive"}
    assert (registry.history.runs_of("old"), registry.kills.requests_of("old"), registry.history.task("T-old")) == (
        [],
        [],
        None,
    )
    for agent in ("young", "alive"):
        assert registry.history.runs_of(agent)
        assert registry.kills.requests_of(agent)
        assert registry.history.task(f"T-{agent}")
        assert "agent.registered" in [event.event for event in registry.history.events(0, agent_id=agent)]
    assert [event.at for event in registry.history.events(0) if event.agent_id is None] == [LATER]
    assert registry.history.events(0, agent_id="old") == []


def test_what_something_depends_on_stays(registry: Registry) -> None:
    """An open request, an unfinished task, a live child: each still needs the agent's row."""
    for agent in ("open", "tasked", "parent", "free"):
        add(registry, agent)
        end(registry, agent) if agent != "open" else None
    add(registry, "child", parent_id="parent")
    registry.kills.open_request("r", "open", Reason.STALLED, by="daemon", now=NOW)
    end(registry, "open")
    registry.history.assign_task("T", "tasked", NOW)

    forget(registry)
    assert there(registry) == {"open", "tasked", "parent", "child"}

    end(registry, "child", days_ago=1)
    registry.kills.finish_request("r", "done", {}, now=NOW, who="t", why="w")
    registry.history.update_task("T", "completed", None, "tasked", NOW)
    forget(registry)
    assert there(registry) == {"child"}
    assert registry.history.task("T") is None


def test_another_hosts_agents_are_left_to_its_own_daemon(registry: Registry) -> None:
    """That host's `retention_days` may be longer. Its agents' events stay, too."""
    add(registry, "theirs", host="h2")
    end(registry, "theirs")
    forget(registry)
    assert there(registry) == {"theirs"}
    assert len(registry.history.events(0, agent_id="theirs")) == 2
    forget(registry, "h2")
    assert there(registry) == set()


def test_a_round_that_deleted_is_told_in_one_line(registry: Registry) -> None:
    """A round that found nothing logs nothing."""
    add(registry, "old")
    end(registry, "old")
    told: list[tuple[str, dict[str, object]]] = []

    class Log:
        def event(self, name: str, **fields: object) -> None:
            told.append((name, fields))

    async def play() -> None:
        rounds = Retention(AsyncRegistry(registry), At(), Log(), keep=KEEP, host="h1")  # type: ignore[arg-type]
        await rounds.round()
        await rounds.round()

    asyncio.run(play())
    assert [(name, fields["agents"], fields["events"]) for name, fields in told] == [("registry.trimmed", 1, 2)]


def fill(registry: Registry, agents: int, days: int = 60) -> None:
    """Insert ended agents, aged 1 to `days` days, with three events each, as fast as SQLite can."""
    with registry.engines.begin(registry.engines.quick) as connection:
        connection.exec_driver_sql(
            "INSERT INTO agent_lifecycle (agent_id, name, owner_uid, host, boot_id, status, created_at, completed_at)"
            " WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?)"
            " SELECT printf('d%06d', i), 'dead', 1000, 'h1', 'b1', 'killed', '2026-01-01 00:00:00.000000',"
            " strftime('%Y-%m-%d %H:%M:%S.000000', ?, printf('-%d days', 1 + i % ?), '-1 minute') FROM n",
            (agents, LATER.strftime("%Y-%m-%d %H:%M:%S"), days),
        )
        connection.exec_driver_sql(
            "INSERT INTO lifecycle_event (at, agent_id, event, who, why)"
            " SELECT completed_at, agent_id, 'agent.ended', 'daemon', 'w' FROM agent_lifecycle, json_each('[1,2,3]')"
        )


@pytest.mark.faults
def test_twenty_thousand_ended_agents_cost_a_sweep_nothing_and_the_old_ones_go(
    registry: Registry, database: Path
) -> None:
    """F8: 20,000 ended rows aged 1 to 60 days and 5 live ones: the young ones stay readable, intents do not wait."""
    fill(registry, 20_000)
    for number in range(5):
        add(registry, f"live{number}")
    with registry.engines.begin(registry.engines.reading) as connection:
        plan = connection.exec_driver_sql(
            "EXPLAIN QUERY PLAN SELECT * FROM agent_lifecycle WHERE host = 'h1'"
            " AND status IN ('ending', 'queued', 'running', 'starting', 'unkillable')"
        ).all()
    assert "agent_lifecycle_live" in str(plan)  # what a sweep and a start read does not grow with ended rows
    waits: list[float] = []

    async def play() -> None:
        async_registry = AsyncRegistry(registry)
        round_ = asyncio.create_task(Retention(async_registry, At(), get_logger(), keep=KEEP, host="h1").round())
        number = 0
        while not round_.done():
            number, began = number + 1, time.monotonic()
            await async_registry.write(
                registry.agents.save_sweep, [SweepRow(f"live{n}", 1, number, number, True) for n in range(5)]
            )
            waits.append(time.monotonic() - began)
            await asyncio.sleep(0.005)
        await round_

    asyncio.run(play())
    rows = registry.agents.newest(ended=True, limit=100_000)
    assert sum(row.agent_id.startswith("d") for row in rows) == sum(1 + n % 60 < 30 for n in range(20_000))
    assert sum(row.agent_id.startswith("live") for row in rows) == 5
    assert all(row.completed_at is None or row.completed_at >= LATER - KEEP for row in rows)
    assert registry.agents.get("d000000") is not None  # one day old
    print(f"longest wait of a sweep's write: {max(waits) * 1000:.1f} ms of {len(waits)}")
    assert len(waits) > 20  # many writes got in between the batches


@pytest.mark.faults
def test_the_file_does_not_grow_round_after_round(registry: Registry, database: Path) -> None:
    """Pages of deleted rows are reused."""
    sizes: list[int] = []
    for _ in range(4):
        fill(registry, 3000, days=1)
        with registry.engines.begin(registry.engines.quick) as connection:
            connection.exec_driver_sql("UPDATE agent_lifecycle SET completed_at = '2026-01-01 00:00:00.000000'")
            connection.exec_driver_sql("UPDATE lifecycle_event SET at = '2026-01-01 00:00:00.000000'")
        forget(registry)
        assert there(registry) == set()
        with registry.engines.begin(registry.engines.reading) as connection:
            sizes.append(int(connection.exec_driver_sql("PRAGMA page_count").scalar_one()))
    assert sizes[-1] <= sizes[0] * 1.05, sizes
