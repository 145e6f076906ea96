"""`trees` as a function of a table: cases that need systemd or cgroups, and properties under random tables."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchdog.core.process import Identity
from watchdog.processes.procfs import Stat
from watchdog.processes.table import ProcessTable, Row
from watchdog.processes.tree import Root, trees

HOST, BOOT, ALICE, BOB = "h", "b", 1000, 1001
DAEMON = 90


def row(
    pid: int,
    parent: int,
    *,
    name: str = "x",
    session: int = 0,
    group: int = 0,
    uid: int = ALICE,
    marker: str | None = None,
    cgroup: str | None = None,
    start: int | None = None,
    state: str = "S",
    threads: int = 1,
    kernel: bool = False,
) -> Row:
    stat = Stat(
        pid, name, state, parent, group, session, kernel, 0, threads, pid if start is None else start, 0
    )  # started in order of pid unless told
    return Row(stat, uid, marker, cgroup)


def table(*rows: Row) -> ProcessTable:
    """With process 1 (systemd), the daemon below it, and alice's service manager (pid 2)."""
    fixed = (row(1, 0, name="systemd", uid=0), row(2, 1, name="systemd"), row(DAEMON, 1, name="daemon", uid=0))
    return ProcessTable(HOST, BOOT, DAEMON, {each.stat.pid: each for each in (*fixed, *rows)})


def identity(pid: int, start: int | None = None) -> Identity:
    return Identity(HOST, BOOT, pid, pid if start is None else start)


def agent(agent_id: str, pid: int | None, **more: object) -> Root:
    main = None if pid is None else identity(pid)
    return dataclasses.replace(Root(agent_id, ALICE, main), **more)  # type: ignore[arg-type] # fields by name


def pids(found: ProcessTable, *roots: Root) -> dict[str, set[int]]:
    return {name: {m.identity.pid for m in members} for name, members in trees(found, roots).items()}


HOME = "/user.slice/user-1000.slice/session-3.scope"
UNIT = "/user.slice/user-1000.slice/user@1000.service/app.slice/mako.service"


def test_a_unit_of_its_own_is_not_of_the_tree_but_a_stray_below_the_manager_is() -> None:
    """import-environment spreads markers into all services of a user; a double fork ends below the same manager."""
    found = table(
        row(100, 3, marker=None, cgroup=HOME),
        row(110, 2, marker="a", cgroup=UNIT),  # a service that inherited the manager's environment
        row(111, 110, marker="a"),  # and its child
        row(120, 2, marker="a", cgroup=HOME),  # a stray of the agent
        row(121, 120),
        row(130, 2, marker="a", cgroup=None),  # its cgroup could not be read: not ours to end
    )
    assert pids(found, agent("a", 100)) == {"a": {100, 120, 121}}


def test_a_stray_that_a_subreaper_of_the_login_adopted_is_of_the_tree() -> None:
    """sshd sits in a unit of its own, and the login below it in a session's scope; so does the agent."""
    found = table(
        row(50, 1, name="sshd", uid=0, cgroup="/system.slice/ssh.service"),
        row(51, 50, name="subreaper"),
        row(100, 51, cgroup=HOME),
        row(120, 51, marker="a"),
        row(121, 51),
    )
    assert pids(found, agent("a", 100)) == {"a": {100, 120}}


def test_a_stray_is_known_after_the_agents_death_by_the_cgroup_that_it_had() -> None:
    """Without any memory of it nothing below a service manager is ended."""
    found = table(row(110, 2, marker="a", cgroup=UNIT), row(120, 2, marker="a", cgroup=HOME))
    assert pids(found, agent("a", 100, home_cgroup=HOME)) == {"a": {120}}
    assert pids(found, agent("a", 100, remembered=(identity(120),))) == {"a": {120}}
    assert pids(found, agent("a", 100)) == {"a": set()}


def test_the_cgroup_that_run_made_holds_what_nothing_else_shows() -> None:
    """A double fork with a cleared environment; a spared program and the cgroup's neighbour stay out."""
    own = "/user.slice/user-1000.slice/agent-a.scope"
    found = table(
        row(100, 3, cgroup=own),
        row(120, 1, cgroup=own),
        row(121, 1, cgroup=f"{own}/sub"),
        row(122, 1, cgroup=own, name="ssh-agent"),
        row(123, 1, cgroup=f"{own}-other"),
    )
    assert pids(found, agent("a", 100, cgroup=own, spare=frozenset({"ssh-agent"}))) == {"a": {100, 120, 121}}


def test_what_has_left_a_pane_of_a_spared_server_is_whoevers_pane_it_was() -> None:
    """`nohup make &` of a person, in a tmux server that an agent started: it has the marker, and says where it was."""
    own = "/user.slice/user-1000.slice/agent-a.scope"
    found = table(
        row(100, 3, cgroup=own),
        row(110, 3, name="tmux: server", marker="a", cgroup=own),
        row(120, 3, marker="a", cgroup=own)._replace(terminal=110),
        row(121, 120, marker="a")._replace(terminal=110),
        row(130, 3, marker="a")._replace(terminal=100),  # no server
        row(131, 3, marker="a")._replace(terminal=999),  # nobody
    )
    spare = frozenset({"tmux: server"})
    assert pids(found, agent("a", 100, spare=spare)) == {"a": {100, 130, 131}}
    assert pids(found, agent("a", 100, spare=spare, cgroup=own)) == {"a": {100, 130, 131}}
    assert pids(found, agent("a", 100)) == {"a": {100, 110, 120, 121, 130, 131}}


def test_what_an_agent_in_a_pane_left_behind_is_of_its_tree() -> None:
    """The server was there before, and somebody else's, or an agent's in whose pane it was started."""
    for marker in (None, "b"):
        found = table(
            row(110, 3, name="tmux: server", marker=marker),
            row(111, 110, name="bash")._replace(terminal=110),
            row(112, 111, marker="a")._replace(terminal=110),
            row(120, 3, marker="a")._replace(terminal=110),  # an orphan of it
        )
        spare = frozenset({"tmux: server"})
        assert pids(found, agent("a", 112, spare=spare), agent("b", None, spare=spare)) == {"a": {112, 120}, "b": set()}


@pytest.mark.parametrize("cgroup", ["/", "", None])
def test_the_root_cgroup_is_nobodys(cgroup: str | None) -> None:
    """A container's processes all sit in "/"."""
    found = table(row(100, 3, cgroup="/"), row(101, 1, cgroup="/"))
    assert pids(found, agent("a", 100, cgroup=cgroup)) == {"a": {100}}


def test_a_parent_younger_than_its_child_is_not_its_parent() -> None:
    """The number passed on while we scanned."""
    found = table(row(100, 3), row(101, 100, start=50))
    assert pids(found, agent("a", 100)) == {"a": {100}}


def test_a_reused_number_revives_no_agent() -> None:
    """Neither as main process, nor as remembered member, nor as leader of a session."""
    found = table(
        row(100, 3, start=500, session=100, group=100),
        row(101, 100, start=501, session=100, group=100),
        row(102, 1, start=7, session=9),
    )
    gone = agent("a", 100, remembered=(identity(101), identity(102)))
    assert pids(found, gone) == {"a": set()}


def test_a_session_whose_leader_is_gone_needs_a_known_member() -> None:
    """The number stays taken as long as a member lives, so a member that we knew vouches for the others."""
    found = table(
        row(101, 1, session=100, group=77, cgroup=HOME),
        row(102, 1, session=100, group=78, cgroup=HOME),
        row(103, 1, group=100, cgroup=HOME),
    )
    assert pids(found, agent("a", 100, remembered=(identity(101),))) == {"a": {101, 102}}
    assert pids(found, agent("a", 100)) == {"a": set()}


def test_zombies_are_left_out_unless_a_thread_lives() -> None:
    """What has ended need not be ended; a dead leader with a living thread must."""
    found = table(row(100, 3, state="Z"), row(101, 100, state="Z"), row(102, 100, state="Z", threads=2))
    assert pids(found, agent("a", 100)) == {"a": {102}}


def test_a_marker_of_another_uid_proves_nothing() -> None:
    """Unless the process descends from the agent (sudo)."""
    found = table(row(100, 3), row(101, 100, uid=BOB, marker="a"), row(102, 1, uid=BOB, marker="a"))
    assert pids(found, agent("a", 100)) == {"a": {100, 101}}


def test_another_hosts_or_boots_agent_has_no_processes_here() -> None:
    """Its numbers mean nothing in this table."""
    found = table(row(100, 3, session=100), row(101, 100, session=100))
    for main in (Identity("other", BOOT, 100, 100), Identity(HOST, "other", 100, 100)):
        assert pids(found, dataclasses.replace(agent("a", None), main=main)) == {"a": set()}


def test_a_wrongly_inferred_wrapper_costs_nobody_anything() -> None:
    """The wrapper is gone and the agent hangs below the service manager: strays there are still found."""
    found = table(row(100, 2, cgroup=HOME), row(101, 100), row(120, 2, marker="a", cgroup=HOME))
    assert pids(found, agent("a", 100, wrapped=True)) == {"a": {100, 101, 120}}


def test_a_process_that_took_the_wrappers_name_is_still_of_the_tree() -> None:
    """Only a copy of the wrapper is the wrapper's own, in its session and group: where no orphan with setsid is."""
    wrapper = row(90, 3, name="agent-watchdog", session=80, group=90)
    copy = row(101, 90, name="agent-watchdog", session=80, group=90)
    orphan = row(102, 90, name="agent-watchdog", session=102, group=102)
    found = table(wrapper, row(100, 90, session=80, group=90), copy, orphan)
    assert pids(found, agent("a", 100, wrapped=True, wrapper=identity(90))) == {"a": {100, 102}}


def test_agents_that_claim_to_be_each_others_parents_are_still_told_apart() -> None:
    """A circle in what agents say of themselves decides nothing."""
    found = table(row(100, 3), row(101, 100), row(200, 3), row(201, 200, marker="b"))
    roots = (agent("a", 100, parent_id="b"), agent("b", 200, parent_id="a"))
    assert pids(found, *roots) == {"a": {100, 101}, "b": {200, 201}}


NUMBERS = st.integers(1, 40)
NAMES = st.sampled_from(["x", "sh", "tmux: server", "systemd"])
AGENTS = ["a", "b", "c"]
CGROUPS = st.sampled_from([None, "/", "/one", "/one/sub", "/two"])


@st.composite
def tables(draw: st.DrawFn) -> ProcessTable:
    rows = {}
    for pid in sorted(draw(st.sets(NUMBERS, min_size=3, max_size=30)) | {1, 5}):
        rows[pid] = row(
            pid,
            draw(st.integers(0, 40)),
            name=draw(NAMES),
            session=draw(NUMBERS),
            group=draw(NUMBERS),
            uid=draw(st.sampled_from([0, ALICE, BOB])),
            marker=draw(st.sampled_from([None, *AGENTS, "other"])),
            cgroup=draw(CGROUPS),
            start=draw(st.integers(0, 5)),
            state=draw(st.sampled_from("SSSRTDZ")),
            threads=draw(st.integers(1, 2)),
            kernel=draw(st.integers(0, 9)) == 0,
        )
    return ProcessTable(HOST, BOOT, 5, rows)


@st.composite
def roots(draw: st.DrawFn) -> list[Root]:
    def some() -> Identity | None:
        return draw(st.none() | st.builds(identity, NUMBERS, st.integers(0, 5)))

    return [
        Root(
            name,
            draw(st.sampled_from([0, ALICE, BOB])),
            some(),
            parent_id=draw(st.sampled_from([None, *AGENTS])),
            wrapped=draw(st.booleans()),
            wrapper=some(),
            cgroup=draw(CGROUPS),
            home_cgroup=draw(CGROUPS),
            remembered=tuple(filter(None, (some(), some(), some()))),
            spare=draw(st.sampled_from([frozenset(), frozenset({"tmux: server"})])),
        )
        for name in AGENTS
    ]


def ancestry(found: ProcessTable, pid: int) -> set[int]:
    seen: set[int] = set()
    while pid in found.rows and pid not in seen:
        seen.add(pid)
        parent = found.rows.get(found.rows[pid].stat.parent_pid)
        if parent is None or parent.stat.start_ticks > found.rows[pid].stat.start_ticks:
            break
        pid = parent.stat.pid
    return seen


@settings(deadline=None)  # the machine may be busy with other things
@given(tables(), roots())
def test_whatever_the_table_the_rules_hold(found: ProcessTable, agents: list[Root]) -> None:
    """In no two trees; never the daemon, its ancestors, pid 1, the kernel or a wrapper; only what is there."""
    result = trees(found, agents)
    members = [member.identity.pid for tree in result.values() for member in tree]
    assert len(members) == len(set(members))
    assert not {0, 1} & set(members)
    assert not ancestry(found, found.scanner_pid) & set(members)
    mains = {root.main.pid for root in agents if root.main is not None and found.find(root.main)}
    for root in agents:
        by_pid = {member.identity.pid: member for member in result[root.agent_id]}
        for pid, member in by_pid.items():
            assert found.find(member.identity) is not None
            stat = found.rows[pid].stat
            assert not stat.kernel_thread and not stat.dead
            assert pid in mains or stat.name not in root.spare
        if root.wrapper is not None and found.find(root.wrapper) and root.wrapper.pid not in mains:
            assert root.wrapper.pid not in members


@settings(deadline=None)  # the machine may be busy with other things
@given(tables(), roots())
def test_the_order_in_which_agents_are_given_changes_nothing(found: ProcessTable, agents: list[Root]) -> None:
    """Where two agents claim one main process, or one session, somebody must come first; else order is no evidence."""
    claimed = [root.main.pid for root in agents if root.main is not None]
    claimed += [root.wrapper.pid for root in agents if root.wrapper is not None]
    seen = {identity.pid for root in agents for identity in root.remembered}
    if len(claimed) != len(set(claimed)) or len(seen) != sum(len(root.remembered) for root in agents):
        return
    cgroups = [root.cgroup for root in agents if root.cgroup]
    if len(cgroups) != len(set(cgroups)) or any(root.parent_id for root in agents):
        return
    one, two = trees(found, agents), trees(found, agents[::-1])
    assert {name: set(tree) for name, tree in one.items()} == {name: set(tree) for name, tree in two.items()}


def test_a_look_at_a_large_tree_compares_each_process_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One user's 2,900 processes were compared with 2,900 remembered ones each: another agent's kill took 11 s."""
    count, real = 0, Identity.same_process

    def same_process(self: Identity, other: Identity) -> bool:
        nonlocal count
        count += 1
        return real(self, other)

    many = range(100, 1100)
    found = table(*(row(pid, max(99, pid - 1)) for pid in (99, *many)))
    root = agent("a", 99, remembered=tuple(dataclasses.replace(identity(pid), pidfd_inode=7 * pid) for pid in many))
    monkeypatch.setattr(Identity, "same_process", same_process)
    members = trees(found, [root])["a"]
    assert [member.identity.pidfd_inode for member in members[1:]] == [7 * pid for pid in many]
    assert count < 5 * len(many)
