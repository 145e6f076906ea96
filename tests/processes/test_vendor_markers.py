"""Vendors' markers: a value that was made in an agent's tree is evidence, one that it inherited is none."""

import dataclasses
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.processes.conftest import HOST, Family, known, until
from tests.processes.test_tree_pure import ALICE, BOB, HOME, agent, identity, pids, roots, row, table, tables
from watchdog.processes import procfs
from watchdog.processes.table import ProcessTable, Row, scan
from watchdog.processes.tree import Root, trees
from watchdog.processes.vendor_markers import MOST, MarkedAgent, made_inside

S, T = "CLAUDE_CODE_SESSION_ID=s", "CODEX_THREAD_ID=t"


def carrying(each: Row, *marks: str) -> Row:
    """Its environment was read, and held these; it sits where the agent does, unless it has a cgroup already."""
    return each._replace(vendors=frozenset(marks), cgroup=each.cgroup or HOME)


def found(seen: ProcessTable, *agents: Root) -> dict[str, set[int]]:
    """Members of each agent, as a scan finds them: first whose the values are, then the trees."""
    made = made_inside(
        seen, [MarkedAgent(a.agent_id, a.owner_uid, a.main, a.marks) for a in agents if a.main is not None]
    )
    return pids(seen, *(dataclasses.replace(a, marks=made.get(a.agent_id, frozenset())) for a in agents))


SHELL, MAIN, CHILD, STRAY = row(50, 3), row(100, 50), row(110, 100), row(120, 1)


def test_what_the_main_process_gave_to_its_children_is_its_own() -> None:
    """Claude Code: a session's id is in what it starts, not in itself."""
    seen = table(carrying(SHELL), carrying(MAIN), carrying(CHILD, S), carrying(STRAY, S), carrying(row(130, 1), T))
    assert found(seen, agent("a", 100)) == {"a": {100, 110, 120}}


def test_what_its_launcher_made_for_it_is_its_own() -> None:
    """hcom: the agent itself has the id, who started it has not."""
    seen = table(carrying(SHELL), carrying(MAIN, S), carrying(STRAY, S))
    assert found(seen, agent("a", 100)) == {"a": {100, 120}}


def test_what_it_inherited_is_not() -> None:
    """From an outer agent or shell, near or far above, also where the main process has hidden its environment."""
    strays = carrying(STRAY, S), carrying(row(90 + 50, 50), S)
    for shell, main in (((S,), (S,)), ((S,), ())):
        seen = table(carrying(SHELL, *shell), carrying(MAIN, *main), carrying(CHILD, S), *strays)
        assert found(seen, agent("a", 100)) == {"a": {100, 110}}


def test_a_parent_that_cannot_be_read_proves_nothing() -> None:
    """Another uid's, or none that is there."""
    for shell in (SHELL, row(51, 3)):
        seen = table(shell, carrying(MAIN, S), carrying(STRAY, S))
        assert found(seen, agent("a", 100)) == {"a": {100}}


def test_what_a_shell_exported_is_in_its_other_jobs_too() -> None:
    """Its own environment in /proc is that of its start: the export is not seen there."""
    seen = table(carrying(SHELL), carrying(MAIN, S), carrying(row(105, 50), S), carrying(STRAY, S))
    assert found(seen, agent("a", 100)) == {"a": {100}}


def test_a_value_older_than_the_agent_was_not_made_in_it() -> None:
    """The session went on in a new process; what its former one left behind is nobody's."""
    seen = table(carrying(SHELL), carrying(row(60, 1), S), carrying(MAIN), carrying(CHILD, S), carrying(STRAY, S))
    assert found(seen, agent("a", 100)) == {"a": {100, 110}}


def test_the_same_session_in_another_terminal_stays_alone() -> None:
    """Its commands carry the value, but their parent has it from nobody and is neither init nor above the agent."""
    other = row(200, 51)
    seen = table(
        carrying(SHELL),
        carrying(row(51, 3)),
        carrying(MAIN),
        carrying(CHILD, S),
        carrying(other),
        carrying(row(210, 200), S),
        carrying(row(211, 210), S),
        carrying(STRAY, S),
    )
    assert found(seen, agent("a", 100)) == {"a": {100, 110, 120}}
    both = found(seen, agent("a", 100), agent("b", 200))
    assert both == {"a": {100, 110}, "b": {200, 210, 211}}, "a value of two strangers proves nothing"


def test_the_innermost_agent_has_it() -> None:
    """An agent that another one started, near or by a double fork; its values are in the outer one's tree, too."""
    for parent in (110, 1):
        seen = table(
            carrying(SHELL),
            carrying(MAIN),
            carrying(CHILD, S),
            carrying(row(111, parent), S),
            carrying(row(112, 111), S, T),
            carrying(row(113, 1), S, T),
            carrying(row(114, 1), S),
        )
        inner = agent("b", 111)
        assert found(seen, agent("a", 100), inner) == {"a": {100, 110, 114}, "b": {111, 112, 113}}
        assert found(seen, inner, agent("a", 100)) == {"a": {100, 110, 114}, "b": {111, 112, 113}}


def test_another_uid_can_neither_claim_nor_spoil_it() -> None:
    """Whoever has seen a value can write it into any environment of his own."""
    liar = agent("b", 200, owner_uid=BOB)
    seen = table(
        carrying(SHELL),
        carrying(MAIN),
        carrying(CHILD, S),
        carrying(STRAY, S),
        carrying(row(200, 1, uid=BOB)),
        carrying(row(210, 200, uid=BOB), S),
        carrying(row(220, 1, uid=BOB), S),
    )
    assert found(seen, agent("a", 100), liar) == {"a": {100, 110, 120}, "b": {200, 210}}


def test_it_is_remembered_when_the_main_process_has_gone() -> None:
    """What it left carries the value still; one who had it before the agent came would disprove it."""
    gone = agent("a", 100, marks=frozenset({S}), home_cgroup=HOME)
    seen = table(
        carrying(SHELL), carrying(STRAY, S), carrying(row(121, 50), S), carrying(row(122, 2, cgroup="/a.service"), S)
    )
    assert found(seen, gone) == {"a": {120}}
    assert found(seen, agent("a", 100, home_cgroup=HOME)) == {"a": set()}
    assert found(table(carrying(STRAY, S), carrying(row(60, 1), S)), gone) == {"a": set()}


def test_no_more_values_are_kept_than_some() -> None:
    """The newest."""
    marks = [f"CODEX_THREAD_ID={number:03}" for number in range(MOST + 4)]
    children = [carrying(row(110 + number, 100), mark) for number, mark in enumerate(marks)]
    seen = table(carrying(SHELL), carrying(MAIN), *children)
    assert made_inside(seen, [MarkedAgent("a", ALICE, identity(100))]) == {"a": frozenset(marks[-MOST:])}


SCRIPT = """
CLAUDE_CODE_SESSION_ID=$RUN SECRET=hunter2 sh -c 'setsid sleep 300 & echo stray $!; (setsid sleep 300 & echo far $!)'
echo done $$
exec sleep 300
"""


def test_strays_of_an_agent_that_nobody_marked_are_found(family: Family) -> None:
    """Registered by its pid alone, after it had started; of the environment nothing but the value is kept."""
    run = f"run-{os.getpid()}"
    main = family.start("bash", "-c", SCRIPT, env={"RUN": run}, session=True)
    strays = family.pids(main, {"stray", "far", "done"})
    del strays["done"]
    until(lambda: all(procfs.read(f"/proc/{pid}/comm") == b"sleep\n" for pid in (main.pid, *strays.values())), "asleep")
    blind = Root("a", os.getuid(), known(main.pid))
    seen = scan(HOST, frozenset({os.getuid()}))
    assert {member.identity.pid for member in trees(seen, [blind])["a"]} == {main.pid}
    # The double forks' middle process has ended, and the only one below the agent with it: a look before that had it.
    marks = frozenset({f"CLAUDE_CODE_SESSION_ID={run}"})
    vias = {m.identity.pid: m.via for m in trees(seen, [dataclasses.replace(blind, marks=marks)])["a"]}
    assert vias == {main.pid: "main", **dict.fromkeys(strays.values(), "vendor")}
    assert "hunter2" not in repr(seen)


MARKS = st.sets(st.sampled_from([S, T]), max_size=2)


@settings(deadline=None)  # the machine may be busy with other things
@given(tables(), roots(), st.data())
def test_whatever_carries_what_no_rule_is_broken(seen: ProcessTable, agents: list[Root], data: st.DataObject) -> None:
    """In no two trees, nobody's main process in another's, never the daemon or pid 1, nobody older than the agent."""
    rows = {pid: data.draw(st.just(each) | st.builds(carrying, st.just(each))) for pid, each in seen.rows.items()}
    rows = {pid: carrying(each, *data.draw(MARKS)) if each.vendors is not None else each for pid, each in rows.items()}
    seen = dataclasses.replace(seen, rows=rows)
    made = made_inside(
        seen, [MarkedAgent(a.agent_id, a.owner_uid, a.main, a.marks) for a in agents if a.main is not None]
    )
    agents = [dataclasses.replace(a, marks=made.get(a.agent_id, frozenset())) for a in agents]
    result = trees(seen, agents)
    members = [member.identity.pid for tree in result.values() for member in tree]
    assert len(members) == len(set(members))
    assert not {0, 1, seen.scanner_pid} & set(members)
    by_id = {a.agent_id: a for a in agents}
    for agent_id, tree in result.items():
        for member in tree:
            if member.via == "vendor":
                main = by_id[agent_id].main
                assert main is not None and member.identity.start_ticks >= main.start_ticks
                assert (rows[member.identity.pid].vendors or frozenset()) & by_id[agent_id].marks
