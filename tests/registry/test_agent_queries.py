"""Registration, compare-and-set, the batch of a sweep."""

import threading
from dataclasses import fields, replace
from datetime import timedelta

import pytest
from sqlalchemy import event

from tests.registry.samples import FULL, HERE, NOW, add
from watchdog.core.agent import Registration, State, Status, Verdict
from watchdog.core.kill import Step
from watchdog.core.process import Identity, Listed
from watchdog.core.sites import Site
from watchdog.errors import Conflict
from watchdog.registry.registry import Registry
from watchdog.registry.rows import SweepRow, TreeRow


def test_an_agent_comes_back_as_it_was_registered(registry: Registry) -> None:
    """Nothing is lost or changed between a registration and its row, whichever field it is."""
    site, entry = Site((1, 2), (3, None), "refs/heads/wt", 4.5), Listed("hcom", "/h/hcom.db", "alpha", "t")
    whole = replace(FULL, dropped=True, worktree_site=site, temp_site=site, entries=(entry,), pane={"terminal": "tmux"})
    unset = [field.name for field in fields(Registration) if getattr(whole, field.name) == field.default]
    assert not unset, f"give {unset} a value here, or in FULL of tests/registry/samples.py"
    row = registry.agents.add(whole, Status.RUNNING, NOW, "uid 1000", notify_socket="/run/n")
    assert row.registration == whole
    assert (row.status, row.notify_socket, row.started_at, row.version) == (Status.RUNNING, "/run/n", NOW, 0)
    assert row.promised  # a registration with a limit promises beats
    assert registry.agents.live("h1") == ([row], [])
    assert registry.agents.live("h2") == ([], [])


def test_an_agent_id_is_never_used_twice(registry: Registry) -> None:
    """Not even after its agent has ended."""
    add(registry)
    assert registry.agents.transition("a1", {Status.RUNNING}, Status.COMPLETED, now=NOW, who="t", why="exit 0")
    with pytest.raises(Conflict, match="a1 is known already"):
        add(registry)


def test_of_many_that_change_a_status_at_once_one_wins(registry: Registry) -> None:
    """A change of status is a compare-and-set: eight threads, one True, one event."""
    add(registry)
    barrier, won = threading.Barrier(8), []

    def claim(number: int) -> None:
        barrier.wait(60)
        if registry.agents.transition("a1", {Status.RUNNING}, Status.ENDING, now=NOW, who=f"t{number}", why="race"):
            won.append(number)

    slow = Registry(str(registry.engines.url), busy_timeout=timedelta(seconds=10))
    registry, quick = slow, registry
    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    slow.close()
    assert len(won) == 1
    assert [event.who for event in quick.history.events(0) if event.event == "agent.ending"] == [f"t{won[0]}"]


def test_a_change_of_status_names_the_version_it_saw(registry: Registry) -> None:
    """A change by another writer in between makes ours fail, and a failed change writes no event."""
    row = add(registry)
    version = row.version
    assert registry.agents.transition("a1", {Status.RUNNING}, Status.ENDING, now=NOW, who="a", why="1")
    assert not registry.agents.transition(
        "a1", {Status.ENDING}, Status.KILLED, expected_version=version, now=NOW, who="b", why="2"
    )
    assert not registry.agents.transition("a1", {Status.RUNNING}, Status.KILLED, now=NOW, who="c", why="3")
    assert not registry.agents.transition("nobody", {Status.RUNNING}, Status.KILLED, now=NOW, who="c", why="3")
    assert [event.why for event in registry.history.events(0)] == ["registered by register", "1"]


def test_an_ending_sets_its_time_and_what_is_known_of_it(registry: Registry) -> None:
    """Exit status and message are saved with the change of status, in the same transaction."""
    add(registry)
    assert registry.agents.transition(
        "a1",
        {Status.RUNNING},
        Status.FAILED,
        now=NOW + timedelta(seconds=5),
        who="daemon",
        why="exit 3",
        evidence={"exit_code": 3},
        exit_code=3,
        error_message="exit 3",
    )
    row = registry.agents.get("a1")
    assert row is not None
    assert (row.completed_at, row.exit_code, row.error_message) == (NOW + timedelta(seconds=5), 3, "exit 3")
    event = registry.history.events(0)[-1]
    assert (event.event, event.from_status, event.to_status) == ("agent.ended", "running", "failed")
    assert (event.evidence, event.owner_uid) == ({"exit_code": 3}, 1000)


def test_a_change_of_status_cannot_write_any_column(registry: Registry) -> None:
    """A misspelt column name is an error at once, and the identity cannot be changed this way."""
    add(registry)
    with pytest.raises(TypeError, match="pid"):
        registry.agents.transition("a1", {Status.RUNNING}, Status.ENDING, now=NOW, who="t", why="w", pid=5)


@pytest.mark.parametrize("pid", [0, 1, 4_194_305])
def test_a_pid_that_no_agent_can_have_is_refused_by_the_database(registry: Registry, pid: int) -> None:
    """To kill(2), pid 0 means the caller's own process group, and 1 is init: no row may hold either."""
    with pytest.raises(Conflict):
        add(registry, identity=Identity("h1", "b1", pid, 5))


def test_a_sweep_is_written_only_forward_and_only_for_the_living(registry: Registry) -> None:
    """A late or repeated batch restores no older silence or beats, and changes no agent that has ended."""
    add(registry, "a1")
    add(registry, "a2")
    registry.agents.transition("a2", {Status.RUNNING}, Status.COMPLETED, now=NOW, who="t", why="exit 0")
    late = SweepRow(
        agent_id="a1",
        silence_seconds=20.0,
        watched_seconds=100.0,
        beats=5,
        promised=True,
        last_heartbeat=NOW,
        state=State.WORKING,
        verdict=Verdict.HEALTHY,
        note="n",
        last_progress=3.5,
        progress_silence_seconds=1.0,
        lease_left_seconds=2.0,
        tool="Bash",
        tool_left_seconds=4.0,
        hears=True,
        rung=Step.NUDGE,
    )
    registry.agents.save_sweep([late, replace(late, agent_id="a2"), replace(late, agent_id="nobody")])
    registry.agents.save_sweep([replace(late, beats=4, note="older")])
    registry.agents.save_sweep([replace(late, watched_seconds=90.0, note="older")])
    registry.agents.save_sweep([])
    row, ended = registry.agents.get("a1"), registry.agents.get("a2")
    assert row is not None
    assert ended is not None
    names = set(SweepRow.__slots__) - {"stall_after_seconds"}  # that one is read back as part of the registration
    assert {name: getattr(row, name) for name in names} == {name: getattr(late, name) for name in names}
    assert (row.version, ended.beats) == (0, 0)


def test_a_note_that_no_database_takes_spoils_no_batch(registry: Registry) -> None:
    """NUL and lone surrogates arrive through JSON; the other agents' silence is saved anyway."""
    add(registry, "a1")
    add(registry, "a2")
    bad = SweepRow("a1", 1.0, 1.0, 1, True, note="a\0b\ud800", last_progress=float("inf"))
    registry.agents.save_sweep([bad, SweepRow("a2", 7.0, 7.0, 1, True)])
    rows = {row.agent_id: row for row in registry.agents.live("h1")[0]}
    assert rows["a1"].note == "a\N{REPLACEMENT CHARACTER}b?"
    assert rows["a2"].silence_seconds == 7.0


def test_agents_are_found_by_id_name_and_prefix(registry: Registry) -> None:
    """In this order. Fewer than 4 characters are no prefix, and % and _ are ordinary characters."""
    add(registry, "abcd1", name="one")
    add(registry, "abcd2", name="abcd1")
    assert [row.agent_id for row in registry.agents.find("abcd1")] == ["abcd1"]
    assert [row.agent_id for row in registry.agents.find("one")] == ["abcd1"]
    assert [row.agent_id for row in registry.agents.find("abcd")] == ["abcd1", "abcd2"]
    assert registry.agents.find("abc") == registry.agents.find("%%%%") == registry.agents.find("____") == []
    assert registry.agents.by_name("one", owner_uid=1) == []
    assert [row.agent_id for row in registry.agents.by_name("one", owner_uid=1000)] == ["abcd1"]


def test_lists_are_by_tag_owner_and_life(registry: Registry) -> None:
    """A tag has to match as a whole; ended agents are listed only on request."""
    add(registry, "a1", tags=("x", 'quo"te'))
    add(registry, "a2", tags=("xy",), owner_uid=5, task_id="T")
    registry.agents.transition("a1", {Status.RUNNING}, Status.COMPLETED, now=NOW, who="t", why="exit 0")
    assert [row.agent_id for row in registry.agents.newest()] == ["a2"]
    assert [row.agent_id for row in registry.agents.newest(ended=True)] == ["a1", "a2"]
    assert [row.agent_id for row in registry.agents.newest(ended=True, tag="x")] == ["a1"]
    assert [row.agent_id for row in registry.agents.newest(ended=True, tag='quo"te')] == ["a1"]
    assert [row.agent_id for row in registry.agents.newest(ended=True, owner_uid=5)] == ["a2"]
    assert [row.agent_id for row in registry.agents.by_task("T")] == ["a2"]


def test_how_long_a_state_lasts_and_that_its_work_is_done_come_back(registry: Registry) -> None:
    """The next daemon continues with both; a new row has neither."""
    add(registry)
    registry.agents.save_sweep([SweepRow("a1", 7.0, 9.0, 3, True, state=State.DONE, state_seconds=5.0, finished=True)])
    row = registry.agents.get("a1")
    assert row is not None
    assert (row.state, row.state_seconds, row.finished) == (State.DONE, 5.0, True)


def test_what_it_rests_on_comes_back(registry: Registry) -> None:
    """The agent's program chooses the names of subagents, so they may be any text."""
    row = add(registry)
    assert row.rests_on == ()
    registry.agents.save_sweep([SweepRow("a1", 7.0, 9.0, 3, True, rests_on=("", "\0", "x"))])
    kept = registry.agents.get("a1")
    assert kept is not None and kept.rests_on == ("", "\0", "x")
    registry.agents.save_sweep([SweepRow("a1", 7.0, 9.0, 3, True)])
    kept = registry.agents.get("a1")
    assert kept is not None and kept.rests_on == ()


def test_a_tree_is_written_of_the_living_alone(registry: Registry) -> None:
    """The reaper may be using the tree of an ended agent at this moment."""
    add(registry, "a")
    add(registry, "b")
    assert registry.agents.transition("b", {Status.RUNNING}, Status.KILLED, now=NOW, who="test", why="it is over")
    registry.agents.save_trees([TreeRow("a", "/home", (HERE,)), TreeRow("b", "/home", (HERE,))])
    registry.agents.save_trees([])
    rows = {row.registration.agent_id: row for row in registry.agents.by_ids({"a", "b"})}
    assert (rows["a"].home_cgroup, rows["a"].members) == ("/home", (HERE,))
    assert (rows["b"].home_cgroup, rows["b"].members) == (None, ())


def test_lists_of_any_length_are_few_statements(registry: Registry) -> None:
    """Each statement stays prepared on every connection: one for each length of a list grew memory for hours."""
    ids = [f"a{number}" for number in range(50)]
    for agent_id in ids:
        add(registry, agent_id)
    texts: set[str] = set()

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        texts.add(statement)

    event.listen(registry.engines.reading, "before_cursor_execute", note)
    for size in range(1, 51):
        assert len(registry.agents.by_ids(ids[:size])) == size
    assert len(texts - {"BEGIN"}) == 7  # 1, 2, 4, 8, 16, 32, 64
