"""Operators' holds in memory, beside a registry that another host writes, too."""

import time
from datetime import UTC, datetime, timedelta

from watchdog.agents.holds import Holds
from watchdog.registry.rows import HoldRow

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def hold(number: int, agent_id: str | None = "a1", minutes: int | None = None) -> HoldRow:
    until = None if minutes is None else NOW + timedelta(minutes=minutes)
    return HoldRow(number, agent_id, f"reason {number}", 0, NOW, until)


def test_holds_that_another_host_put_and_lifted_are_reported_once() -> None:
    """Begun, then nothing new, then ended."""
    holds = Holds()
    assert holds.sync_with_registry([hold(1)], holds.ids()) == ([hold(1)], [])
    assert holds.reason_for("a1", NOW) == "reason 1 (by uid 0)"
    assert holds.sync_with_registry([hold(1)], holds.ids()) == ([], [])
    assert holds.sync_with_registry([], holds.ids()) == ([], [hold(1)])
    assert holds.reason_for("a1", NOW) is None


def test_changes_made_here_while_the_registry_is_read_stay() -> None:
    """A hold added since is not in the result of the read; one lifted or expired since still is."""
    holds = Holds([hold(1), hold(2, "a2", minutes=1)])
    known = holds.ids()
    holds.lift("a1")
    holds.expire(NOW + timedelta(minutes=2))
    holds.put(hold(3, "a3"))
    assert holds.sync_with_registry([hold(1), hold(2, "a2", minutes=1)], known) == ([], [])
    assert [row.id for row in holds.current(NOW)] == [3]
    assert holds.sync_with_registry([hold(3, "a3")], holds.ids()) == ([], [])


def test_a_hold_that_is_found_in_the_registry_first_is_added_all_the_same() -> None:
    """Its row is committed before its caller is back in the loop."""
    holds = Holds([hold(1)])
    holds.sync_with_registry([hold(1), hold(2)], holds.ids())
    assert {row.id for row in holds.lift("a1")} == {1, 2}
    holds.put(hold(2))
    assert holds.sync_with_registry([hold(2)], holds.ids()) == ([], [])
    assert [row.id for row in holds.current(NOW)] == [2]


def test_a_hold_on_each_of_many_agents_costs_a_sweep_little() -> None:
    """Twenty users with a hold on each of 256 agents: each check read all holds, 26 million rows a sweep."""
    holds = Holds([hold(number, f"a{number}") for number in range(5000)])
    began = time.process_time()
    assert all(holds.reason_for(f"a{number}", NOW) for number in range(5000))
    assert time.process_time() - began < 1.0  # 10 ms here, 5 s and more with all of them sorted each time
    assert len(holds.lift("a7")) == 1
    assert holds.reason_for("a7", NOW) is None
