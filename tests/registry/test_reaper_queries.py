"""What the reaper reads from a real registry: ended agents of this host, members recorded by kills, failed hooks."""

import sqlite3
from contextlib import closing
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import pytest

from tests.registry.samples import HERE, NOW, add
from watchdog.core.agent import Registration, Status
from watchdog.core.hooks import HookOutcome
from watchdog.core.kill import Reason
from watchdog.core.process import TreeMember
from watchdog.registry.registry import Registry

MINUTE = timedelta(minutes=1)
LATER = NOW + 60 * MINUTE


def end(registry: Registry, agent_id: str, minutes: int = 0, to: Status = Status.KILLED) -> None:
    """End an agent that many minutes after its registration."""
    assert registry.agents.transition(
        agent_id, {Status.RUNNING}, to, now=NOW + minutes * MINUTE, who="test", why="it is over"
    )


def ran(registry: Registry, agent_id: str, outcome: HookOutcome | None, minutes: int = 0, **details: object) -> str:
    """Store a hook run of the agent with that outcome; None: its daemon died in it."""
    run_id, now = f"{agent_id}-{minutes}", NOW + minutes * MINUTE
    registry.history.open_run(run_id, agent_id, f"hook{minutes}", now)
    if outcome is not None:
        registry.history.finish_run(run_id, outcome, "", now, details)
    return run_id


def test_the_ended_of_this_host_come_newest_first_and_bounded(registry: Registry) -> None:
    """Without live agents, and those of another host or owner."""
    for number, agent_id in enumerate("abc"):
        add(registry, agent_id)
        end(registry, agent_id, number)
    add(registry, "living")
    add(registry, "elsewhere", host="h2")
    end(registry, "elsewhere", 9)
    add(registry, "other", owner_uid=1001, boot_id="b2")
    end(registry, "other", 9)
    assert [row.registration.agent_id for row in registry.leftovers.ended_agents("h1", 1000)] == ["c", "b", "a"]
    assert [row.registration.agent_id for row in registry.leftovers.ended_agents("h1", 1000, limit=1)] == ["c"]
    assert registry.leftovers.ended_ids("h1", "b1", 2) == ["c", "b"]
    assert registry.leftovers.living_ids("h1") == {"living"}
    assert registry.agents.owners("h1") == {1000, 1001}
    assert {row.registration.agent_id for row in registry.agents.by_ids({"a", "living", "nobody"})} == {"a", "living"}


def test_a_row_that_cannot_be_read_hides_no_other_and_counts_as_living(registry: Registry, database: Path) -> None:
    """What its agent uses must not be taken for a dead agent's."""
    for agent_id in ("a", "b", "c"):
        add(registry, agent_id)
    end(registry, "a")
    end(registry, "b")
    with closing(sqlite3.connect(database)) as other:
        other.execute("update agent_lifecycle set tags = '{' where agent_id in ('a', 'c')")
        other.commit()
    assert [row.registration.agent_id for row in registry.leftovers.ended_agents("h1", 1000)] == ["b"]
    assert registry.leftovers.living_ids("h1") == {"c"}


def test_whom_orders_have_committed_is_remembered(registry: Registry) -> None:
    """For each of the agents asked for."""
    member = asdict(TreeMember(HERE, 1, 1000, "sleep", "S", "descent"))
    for agent_id in ("a", "b"):
        add(registry, agent_id)
        assert registry.kills.open_request(f"r{agent_id}", agent_id, Reason.STALLED, by="test", now=NOW)
        assert registry.kills.claim_request(f"r{agent_id}", "d", NOW)
        registry.kills.save_step(f"r{agent_id}", "term_main", members=[member])
    assert [one["name"] for one in registry.leftovers.remembered(["a"])["a"]] == ["sleep"]
    assert set(registry.leftovers.remembered(["a", "nobody"])) == {"a"}


@pytest.mark.parametrize(
    ("outcome", "gave_up", "failed"),
    [
        (HookOutcome.FAILED, True, True),
        (HookOutcome.TIMEOUT, True, True),
        (None, True, False),  # its first try may still be running
        (HookOutcome.DONE, False, False),
        (HookOutcome.KEPT, False, False),
    ],
)
def test_hooks_that_did_not_end_well_are_found(
    registry: Registry, outcome: HookOutcome | None, gave_up: bool, failed: bool
) -> None:
    """Of this host's ended agents, last tried before that time."""
    add(registry, "a")
    run_id = ran(registry, "a", outcome)
    assert registry.leftovers.gave_up("h1", LATER) == []
    end(registry, "a")
    assert [run.run_id for run in registry.leftovers.gave_up("h1", LATER)] == [run_id] * gave_up
    assert registry.leftovers.gave_up("h1", NOW) == []
    assert registry.leftovers.gave_up("h2", LATER) == []
    assert [run.run_id for run in registry.leftovers.failed_runs({"a"})] == [run_id] * failed


def test_what_was_kept_for_its_use_is_asked_for_again(registry: Registry) -> None:
    """Unless another agent has been given the worktree since."""
    add(registry, "a", worktree="/w")
    add(registry, "b", worktree="/v")
    used = ran(registry, "a", HookOutcome.KEPT, 1, in_use=True)
    ran(registry, "a", HookOutcome.KEPT, 2, dirty=True)
    given = ran(registry, "b", HookOutcome.KEPT, 1, in_use=True)
    end(registry, "a")
    end(registry, "b")
    assert {run.run_id for run in registry.leftovers.kept_in_use("h1", LATER, NOW)} == {used, given}
    assert registry.leftovers.kept_in_use("h1", LATER, NOW + 2 * MINUTE) == []
    later = Registration("later", "later", 1000, "h1", "b1", worktree="/v", created_at=NOW + 5 * MINUTE)
    registry.agents.add(later, Status.RUNNING, NOW + 5 * MINUTE, "test")
    assert [run.run_id for run in registry.leftovers.kept_in_use("h1", LATER, NOW)] == [used]


def test_where_worktrees_were_put_away_is_known_by_what_hooks_told(registry: Registry) -> None:
    """Only absolute paths, each once, and of that owner."""
    for agent_id, uid in (("a", 1000), ("b", 1000), ("c", 1001)):
        add(registry, agent_id, owner_uid=uid)
    ran(registry, "a", HookOutcome.DONE, 1, trash=f"/r/.git/agent-watchdog/trash/{'a' * 32}/tree")
    ran(registry, "b", HookOutcome.DONE, 1, trash=f"/r/.git/agent-watchdog/trash/{'b' * 32}/tree")
    ran(registry, "b", HookOutcome.DONE, 2, trash="relative/agent-watchdog/trash/x/tree")
    ran(registry, "b", HookOutcome.DONE, 3, note="nothing of it")
    ran(registry, "c", HookOutcome.DONE, 1, trash="/other/.git/agent-watchdog/trash/c/tree")
    assert registry.leftovers.trashes("h1", 1000) == ["/r/.git"]
