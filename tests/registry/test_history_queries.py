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
from watchdog.registry.retention_queries import RetentionKind
from watchdog.registry.store import AsyncStore, Store

LATER = NOW + timedelta(hours=1)


def test_a_hook_that_ended_well_is_not_run_again(store: Store) -> None:
    """A run is counted before it starts, also one whose daemon died; only done, nothing and kept are final."""
    assert store.open_run("run", "a1", "temp_dir", NOW, request_id="r").attempts == 1
    assert store.open_run("run", "a1", "temp_dir", NOW).attempts == 2  # a daemon died in the first
    assert store.finish_run("run", HookOutcome.FAILED, "busy", NOW)
    again = store.open_run("run", "a1", "temp_dir", NOW)
    assert (again.attempts, again.status) == (3, "running")
    assert store.finish_run("run", HookOutcome.DONE, "gone", LATER, {"files": 3})
    assert not store.finish_run("run", HookOutcome.FAILED, "late", LATER)
    final = store.open_run("run", "a1", "temp_dir", LATER)
    assert (final.attempts, final.status, final.details, final.finished_at) == (3, "done", {"files": 3}, LATER)
    assert store.runs_of("a1") == [final]


def test_a_task_is_made_at_registration_and_failed_by_its_own_agent_only(store: Store) -> None:
    """A task that was given to somebody else meanwhile is not touched."""
    store.assign_task("T", "a1", NOW)
    store.assign_task("T", "a2", LATER)
    assert not store.update_task("T", "failed", "Agent killed: stalled", "a1", LATER)
    assert store.update_task("T", "failed", "Agent killed: stalled", "a2", LATER)
    task = store.task("T")
    assert task is not None
    assert (task.status, task.error_message, task.created_at, task.completed_at) == (
        "failed",
        "Agent killed: stalled",
        NOW,
        LATER,
    )
    assert not store.update_task("nothing", "failed", None, None, NOW)


def test_a_task_that_is_ready_for_retry_is_free_and_counted(store: Store) -> None:
    """The orchestrator finds it unassigned, with one retry more."""
    store.assign_task("T", "a1", NOW)
    assert store.update_task("T", "ready_for_retry", "Agent killed: stalled", "a1", NOW)
    task = store.task("T")
    assert task is not None
    assert (task.assigned_agent, task.retry_count, task.completed_at) == (None, 1, None)


def test_events_come_in_the_order_of_their_ids_and_by_owner(store: Store, database: Path) -> None:
    """What a client reads after N is everything after N, in order, whoever wrote it at the same time."""
    store = Store(f"sqlite:///{database}").open()  # on a busy disk two writers wait longer than 0.2 s for each other
    threads = [
        threading.Thread(
            target=lambda uid=uid: [
                store.add_event("agent.late", f"a{uid}", "t", "w", NOW, owner_uid=uid, evidence={"n": 1})
                for _ in range(20)
            ]
        )
        for uid in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    everything = store.events(0)
    assert [event.id for event in everything] == list(range(1, 41))
    assert [event.id for event in store.events(35, limit=3)] == [36, 37, 38]
    assert {event.owner_uid for event in store.events(0, owner_uid=1)} == {1}
    assert len(store.events(0, agent_id="a0")) == 20
    store.close()


def test_the_id_of_a_deleted_event_is_never_used_again(store: Store) -> None:
    """A client that has seen event 1 would miss a second event 1."""
    store.add_event("agent.late", None, "t", "w", NOW)
    assert store.forget(RetentionKind.EVENTS, store.due(RetentionKind.EVENTS, LATER, "h1")) == 1
    assert store.add_event("agent.late", None, "t", "w", NOW) == 2


def test_holds_begin_and_end_once(store: Store) -> None:
    """For one agent or for all; ending one twice says so."""
    everybody = store.add_hold(None, "backup", 0, NOW, LATER, host="h1")
    one = store.add_hold("a1", "debugging", 1000, NOW, host="h1")
    assert store.active_holds("h1") == [everybody, one]
    assert store.end_hold(one.id, LATER)
    assert not store.end_hold(one.id, LATER)
    assert store.active_holds("h1") == [everybody]


@pytest.mark.parametrize("column", ["reason", "by_uid", "created_at", "until_at"])
def test_a_hold_that_cannot_be_read_holds_until_it_is_lifted(store: Store, column: str) -> None:
    """Somebody wanted this one left alone. It says what is wrong with it where `list` and `status` say why."""
    hold = store.add_hold("a1", "debugging", 1000, NOW, LATER, host="h1")
    with store.engines.begin(store.engines.durable) as connection:
        connection.exec_driver_sql(f"UPDATE operator_hold SET {column} = x'ff'")

    (read,) = store.active_holds("h1")

    assert (read.id, read.agent_id, read.until_at) == (hold.id, "a1", None)
    assert read.reason.startswith(f"until it is lifted, as its row cannot be read: {column}: ")
    assert store.end_hold(read.id, LATER)
    assert store.active_holds("h1") == []


def test_a_hold_is_its_host_s_alone_and_one_of_before_everybody_s(store: Store) -> None:
    """Hosts share the registry; a row without a host was written when none was stored."""
    here = store.add_hold(None, "backup", 0, NOW, host="h1")
    there = store.add_hold(None, "move", 0, NOW, host="h2")
    old = store.add_hold(None, "old", 0, NOW, host="h3")
    with store.engines.begin(store.engines.durable) as connection:
        connection.execute(text("UPDATE operator_hold SET host = NULL WHERE host = 'h3'"))
    assert store.active_holds("h1") == [here, old]
    assert store.active_holds("h2") == [there, old]


def test_the_event_loop_reaches_the_store_through_threads(store: Store) -> None:
    """Writes go one after the other, in the order in which they were asked for."""

    async def play() -> list[int]:
        registry = AsyncStore(store)
        writes = [registry.write(store.add_event, "agent.late", None, "t", str(n), NOW) for n in range(10)]
        await asyncio.gather(*writes)
        events = await registry.read(store.events, 0)
        registry.close()
        return [int(event.why) for event in events]

    assert asyncio.run(play()) == list(range(10))


def test_what_was_kept_for_its_use_is_tried_again_until_another_agent_is_given_it(store: Store) -> None:
    """It is final but for who says that it is tried anew. What another agent had since goes by that one's end."""
    used, soon = {"in_use": True, "seen": "s"}, LATER + timedelta(seconds=1)
    for agent_id, details in (("a1", used), ("a2", {"reasons": ["it is not clean"]})):
        add(store, agent_id, Status.KILLED, worktree="/w/tree")
        store.open_run(f"{agent_id}/worktree", agent_id, "worktree", NOW + timedelta(seconds=9))
        store.finish_run(f"{agent_id}/worktree", HookOutcome.KEPT, "kept", LATER, details)

    def due(before: datetime = soon, since: datetime = NOW) -> list[str]:
        return [run.run_id for run in store.kept_in_use("h1", before, since)]

    assert due() == ["a1/worktree"]
    assert due(before=LATER) == due(since=soon) == []
    assert store.open_run("a1/worktree", "a1", "worktree", soon).status == "kept"
    add(store, "a3", Status.STOPPED, worktree="/w/tree", created_at=soon)
    assert due() == []
    assert store.open_run("a1/worktree", "a1", "worktree", soon, anew=True).status == "running"
    store.finish_run("a1/worktree", HookOutcome.DONE, "moved", soon)
    assert store.open_run("a1/worktree", "a1", "worktree", soon, anew=True).status == "done"
