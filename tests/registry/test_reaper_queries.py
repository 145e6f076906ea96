"""What the reaper asks a real registry: who has ended here, whom orders remember, which hooks did not end well."""

import sqlite3
from contextlib import closing
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import event

from tests.registry.samples import HERE, NOW, add
from watchdog.core.agent import Registration, Status
from watchdog.core.hooks import HookOutcome
from watchdog.core.kill import Reason
from watchdog.core.process import TreeMember
from watchdog.registry.rows import TreeRow
from watchdog.registry.store import Store

MINUTE = timedelta(minutes=1)
LATER = NOW + 60 * MINUTE


def end(store: Store, agent_id: str, minutes: int = 0, to: Status = Status.KILLED) -> None:
    """It has ended so long after it was registered."""
    assert store.transition(agent_id, {Status.RUNNING}, to, now=NOW + minutes * MINUTE, who="test", why="it is over")


def ran(store: Store, agent_id: str, outcome: HookOutcome | None, minutes: int = 0, **details: object) -> str:
    """A hook of it has ended like that; None: its daemon died in it."""
    run_id, now = f"{agent_id}-{minutes}", NOW + minutes * MINUTE
    store.open_run(run_id, agent_id, f"hook{minutes}", now)
    if outcome is not None:
        store.finish_run(run_id, outcome, "", now, details)
    return run_id


def test_the_ended_of_this_host_come_newest_first_and_bounded(store: Store) -> None:
    """Neither the living, nor another host's, nor another owner's."""
    for number, agent_id in enumerate("abc"):
        add(store, agent_id)
        end(store, agent_id, number)
    add(store, "living")
    add(store, "elsewhere", host="h2")
    end(store, "elsewhere", 9)
    add(store, "other", owner_uid=1001, boot_id="b2")
    end(store, "other", 9)
    assert [row.registration.agent_id for row in store.ended_agents("h1", 1000)] == ["c", "b", "a"]
    assert [row.registration.agent_id for row in store.ended_agents("h1", 1000, limit=1)] == ["c"]
    assert store.ended_ids("h1", "b1", 2) == ["c", "b"]
    assert store.living_ids("h1") == {"living"}
    assert store.owners("h1") == {1000, 1001}
    assert {row.registration.agent_id for row in store.agents_by_id({"a", "living", "nobody"})} == {"a", "living"}


def test_lists_of_any_length_are_few_statements(store: Store) -> None:
    """Each statement stays prepared on every connection: one for each length of a list grew memory for hours."""
    ids = [f"a{number}" for number in range(50)]
    for agent_id in ids:
        add(store, agent_id)
    texts: set[str] = set()

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        texts.add(statement)

    event.listen(store.engines.reading, "before_cursor_execute", note)
    for size in range(1, 51):
        assert len(store.agents_by_id(ids[:size])) == size
    assert len(texts - {"BEGIN"}) == 7  # 1, 2, 4, 8, 16, 32, 64


def test_a_row_that_cannot_be_read_hides_no_other_and_counts_as_living(store: Store, database: Path) -> None:
    """What is left of it must not be taken for a dead agent's."""
    for agent_id in ("a", "b", "c"):
        add(store, agent_id)
    end(store, "a")
    end(store, "b")
    with closing(sqlite3.connect(database)) as other:
        other.execute("update agent_lifecycle set tags = '{' where agent_id in ('a', 'c')")
        other.commit()
    assert [row.registration.agent_id for row in store.ended_agents("h1", 1000)] == ["b"]
    assert store.living_ids("h1") == {"c"}


def test_a_tree_is_written_of_the_living_alone(store: Store) -> None:
    """The reaper may look for it at this very moment."""
    add(store, "a")
    add(store, "b")
    end(store, "b")
    store.save_trees([TreeRow("a", "/home", (HERE,)), TreeRow("b", "/home", (HERE,))])
    store.save_trees([])
    rows = {row.registration.agent_id: row for row in store.agents_by_id({"a", "b"})}
    assert (rows["a"].home_cgroup, rows["a"].members) == ("/home", (HERE,))
    assert (rows["b"].home_cgroup, rows["b"].members) == (None, ())


def test_whom_orders_have_committed_is_remembered(store: Store) -> None:
    """Of each agent that was asked for."""
    member = asdict(TreeMember(HERE, 1, 1000, "sleep", "S", "descent"))
    for agent_id in ("a", "b"):
        add(store, agent_id)
        assert store.open_request(f"r{agent_id}", agent_id, Reason.STALLED, by="test", now=NOW)
        assert store.claim_request(f"r{agent_id}", "d", NOW)
        store.save_step(f"r{agent_id}", "term_main", members=[member])
    assert [one["name"] for one in store.remembered(["a"])["a"]] == ["sleep"]
    assert set(store.remembered(["a", "nobody"])) == {"a"}


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
    store: Store, outcome: HookOutcome | None, gave_up: bool, failed: bool
) -> None:
    """Of ended agents of this host, tried last before then."""
    add(store, "a")
    run_id = ran(store, "a", outcome)
    assert store.gave_up("h1", LATER) == []
    end(store, "a")
    assert [run.run_id for run in store.gave_up("h1", LATER)] == [run_id] * gave_up
    assert store.gave_up("h1", NOW) == []
    assert store.gave_up("h2", LATER) == []
    assert [run.run_id for run in store.failed_runs({"a"})] == [run_id] * failed


def test_what_was_kept_for_its_use_is_asked_for_again(store: Store) -> None:
    """Unless another agent was given the worktree meanwhile."""
    add(store, "a", worktree="/w")
    add(store, "b", worktree="/v")
    used = ran(store, "a", HookOutcome.KEPT, 1, in_use=True)
    ran(store, "a", HookOutcome.KEPT, 2, dirty=True)
    given = ran(store, "b", HookOutcome.KEPT, 1, in_use=True)
    end(store, "a")
    end(store, "b")
    assert {run.run_id for run in store.kept_in_use("h1", LATER, NOW)} == {used, given}
    assert store.kept_in_use("h1", LATER, NOW + 2 * MINUTE) == []
    later = Registration("later", "later", 1000, "h1", "b1", worktree="/v", created_at=NOW + 5 * MINUTE)
    store.add_agent(later, Status.RUNNING, NOW + 5 * MINUTE, "test")
    assert [run.run_id for run in store.kept_in_use("h1", LATER, NOW)] == [used]


def test_where_worktrees_were_put_away_is_known_by_what_hooks_told(store: Store) -> None:
    """Only whole paths; each once; of that owner."""
    for agent_id, uid in (("a", 1000), ("b", 1000), ("c", 1001)):
        add(store, agent_id, owner_uid=uid)
    ran(store, "a", HookOutcome.DONE, 1, trash=f"/r/.git/agent-watchdog/trash/{'a' * 32}/tree")
    ran(store, "b", HookOutcome.DONE, 1, trash=f"/r/.git/agent-watchdog/trash/{'b' * 32}/tree")
    ran(store, "b", HookOutcome.DONE, 2, trash="relative/agent-watchdog/trash/x/tree")
    ran(store, "b", HookOutcome.DONE, 3, note="nothing of it")
    ran(store, "c", HookOutcome.DONE, 1, trash="/other/.git/agent-watchdog/trash/c/tree")
    assert store.trashes("h1", 1000) == ["/r/.git"]
