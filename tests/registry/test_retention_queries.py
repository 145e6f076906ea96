"""What ended long ago is forgotten, a few rows at a time; what lives or is needed stays."""

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
from watchdog.registry.rows import SweepRow
from watchdog.registry.store import AsyncStore, Store
from watchdog.telemetry.logger import get_logger

LATER = NOW + timedelta(days=31)
KEEP = timedelta(days=30)


class At(Clock):
    """The machine's clock with another wall time."""

    def now(self) -> Instant:
        return Instant(time.monotonic(), time.monotonic(), LATER)


def end(store: Store, agent_id: str, days_ago: float = 31) -> None:
    """An agent ends so many days before now."""
    at = LATER - timedelta(days=days_ago)
    assert store.transition(agent_id, {Status.RUNNING}, Status.KILLED, now=at, who="t", why="w")


def forget(store: Store, host: str = "h1") -> None:
    """One round."""

    async def play() -> None:
        await Retention(AsyncStore(store), At(), get_logger(), keep=KEEP, host=host).round()

    asyncio.run(play())


def there(store: Store) -> set[str]:
    return {row.agent_id for row in store.agents(ended=True, limit=100_000)}


def test_an_agent_that_ended_long_ago_goes_with_all_that_is_about_it(store: Store) -> None:
    """Requests, runs, events, its finished task; not those of one that ended later, and never a living one's."""
    for agent in ("old", "young", "alive"):
        add(store, agent, task_id=f"T-{agent}")
        store.assign_task(f"T-{agent}", agent, NOW)
        store.open_request(f"r-{agent}", agent, Reason.STALLED, by="daemon", now=NOW)
        store.open_run(f"run-{agent}", agent, "temp_dir", NOW)
        store.add_hold(agent, "h", 0, NOW, host="h1")
    for agent, days in (("old", 30.1), ("young", 29.9)):
        store.finish_request(f"r-{agent}", "done", {}, now=NOW, who="t", why="w")
        store.update_task(f"T-{agent}", "failed", "killed", agent, NOW)
        end(store, agent, days)
    for hold in store.active_holds("h1"):
        store.end_hold(hold.id, NOW)
    store.add_event("hold.started", None, "t", "w", NOW)
    store.add_event("hold.started", None, "t", "w", LATER)

    forget(store)

    assert there(store) == {"young", "alive"}
    assert (store.runs_of("old"), store.requests_of("old"), store.task("T-old")) == ([], [], None)
    for agent in ("young", "alive"):
        assert store.runs_of(agent)
        assert store.requests_of(agent)
        assert store.task(f"T-{agent}")
        assert "agent.registered" in [event.event for event in store.events(0, agent_id=agent)]
    assert [event.at for event in store.events(0) if event.agent_id is None] == [LATER]
    assert store.events(0, agent_id="old") == []


def test_what_something_depends_on_stays(store: Store) -> None:
    """An open request, an unfinished task, a living child: each still asks for the agent's row."""
    for agent in ("open", "tasked", "parent", "free"):
        add(store, agent)
        end(store, agent) if agent != "open" else None
    add(store, "child", parent_id="parent")
    store.open_request("r", "open", Reason.STALLED, by="daemon", now=NOW)
    end(store, "open")
    store.assign_task("T", "tasked", NOW)

    forget(store)
    assert there(store) == {"open", "tasked", "parent", "child"}

    end(store, "child", days_ago=1)
    store.finish_request("r", "done", {}, now=NOW, who="t", why="w")
    store.update_task("T", "completed", None, "tasked", NOW)
    forget(store)
    assert there(store) == {"child"}
    assert store.task("T") is None


def test_another_hosts_agents_are_left_to_its_own_daemon(store: Store) -> None:
    """Its `retention_days` may be longer; nor do its agents' events go."""
    add(store, "theirs", host="h2")
    end(store, "theirs")
    forget(store)
    assert there(store) == {"theirs"}
    assert len(store.events(0, agent_id="theirs")) == 2
    forget(store, "h2")
    assert there(store) == set()


def test_a_round_that_deleted_is_told_in_one_line(store: Store) -> None:
    """A round that found nothing says nothing."""
    add(store, "old")
    end(store, "old")
    told: list[tuple[str, dict[str, object]]] = []

    class Log:
        def event(self, name: str, **fields: object) -> None:
            told.append((name, fields))

    async def play() -> None:
        rounds = Retention(AsyncStore(store), At(), Log(), keep=KEEP, host="h1")  # type: ignore[arg-type]
        await rounds.round()
        await rounds.round()

    asyncio.run(play())
    assert [(name, fields["agents"], fields["events"]) for name, fields in told] == [("registry.trimmed", 1, 2)]


def fill(store: Store, agents: int, days: int = 60) -> None:
    """Ended agents, aged 1 to `days` days, three events each; written as fast as SQLite can."""
    with store.engines.begin(store.engines.quick) as connection:
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
def test_twenty_thousand_ended_agents_cost_a_sweep_nothing_and_the_old_ones_go(store: Store, database: Path) -> None:
    """F8: 20,000 ended rows aged 1 to 60 days and 5 living: the young ones stay readable, intents do not wait."""
    fill(store, 20_000)
    for number in range(5):
        add(store, f"live{number}")
    with store.engines.begin(store.engines.reading) as connection:
        plan = connection.exec_driver_sql(
            "EXPLAIN QUERY PLAN SELECT * FROM agent_lifecycle WHERE host = 'h1'"
            " AND status IN ('ending', 'queued', 'running', 'starting', 'unkillable')"
        ).all()
    assert "agent_lifecycle_live" in str(plan)  # what a sweep and a start read is no function of ended rows
    waits: list[float] = []

    async def play() -> None:
        registry = AsyncStore(store)
        round_ = asyncio.create_task(Retention(registry, At(), get_logger(), keep=KEEP, host="h1").round())
        number = 0
        while not round_.done():
            number, began = number + 1, time.monotonic()
            await registry.write(store.save_sweep, [SweepRow(f"live{n}", 1, number, number, True) for n in range(5)])
            waits.append(time.monotonic() - began)
            await asyncio.sleep(0.005)
        await round_

    asyncio.run(play())
    rows = store.agents(ended=True, limit=100_000)
    assert sum(row.agent_id.startswith("d") for row in rows) == sum(1 + n % 60 < 30 for n in range(20_000))
    assert sum(row.agent_id.startswith("live") for row in rows) == 5
    assert all(row.completed_at is None or row.completed_at >= LATER - KEEP for row in rows)
    assert store.agent("d000000") is not None  # one day old
    print(f"longest wait of a sweep's write: {max(waits) * 1000:.1f} ms of {len(waits)}")
    assert len(waits) > 20  # many went in between


@pytest.mark.faults
def test_the_file_does_not_grow_round_after_round(store: Store, database: Path) -> None:
    """Pages of what was deleted are used again."""
    sizes: list[int] = []
    for _ in range(4):
        fill(store, 3000, days=1)
        with store.engines.begin(store.engines.quick) as connection:
            connection.exec_driver_sql("UPDATE agent_lifecycle SET completed_at = '2026-01-01 00:00:00.000000'")
            connection.exec_driver_sql("UPDATE lifecycle_event SET at = '2026-01-01 00:00:00.000000'")
        forget(store)
        assert there(store) == set()
        with store.engines.begin(store.engines.reading) as connection:
            sizes.append(int(connection.exec_driver_sql("PRAGMA page_count").scalar_one()))
    assert sizes[-1] <= sizes[0] * 1.05, sizes
