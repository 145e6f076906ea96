"""A service that many sessions share is in nobody's tree; what runs below it is its session's agent's, or nobody's."""

import dataclasses
import os
import sys

import pytest

from tests.processes.conftest import HOST, Family, known
from tests.processes.test_tree_pure import HOME, agent, identity, pids, row, table
from watchdog.core.services import CODEX, PARTS
from watchdog.processes.survey import survey
from watchdog.processes.table import ProcessTable, Row, scan
from watchdog.processes.tree import Root, trees
from watchdog.processes.vendor_markers import MarkedAgent, below_services, made_inside

S1, S2, S9 = "s-1", "s-2", "s-9"


def service(each: Row) -> Row:
    return each._replace(service=CODEX, vendors=frozenset())


def told(each: Row, *sessions: str) -> Row:
    """A tool: it carries the session's id."""
    marks = frozenset(f"{name}={one}" for one in sessions for name in ("CODEX_THREAD_ID", "CODEX_SESSION_ID"))
    return each._replace(vendors=marks, cgroup=each.cgroup or HOME)


# The first agent's `run`, client and the service that this started; tools of two sessions, and of one that is nobody's.
RUN, MAIN, TUI = row(50, 3), row(60, 50, marker="a"), row(61, 60, marker="a")
SERVER = service(row(70, 61, marker="a", session=70, group=70, cgroup=HOME))
LOOP = service(row(71, 61, marker="a", session=71, cgroup=HOME))
TOOL_1, CHILD_1 = told(row(80, 70, marker="a", session=80), S1), told(row(81, 80, marker="a"), S1)
TOOL_2, CHILD_2 = told(row(82, 70, marker="a", session=82), S2), row(83, 82, marker="a")
TOOL_9 = told(row(84, 70, marker="a"), S9)
SECOND = row(65, 3, marker="b")
ALL = (RUN, MAIN, TUI, SERVER, LOOP, TOOL_1, CHILD_1, TOOL_2, CHILD_2, TOOL_9, SECOND)
A = agent("a", 60, wrapped=True, sessions=frozenset({(S1, identity(70))}))
B = agent("b", 65, sessions=frozenset({(S2, identity(70))}))


def found(seen: ProcessTable, *roots: Root) -> dict[str, set[int]]:
    """As a scan finds them: first whose the vendors' marks are, then the trees."""
    made = made_inside(
        seen, [MarkedAgent(a.agent_id, a.owner_uid, a.main, a.marks) for a in roots if a.main is not None]
    )
    return pids(seen, *(dataclasses.replace(a, marks=made.get(a.agent_id, frozenset())) for a in roots))


def test_each_session_has_its_own_tools_and_nobody_the_service() -> None:
    """Neither by descent nor by the marker of whoever started it first; nor its updater, which it starts beside it."""
    assert found(table(*ALL), A, B) == {"a": {60, 61, 80, 81}, "b": {65, 82, 83}}


def test_a_service_in_the_first_agents_own_cgroup_is_not_its_own() -> None:
    """`run` made that cgroup, and the service never left it."""
    own = "/user.slice/agent-a.scope"
    moved = [each._replace(cgroup=own) for each in ALL if each not in (RUN, SECOND)]
    roots = dataclasses.replace(A, cgroup=own), B
    assert found(table(RUN, SECOND, *moved), *roots) == {"a": {60, 61, 80, 81}, "b": {65, 82, 83}}


def test_the_end_of_the_first_agent_leaves_the_service_and_the_others_alone() -> None:
    """Its client has gone; the service passed to its `run`, which adopts orphans, and looks like one."""
    adopted = SERVER._replace(stat=SERVER.stat._replace(parent_pid=50))
    seen = table(RUN, adopted, TOOL_1, CHILD_1, TOOL_2, CHILD_2, TOOL_9, SECOND)
    gone = dataclasses.replace(A, wrapper=identity(50), remembered=tuple(identity(n) for n in (61, 70, 71, 82)))
    assert found(seen, gone, B) == {"a": {80, 81}, "b": {65, 82, 83}}


def test_an_orphaned_tool_stays_its_sessions() -> None:
    """It passes to the first agent's `run`, carries that one's marker, and is the second one's all the same."""
    stray = told(row(90 + 5, 50, marker="a"), S2)
    naked = row(90 + 6, 50)  # without any mark, but known from before
    nobodys = told(row(90 + 7, 1, marker="a"), S9)
    wrapped = dataclasses.replace(A, wrapper=identity(50))
    second = dataclasses.replace(B, remembered=(identity(96),))
    seen = table(*ALL, stray, naked, nobodys)
    assert found(seen, wrapped, second) == {"a": {60, 61, 80, 81}, "b": {65, 82, 83, 95, 96}}


def test_what_was_below_a_service_is_known_when_that_is_gone() -> None:
    """The service was ended or updated, and its tools live on: they carry the first agent's marker still."""
    before = below_services(table(*ALL), {60, 65})
    left = [told(row(82, 1, marker="a"), S2), told(row(84, 1, marker="a"), S9), told(row(80, 1, marker="a"), S1)]
    roots = [dataclasses.replace(A, home_cgroup=HOME), dataclasses.replace(B, remembered=(identity(82),))]
    members = trees(table(MAIN, SECOND, *left), roots, before)
    assert {name: {m.identity.pid for m in some} for name, some in members.items()} == {"a": {60, 80}, "b": {65, 82}}


def test_an_orphan_that_no_scan_saw_before_is_its_sessions() -> None:
    """The daemon was restarted meanwhile: it has the marker of whoever started the service, and an id that is known."""
    for parent in (1, 50):  # 50: the first agent's `run`, which adopts orphans
        stray, nobodys = told(row(96, parent, marker="a"), S2), told(row(97, parent, marker="a"), S9)
        seen = table(*ALL[:6], CHILD_1, SECOND, stray)
        wrapped = dataclasses.replace(A, wrapper=identity(50))
        assert found(seen, wrapped, B) == {"a": {60, 61, 80, 81}, "b": {65, 96}}
        assert 97 not in found(table(*ALL, nobodys), wrapped, B)["b"]
    gone = table(SECOND, told(row(96, 1, marker="a"), S2))  # the service and the first agent, too
    assert found(gone, dataclasses.replace(B, home_cgroup=HOME)) == {"b": {65, 96}}


def test_the_same_session_in_a_client_of_its_own_is_not_taken() -> None:
    """`codex --no-daemon resume ID` in a terminal that nobody watches: it has the same id, and no marker either."""
    unmarked = SERVER._replace(marker=None)
    tool = told(row(80, 70, session=80), S2)
    alone = row(110, 3, name="codex")
    seen = table(SECOND, unmarked, tool, alone, told(row(111, 110), S2), row(112, 111))
    assert found(seen, B) == {"b": {65, 80}}


def test_a_subreaper_above_the_service_adopts_its_tools() -> None:
    """A container's init, or whatever took that on (prctl(2)): it is no service manager, and no `run`."""
    init = row(40, 1, name="tini")
    server = SERVER._replace(stat=SERVER.stat._replace(parent_pid=40))
    seen = table(init, RUN, MAIN, SECOND, server, TOOL_2, told(row(120, 40, marker="a"), S2))
    assert found(seen, A, B) == {"a": {60}, "b": {65, 82, 120}}


def test_an_agent_below_a_service_is_whole() -> None:
    """A tool that starts a `run`: that agent's processes are its own, its orphans too, whatever they inherited."""
    inner = told(row(100, 82, marker="c"), S2)
    child, orphan = told(row(101, 100, marker="c"), S2), told(row(102, 1, marker="c"), S2)
    nested = agent("c", 100)
    expected = {"a": {60, 61, 80, 81}, "b": {65, 82, 83}, "c": {100, 101, 102}}
    assert found(table(*ALL, inner, child, orphan), A, B, nested) == expected


def test_a_service_that_is_an_agents_main_process_is_that_agent() -> None:
    """Somebody runs one on purpose: it ends with all that is below it."""
    seen = table(RUN, MAIN, TUI, SERVER, TOOL_1, CHILD_1)
    assert found(seen, agent("served", 70))["served"] == {70, 80, 81}


def test_another_users_process_with_the_same_id_is_not_taken() -> None:
    """A mark counts in processes of the owner alone."""
    theirs = TOOL_2._replace(uid=1001)
    assert 82 not in found(table(*ALL[:7], theirs, TOOL_9, SECOND), A, B)["b"]


def test_the_same_session_below_another_service_is_another() -> None:
    """A copied home directory, or agents that another daemon watches: nobody here has what works there."""
    other = service(row(170, 3, session=170, group=170, cgroup=HOME))
    theirs, orphan = told(row(180, 170), S1), told(row(181, 1), S2)
    child = row(182, 180)
    seen = table(*ALL, other, theirs, child, orphan, told(row(183, 170), S2))
    assert found(seen, A, B) == {"a": {60, 61, 80, 81}, "b": {65, 82, 83}}
    both = dataclasses.replace(A, sessions=A.sessions | {(S1, identity(170))})
    assert found(seen, both, B) == {"a": {60, 61, 80, 81, 180, 182}, "b": {65, 82, 83}}
    later = dataclasses.replace(A, sessions=frozenset({(S1, identity(170, start=169))}))  # of that number, before
    assert found(seen, later, B) == {"a": {60, 61}, "b": {65, 82, 83}}
    elsewhere = dataclasses.replace(A, sessions=frozenset({(S1, dataclasses.replace(identity(170), boot_id="b0"))}))
    assert found(seen, elsewhere, B) == {"a": {60, 61}, "b": {65, 82, 83}}


def test_an_orphan_that_two_services_can_have_left_is_nobodys() -> None:
    """Both were started by one agent, and either has a session of that id; of one alone it is that one's."""
    other = service(row(170, 61, marker="a", session=170, group=170, cgroup=HOME))
    seen = table(*ALL, other, told(row(182, 170, marker="a"), S2), told(row(190, 1, marker="a"), S2))
    theirs = agent("c", 66, sessions=frozenset({(S2, identity(170))}))
    seen = table(*(each for each in seen.rows.values() if each.stat.pid > 2 and each.stat.pid != 90), row(66, 3))
    assert found(seen, A, B, theirs) == {"a": {60, 61, 80, 81}, "b": {65, 82, 83}, "c": {66, 182}}
    assert found(seen, A, B) == {"a": {60, 61, 80, 81}, "b": {65, 82, 83, 190}}


WAIT = "os.write(1, b'{} %d\\n' % os.getpid()); time.sleep(300)"
SERVER_CODE = "import os, time; os.setsid(); " + WAIT.format("up")
CHILD_CODE = "import os, time; " + WAIT.format("plain")


@pytest.mark.parametrize("words", [("app-server", "--listen", "unix://"), ("app-server", "daemon", "pid-update-loop")])
def test_a_real_scan_knows_a_service(family: Family, words: tuple[str, ...]) -> None:
    """A process that is called so, in a session of its own; the same one without a session of its own is a child."""
    script = f"""
(exec -a codex {sys.executable} -c "{SERVER_CODE}" {" ".join(words)}) &
(exec -a codex {sys.executable} -c "{CHILD_CODE}" {" ".join(words)}) &
exec sleep 300
"""
    main = family.start("bash", "-c", script, env={"AGENT_WATCHDOG_ID": "shared"}, session=True)
    numbers = family.pids(main, {"up", "plain"})
    seen = scan(HOST, frozenset({os.getuid()}))
    assert seen.rows[numbers["up"]].service == (PARTS if "daemon" in words else CODEX)
    again = scan(HOST, frozenset({os.getuid()}), previous=seen)
    assert again.rows[numbers["up"]].service == seen.rows[numbers["up"]].service
    members = trees(seen, [Root("shared", os.getuid(), known(main.pid))])["shared"]
    inside = {member.identity.pid for member in members}
    assert numbers["up"] not in inside
    assert numbers["plain"] in inside


def test_a_service_that_sessions_have_is_one_without_a_session_of_its_own(family: Family) -> None:
    """Started by hand in an agent's shell: its words alone would make it the agent's child, and end it with that."""
    words = "app-server --listen unix://"
    script = f'(exec -a codex {sys.executable} -c "{CHILD_CODE}" {words}) & exec sleep 300'
    main = family.start("bash", "-c", script, env={"AGENT_WATCHDOG_ID": "shared"}, session=True)
    number = family.pids(main, {"plain"})["plain"]
    root = Root("shared", os.getuid(), known(main.pid))
    for sessions, inside in ((frozenset(), True), (frozenset({(S1, known(number))}), False)):
        roots = [dataclasses.replace(root, sessions=sessions)]
        _, members, services = survey(HOST, roots, os.getpid())
        assert (number in {one.identity.pid for one in members["shared"]}) is inside
        assert (number in {one.pid for one in services}) is not inside
