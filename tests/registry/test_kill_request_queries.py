"""Kill requests: one open per agent, claimed once, every step stored first."""

import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, event

from tests.registry.samples import HERE, NOW, add
from watchdog.core.kill import Reason
from watchdog.errors import Conflict
from watchdog.registry.registry import Registry
from watchdog.registry.row_codec import dump


def test_an_agent_has_one_open_request(registry: Registry) -> None:
    """Open, claimed and unkillable all count as open; after the end of one, another may be opened."""
    add(registry)
    assert registry.kills.open_request(
        "r1", "a1", Reason.STALLED, by="daemon", now=NOW, identity=HERE, options={"grace": 10}, evidence={"s": 120}
    )
    first = registry.kills.request("r1")
    assert first is not None
    assert (first.identity is not None, first.options, first.evidence) == (True, {"grace": 10}, {"s": 120})
    assert not registry.kills.open_request("r2", "a1", Reason.OPERATOR, by="uid 1", now=NOW)
    assert registry.kills.claim_request("r1", "me", NOW)
    assert not registry.kills.open_request("r2", "a1", Reason.OPERATOR, by="uid 1", now=NOW)
    assert registry.kills.finish_request("r1", "unkillable", {"why": "d_state"}, now=NOW, who="daemon", why="D state")
    assert not registry.kills.open_request("r2", "a1", Reason.OPERATOR, by="uid 1", now=NOW)
    assert registry.kills.finish_request("r1", "done", {}, now=NOW, who="daemon", why="all dead")
    assert registry.kills.open_request("r2", "a1", Reason.OPERATOR, by="uid 1", by_uid=1, now=NOW)
    assert [e.event for e in registry.history.events(1)] == [
        "kill.requested",
        "kill.unkillable",
        "kill.finished",
        "kill.requested",
    ]


def test_a_request_for_nobody_is_no_request(registry: Registry) -> None:
    """An unknown agent is the caller's error, not an open request."""
    with pytest.raises(Conflict):
        registry.kills.open_request("r1", "nobody", Reason.STALLED, by="daemon", now=NOW)


def test_a_claim_is_won_once_and_taken_over_only_from_the_one_that_is_gone(registry: Registry) -> None:
    """A claim has no clock: only a daemon that names the former claimant exactly takes it over."""
    add(registry)
    registry.kills.open_request("r1", "a1", Reason.STALLED, by="daemon", now=NOW)
    assert registry.kills.claim_request("r1", "one", NOW)
    assert not registry.kills.claim_request("r1", "two", NOW)
    assert not registry.kills.claim_request("r1", "two", NOW, takeover_from="somebody")
    assert registry.kills.claim_request("r1", "two", NOW, takeover_from="one")
    assert not registry.kills.claim_request("r1", "three", NOW, takeover_from="one")


def test_a_step_is_on_disk_before_it_is_done(registry: Registry, database: Path) -> None:
    """Another connection sees the intent as soon as save_step returns, and it is flushed (synchronous=FULL)."""
    add(registry)
    registry.kills.open_request("r1", "a1", Reason.STALLED, by="daemon", now=NOW)
    assert not registry.kills.save_step("r1", "term")  # not claimed: no daemon may act on it
    registry.kills.claim_request("r1", "one", NOW)
    who = {"host": "h", "boot_id": "b", "pid": 5, "start_ticks": 7, "pidfd_inode": None}
    member = {"identity": who, "parent_pid": 2, "uid": 0, "name": "x", "state": "S", "via": "main"}
    assert registry.kills.save_step("r1", "term", members=[member], evidence={"e": 1})
    other = sqlite3.connect(database)
    assert other.execute("SELECT step, members, evidence FROM kill_request").fetchall() == [
        ("term", dump([member]), '{"e":1}')
    ]
    other.close()
    with registry.engines.begin(registry.engines.durable) as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    assert registry.kills.save_step("r1", "kill")
    row = registry.kills.request("r1")
    assert row is not None
    assert (row.step, row.members) == ("kill", (member,))


def test_a_request_ends_once(registry: Registry) -> None:
    """The second call returns False and writes nothing; a retry with `say=False` writes no event."""
    add(registry)
    registry.kills.open_request("r1", "a1", Reason.STALLED, by="daemon", now=NOW)
    assert registry.kills.finish_request("r1", "unkillable", {}, now=NOW, who="d", why="retry", say=False)
    assert registry.kills.finish_request("r1", "withdrawn", {"beat": 1}, now=NOW, who="d", why="a beat came")
    assert not registry.kills.finish_request("r1", "done", {}, now=NOW, who="d", why="late")
    row = registry.kills.request("r1")
    assert row is not None
    assert (row.status, row.outcome, row.finished_at) == ("withdrawn", {"beat": 1}, NOW)
    assert [e.event for e in registry.history.events(2)] == ["kill.withdrawn"]


def test_requests_are_listed_for_one_host_and_oldest_first(registry: Registry) -> None:
    """A daemon acts only on its own host's requests."""
    add(registry, "a1")
    add(registry, "a2")
    add(registry, "a3", host="h2")
    for number, agent in enumerate(["a2", "a1", "a3"]):
        later = NOW + timedelta(seconds=number)
        registry.kills.open_request(f"r{number}", agent, Reason.STALLED, by="daemon", now=later)
    rows, problems = registry.kills.open_requests("h1")
    assert [row.agent_id for row in rows] == ["a2", "a1"]
    assert problems == []
    assert registry.kills.finish_request("r0", "done", {}, now=NOW, who="daemon", why="all dead")
    assert [row.request_id for row in registry.kills.open_requests("h1")[0]] == ["r1"]
    assert [row.request_id for row in registry.kills.requests_of("a3")] == ["r2"]


def test_what_each_interval_asks_reads_no_ended_rows(registry: Registry) -> None:
    """By SQLite's own query plans: neither ended agents nor finished requests are scanned."""
    plans: list[str] = []

    def explain(
        connection: Connection, cursor: object, statement: str, parameters: tuple[object, ...], *_: object
    ) -> None:
        if statement.startswith("SELECT"):
            found = connection.connection.cursor()
            found.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(str(row[3]) for row in found.fetchall())

    event.listen(registry.engines.reading, "before_cursor_execute", explain)
    registry.agents.without_row(["a1"], "h1")
    registry.kills.open_requests("h1")
    looks = [plan for plan in plans if plan.startswith(("SCAN", "SEARCH"))]
    assert looks
    assert [plan for plan in looks if "INDEX" not in plan] == []
