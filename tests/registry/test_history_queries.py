"""Cleanup runs, tasks, events, holds."""

import asyncio
import threading
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.registry.samples import NOW, add
from watchdog.core.agent import Status
from watchdog.core.hooks import HookOutcome
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.registry.retention_queries import RetentionKind

LATER = NOW + timedelta(hours=1)


def test_a_hook_that_ended_well_is_not_run_again(registry: Registry) -> None:
    """An attempt is counted before it starts, in case the daemon dies in it; only done, nothing and kept are final."""
    assert registry.history.open_run("run", "a1", "temp_dir", NOW, request_id="r").attempts == 1
    assert registry.history.open_run("run", "a1", "temp_dir", NOW).attempts == 2  # a daemon died in the first
    assert registry.history.finish_run("run", HookOutcome.FAILED, "busy", NOW)
    again = registry.history.open_run("run", "a1", "temp_dir", NOW)
    assert (again.attempts, again.status) == (3, "running")
    assert registry.history.finish_run("run", HookOutcome.DONE, "gone", LATER, {"files": 3})
    assert not registry.history.finish_run("run", HookOutcome.FAILED, "late", LATER)
    final = registry.history.open_run("run", "a1", "temp_dir", LATER)
    assert (final.attempts, final.status, final.details, final.finished_at) == (3, "done", {"files": 3}, LATER)
    assert registry.history.runs_of("a1") == [final]


def test_a_task_is_made_at_registration_and_failed_by_its_own_agent_only(registry: Registry) -> None:
    """A task that has been given to another agent since is not touched."""
    registry.history.assign_task("T", "a1", NOW)
    registry.history.assign_task("T", "a2", LATER)
    assert not registry.history.update_task("T", "failed", "Agent killed: stalled", "a1", LATER)
    assert registry.history.update_task("T", "failed", "Agent killed: stalled", "a2", LATER)
    task = registry.history.task("T")
    assert task is not None
    assert (task.status, task.error_message, task.created_at, task.completed_at) == (
        "failed",
        "Agent killed: stalled",
        NOW,
        LATER,
    )
    assert not registry.history.update_task("nothing", "failed", None, None, NOW)


def test_a_task_that_is_ready_for_retry_is_free_and_counted(registry: Registry) -> None:
    """The orchestrator finds it unassigned, with one more retry counted."""
    registry.history.assign_task("T", "a1", NOW)
    assert registry.history.update_task("T", "ready_for_retry", "Agent killed: stalled", "a1", NOW)
    task = registry.history.task("T")
    assert task is not None
    assert (task.assigned_agent, task.retry_count, task.completed_at) == (None, 1, None)


def test_events_come_in_the_order_of_their_ids_and_by_owner(registry: Registry, database: Path) -> None:
    """A client that reads after N gets everything after N, in order, with several writers at the same time."""
    registry = Registry(
        f"sqlite:///{database}"
    ).open()  # on a busy disk two writers wait longer than 0.2 s for each other
    threads = [
        threading.Thread(
            target=lambda uid=uid: [
                registry.history.add_event("agent.late", f"a{uid}", "t", "w", NOW, owner_uid=uid, evidence={"n": 1})
                for _ in range(20)
            ]
        )
        for uid in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    everything = registry.history.events(0)
    assert [event.id for event in everything] == list(range(1, 41))
    assert [event.id for event in registry.history.events(35, limit=3)] == [36, 37, 38]
    assert {event.owner_uid for event in registry.history.events(0, owner_uid=1)} == {1}
    assert len(registry.history.events(0, agent_id="a0")) == 20
    registry.close()


def test_the_id_of_a_deleted_event_is_never_used_again(registry: Registry) -> None:
    """A client that has seen event 1 would miss a second event 1."""
    registry.history.add_event("agent.late", None, "t", "w", NOW)
    assert (
        registry.retention.forget(RetentionKind.EVENTS, registry.retention.due(RetentionKind.EVENTS, LATER, "h1")) == 1
    )
    assert registry.history.add_event("agent.late", None, "t", "w", NOW) == 2


def test_holds_begin_and_end_once(registry: Registry) -> None:
    """For one agent or for all; ending one a second time returns False."""
    everybody = registry.history.add_hold(None, "backup", 0, NOW, LATER, host="h1")
    one = registry.history.add_hold("a1", "debugging", 1000, NOW, host="h1")
    assert registry.history.active_holds("h1") == [everybody, one]
    assert registry.history.end_hold(one.id, LATER)
    assert not registry.history.end_hold(one.id, LATER)
    assert registry.history.active_holds("h1") == [everybody]


@pytest.mark.parametrize("column", ["reason", "by_uid", "created_at", "until_at"])
def test_a_hold_that_cannot_be_read_holds_until_it_is_lifted(registry: Registry, column: str) -> None:
    """An operator wanted this agent left alone. `list` and `status` show what is wrong with the row as the reason."""
    hold = registry.history.add_hold("a1", "debugging", 1000, NOW, LATER, host="h1")
    with registry.engines.begin(registry.engines.durable) as connection:
        connection.exec_driver_sql(f"UPDATE operator_hold SET {column} = x'ff'")

    (read,) = registry.history.active_holds("h1")

    assert (read.id, read.agent_id, read.until_at) == (hold.id, "a1", None)
    assert read.reason.startswith(f"until it is lifted, as its row cannot be read: {column}: ")
    assert registry.history.end_hold(read.id, LATER)
    assert registry.history.active_holds("h1") == []


def test_a_hold_is_its_host_s_alone_and_one_of_before_everybody_s(registry: Registry) -> None:
    """Hosts share the registry; a hold without a host is from a version that stored none."""
    here = registry.history.add_hold(None, "backup", 0, NOW, host="h1")
    there = registry.history.add_hold(None, "move", 0, NOW, host="h2")
    old = registry.history.add_hold(None, "old", 0, NOW, host="h3")
    with registry.engines.begin(registry.engines.durable) as connection:
        connection.execute(text("UPDATE operator_hold SET host = NULL WHERE host = 'h3'"))
    assert registry.history.active_holds("h1") == [here, old]
    assert registry.history.active_holds("h2") == [there, old]


def test_the_event_loop_reaches_the_registry_through_threads(registry: Registry) -> None:
    """Writes are done one after another, in the order of the calls."""

    async def play() -> list[int]:
        async_registry = AsyncRegistry(registry)
        writes = [
            async_registry.write(registry.history.add_event, "agent.late", None, "t", str(n), NOW) for n in range(10)
        ]
        await asyncio.gather(*writes)
        events = await async_registry.read(registry.history.events, 0)
        async_registry.close()
        return [int(event.why) for event in events]

    assert asyncio.run(play()) == list(range(10))


def test_what_was_kept_for_its_use_is_tried_again_until_another_agent_is_given_it(registry: Registry) -> None:
    """`kept` is final unless the caller asks for another try. If another agent got the worktree, its end decides."""
    used, soon = {"in_use": True, "seen": "s"}, LATER + timedelta(seconds=1)
    for agent_id, details in (("a1", used), ("a2", {"reasons": ["it is not clean"]})):
        add(registry, agent_id, Status.KILLED, worktree="/w/tree")
        registry.history.open_run(f"{agent_id}/worktree", agent_id, "worktree", NOW + timedelta(seconds=9))
        registry.history.finish_run(f"{agent_id}/worktree", HookOutcome.KEPT, "kept", LATER, details)

    def due(before: datetime = soon, since: datetime = NOW) -> list[str]:
        return [run.run_id for run in registry.leftovers.kept_in_use("h1", before, since)]

    assert due() == ["a1/worktree"]
    assert due(before=LATER) == due(since=soon) == []
    assert registry.history.open_run("a1/worktree", "a1", "worktree", soon).status == "kept"
    add(registry, "a3", Status.STOPPED, worktree="/w/tree", created_at=soon)
    assert due() == []
    assert registry.history.open_run("a1/worktree", "a1", "worktree", soon, anew=True).status == "running"
    registry.history.finish_run("a1/worktree", HookOutcome.DONE, "moved", soon)
    assert registry.history.open_run("a1/worktree", "a1", "worktree", soon, anew=True).status == "done"
