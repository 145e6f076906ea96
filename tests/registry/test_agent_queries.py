"""Registration, compare-and-set, the batch of a sweep."""

import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.registry.samples import FULL, HERE, NOW, add
from watchdog.core.agent import State, Status, Verdict
from watchdog.core.kill import Step
from watchdog.core.process import Identity
from watchdog.core.sites import Site
from watchdog.errors import Conflict
from watchdog.registry.rows import SweepRow
from watchdog.registry.store import Store


def test_an_agent_comes_back_as_it_was_registered(store: Store) -> None:
    """Nothing is lost or changed between a registration and its row."""
    row = store.add_agent(FULL, Status.RUNNING, NOW, "uid 1000", notify_socket="/run/n")
    assert row.registration == FULL
    assert (row.status, row.notify_socket, row.started_at, row.version) == (Status.RUNNING, "/run/n", NOW, 0)
    assert row.promised  # who names a limit promises beats
    assert store.live_agents("h1") == ([row], [])
    assert store.live_agents("h2") == ([], [])


def test_an_agent_id_is_never_used_twice(store: Store) -> None:
    """Also not after its agent has ended."""
    add(store)
    assert store.transition("a1", {Status.RUNNING}, Status.COMPLETED, now=NOW, who="t", why="exit 0")
    with pytest.raises(Conflict, match="a1 is known already"):
        add(store)


def test_of_many_that_change_a_status_at_once_one_wins(store: Store) -> None:
    """The claim of an agent is a compare-and-set: eight threads, one True, one event."""
    add(store)
    barrier, won = threading.Barrier(8), []

    def claim(number: int) -> None:
        barrier.wait(60)
        if store.transition("a1", {Status.RUNNING}, Status.ENDING, now=NOW, who=f"t{number}", why="race"):
            won.append(number)

    slow = Store(str(store.engines.url), busy_timeout=timedelta(seconds=10))
    store, quick = slow, store
    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    slow.close()
    assert len(won) == 1
    assert [event.who for event in quick.events(0) if event.event == "agent.ending"] == [f"t{won[0]}"]


def test_a_change_of_status_names_the_version_it_saw(store: Store) -> None:
    """Somebody else's change in between makes ours fail, and a failed change writes no event."""
    row = add(store)
    version = row.version
    assert store.transition("a1", {Status.RUNNING}, Status.ENDING, now=NOW, who="a", why="1")
    assert not store.transition(
        "a1", {Status.ENDING}, Status.KILLED, expected_version=version, now=NOW, who="b", why="2"
    )
    assert not store.transition("a1", {Status.RUNNING}, Status.KILLED, now=NOW, who="c", why="3")
    assert not store.transition("nobody", {Status.RUNNING}, Status.KILLED, now=NOW, who="c", why="3")
    assert [event.why for event in store.events(0)] == ["registered by register", "1"]


def test_an_ending_sets_its_time_and_what_is_known_of_it(store: Store) -> None:
    """Exit status and message go with the change of status, in the same transaction."""
    add(store)
    assert store.transition(
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
    row = store.agent("a1")
    assert row is not None
    assert (row.completed_at, row.exit_code, row.error_message) == (NOW + timedelta(seconds=5), 3, "exit 3")
    event = store.events(0)[-1]
    assert (event.event, event.from_status, event.to_status) == ("agent.ended", "running", "failed")
    assert (event.evidence, event.owner_uid) == ({"exit_code": 3}, 1000)


def test_a_change_of_status_cannot_write_any_column(store: Store) -> None:
    """A typing error in a column's name is found at once, and identity is not changed by the way."""
    add(store)
    with pytest.raises(TypeError, match="pid"):
        store.transition("a1", {Status.RUNNING}, Status.ENDING, now=NOW, who="t", why="w", pid=5)


def test_a_pid_is_taken_once(store: Store) -> None:
    """The same process again is no fault; another one is refused."""
    add(store, status=Status.STARTING)
    assert store.set_identity("a1", HERE, Status.RUNNING, NOW, "uid 1000")
    assert store.set_identity("a1", HERE, Status.RUNNING, NOW, "uid 1000")
    assert not store.set_identity("a1", replace(HERE, start_ticks=100), Status.RUNNING, NOW, "uid 1000")
    assert not store.set_identity("nobody", HERE, Status.RUNNING, NOW, "uid 1000")
    row = store.agent("a1")
    assert row is not None
    assert (row.identity, row.status, row.started_at) == (HERE, Status.RUNNING, NOW)
    assert [event.event for event in store.events(0)] == ["agent.registered", "agent.pid_known"]


@pytest.mark.parametrize("pid", [0, 1, 4_194_305])
def test_a_pid_that_no_agent_can_have_is_refused_by_the_database(store: Store, pid: int) -> None:
    """pid 0 means the caller's own group to kill(2), 1 is init; no row may ever hold one."""
    with pytest.raises(Conflict):
        add(store, identity=Identity("h1", "b1", pid, 5))


def test_a_sweep_is_written_only_forward_and_only_for_the_living(store: Store) -> None:
    """A late or repeated batch cannot give back silence or beats, nor change an agent that has ended."""
    add(store, "a1")
    add(store, "a2")
    store.transition("a2", {Status.RUNNING}, Status.COMPLETED, now=NOW, who="t", why="exit 0")
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
    store.save_sweep([late, replace(late, agent_id="a2"), replace(late, agent_id="nobody")])
    store.save_sweep([replace(late, beats=4, note="older")])
    store.save_sweep([replace(late, watched_seconds=90.0, note="older")])
    store.save_sweep([])
    row, ended = store.agent("a1"), store.agent("a2")
    assert row is not None
    assert ended is not None
    names = set(SweepRow.__slots__) - {"stall_after_seconds"}  # that one is read back as part of the registration
    assert {name: getattr(row, name) for name in names} == {name: getattr(late, name) for name in names}
    assert (row.version, ended.beats) == (0, 0)


def test_a_note_that_no_database_takes_spoils_no_batch(store: Store) -> None:
    """NUL and lone surrogates come through JSON; the other agents' silence is written all the same."""
    add(store, "a1")
    add(store, "a2")
    bad = SweepRow("a1", 1.0, 1.0, 1, True, note="a\0b\ud800", last_progress=float("inf"))
    store.save_sweep([bad, SweepRow("a2", 7.0, 7.0, 1, True)])
    rows = {row.agent_id: row for row in store.live_agents("h1")[0]}
    assert rows["a1"].note == "a\N{REPLACEMENT CHARACTER}b?"
    assert rows["a2"].silence_seconds == 7.0


def test_agents_are_found_by_id_name_and_prefix(store: Store) -> None:
    """In this order; a short word is no prefix, and % and _ are letters like others."""
    add(store, "abcd1", name="one")
    add(store, "abcd2", name="abcd1")
    assert [row.agent_id for row in store.find("abcd1")] == ["abcd1"]
    assert [row.agent_id for row in store.find("one")] == ["abcd1"]
    assert [row.agent_id for row in store.find("abcd")] == ["abcd1", "abcd2"]
    assert store.find("abc") == store.find("%%%%") == store.find("____") == []
    assert store.agents_by_name("one", owner_uid=1) == []
    assert [row.agent_id for row in store.agents_by_name("one", owner_uid=1000)] == ["abcd1"]


def test_lists_are_by_tag_owner_and_life(store: Store) -> None:
    """A tag is compared whole; the ended come only when asked for."""
    add(store, "a1", tags=("x", 'quo"te'))
    add(store, "a2", tags=("xy",), owner_uid=5, task_id="T")
    store.transition("a1", {Status.RUNNING}, Status.COMPLETED, now=NOW, who="t", why="exit 0")
    assert [row.agent_id for row in store.agents()] == ["a2"]
    assert [row.agent_id for row in store.agents(ended=True)] == ["a1", "a2"]
    assert [row.agent_id for row in store.agents(ended=True, tag="x")] == ["a1"]
    assert [row.agent_id for row in store.agents(ended=True, tag='quo"te')] == ["a1"]
    assert [row.agent_id for row in store.agents(ended=True, owner_uid=5)] == ["a2"]
    assert [row.agent_id for row in store.agents_by_task("T")] == ["a2"]


def test_an_owner_changes_once_and_from_root_alone(store: Store) -> None:
    """An agent that was registered as root and dropped to another uid is owned by that one for good."""
    add(store, owner_uid=0)
    assert not store.agents_by_name("a1")[0].registration.dropped
    assert store.drop_owner("a1", 1000, NOW)
    assert store.drop_owner("a1", 1000, NOW), "once more is no fault"
    assert not store.drop_owner("a1", 2000, NOW)
    assert not store.drop_owner("a1", 0, NOW)
    [row] = store.agents_by_name("a1", owner_uid=1000)
    assert row.registration.dropped
    assert [event.event for event in store.events(0, agent_id="a1")].count("agent.owner_changed") == 1
    assert not store.drop_owner("nobody", 1000, NOW)


def test_a_pid_that_is_told_later_changes_only_roots_owner(store: Store) -> None:
    """Root registered an agent and started it as a user; a user's agent stays that user's."""
    for agent_id, owner, process, came in (("a1", 0, 1000, 1000), ("a2", 1000, 2000, 1000), ("a3", 1000, 0, 1000)):
        add(store, agent_id, Status.STARTING, owner_uid=owner)
        assert store.set_identity(agent_id, HERE, Status.RUNNING, NOW, "test", process)
        row = store.agent(agent_id)
        assert row is not None
        assert (row.registration.owner_uid, row.registration.dropped) == (came, False)


def test_the_cgroup_of_an_agent_is_kept_as_long_as_it_lives(store: Store) -> None:
    add(store)
    assert store.set_cgroup("a1", "/user.slice/user-1000.slice/agent-a1.scope")
    row = store.agent("a1")
    assert row is not None and row.registration.cgroup == "/user.slice/user-1000.slice/agent-a1.scope"
    store.transition("a1", {Status.RUNNING}, Status.COMPLETED, now=NOW, who="t", why="exit 0")
    assert not store.set_cgroup("a1", "/other")


def test_what_lay_at_its_places_is_remembered(store: Store) -> None:
    """None at first, as in a row of version 0.1; only of the living; a broken one is refused by its name."""
    row = add(store, "a1")
    assert (row.registration.worktree_site, row.registration.temp_site) == (None, None)
    site = Site((1, 2), (3, None), "refs/heads/wt", 4.5)
    assert store.set_sites(replace(row.registration, worktree_site=site))
    kept = store.agent("a1")
    assert kept is not None and (kept.registration.worktree_site, kept.registration.temp_site) == (site, None)
    with store.engines.begin(store.engines.durable) as connection:
        connection.exec_driver_sql("""UPDATE agent_lifecycle SET sites = '{"worktree": {"directory": 1}}'""")
    with pytest.raises(Conflict, match="sites: worktree"):
        store.agent("a1")


def test_how_long_a_state_lasts_and_that_its_work_is_done_come_back(store: Store) -> None:
    """Both are the next daemon's to go on with; a new row has neither."""
    add(store)
    store.save_sweep([SweepRow("a1", 7.0, 9.0, 3, True, state=State.DONE, state_seconds=5.0, finished=True)])
    row = store.agent("a1")
    assert row is not None
    assert (row.state, row.state_seconds, row.finished) == (State.DONE, 5.0, True)


def test_what_it_rests_on_comes_back(store: Store) -> None:
    """Names of its subagents are its program's words, and may be any."""
    row = add(store)
    assert row.rests_on == ()
    store.save_sweep([SweepRow("a1", 7.0, 9.0, 3, True, rests_on=("", "\0", "x"))])
    kept = store.agent("a1")
    assert kept is not None and kept.rests_on == ("", "\0", "x")
    store.save_sweep([SweepRow("a1", 7.0, 9.0, 3, True)])
    kept = store.agent("a1")
    assert kept is not None and kept.rests_on == ()
