"""Every process that an agent started is found, and no other agent's is."""

import dataclasses
import os
import subprocess
import sys
import uuid

import pytest

from tests.cgroups import needs_v2, path_of, scratch
from tests.processes.conftest import HOST, Family, known, needs_root, until
from watchdog.core.process import TreeMember
from watchdog.processes import cgroups, procfs
from watchdog.processes import identity as identities
from watchdog.processes import table as tables
from watchdog.processes.table import scan
from watchdog.processes.tree import Root, trees, unseen, with_inodes

UIDS = frozenset({os.getuid()})


_run = ""  # part of every agent id of the test that runs: tests beside it have agents too


@pytest.fixture(autouse=True)
def _agent_ids_of_this_test() -> None:
    global _run
    _run = uuid.uuid4().hex[:8]


def marked(name: str, **more: str) -> dict[str, str]:
    """The environment of that agent."""
    return {"AGENT_WATCHDOG_ID": f"{name}-{_run}", "RUN": _run, **more}


def settled(*pids: int) -> None:
    """Wait until these have become what they exec: before, they still have their parent's environment."""
    until(lambda: all(procfs.read(f"/proc/{pid}/comm") == b"sleep\n" for pid in pids), "sleeping")


def look(*roots: Root) -> dict[str, dict[int, TreeMember]]:
    """pid -> member of each agent, by one real scan."""
    mains = frozenset(root.main.pid for root in roots if root.main is not None)
    own = frozenset(root.cgroup for root in roots if root.cgroup is not None)
    found = trees(scan(HOST, UIDS, cgroups_of=mains, own_cgroups=own), roots)
    return {
        agent.removesuffix(f"-{_run}"): {member.identity.pid: member for member in members}
        for agent, members in found.items()
    }


def root(name: str, pid: int, **more: object) -> Root:
    return dataclasses.replace(Root(f"{name}-{_run}", os.getuid(), known(pid)), **more)  # type: ignore[arg-type] # fields by name


ESCAPES = """
env -u AGENT_WATCHDOG_ID sleep 300 & echo plain $!
env -u AGENT_WATCHDOG_ID setsid sleep 300 & echo setsid $!
(setsid sh -c 'sleep 300 & echo double $!')
(env -u AGENT_WATCHDOG_ID sh -c 'sleep 300 & echo orphan $!')
bash -c 'set -m; env -u AGENT_WATCHDOG_ID sleep 300 & echo job $!; wait' & echo jobshell $!
setsid sh -c 'env -u AGENT_WATCHDOG_ID sleep 300 & echo stray $!; wait' & echo straysh $!
exec sleep 300
"""


def test_every_way_out_is_found(family: Family) -> None:
    """Plain, setsid, double fork, job control, orphan of the group, child without a marker of one that has left."""
    main = family.start("bash", "-c", ESCAPES, env=marked("a"), session=True)
    names = {"plain", "setsid", "double", "orphan", "job", "jobshell", "stray", "straysh"}
    pids = family.pids(main, names)
    settled(main.pid, *(pid for name, pid in pids.items() if name not in ("jobshell", "straysh")))
    found = look(root("a", main.pid))["a"]
    assert set(found) == {main.pid, *pids.values()}
    assert next(iter(found)) == main.pid
    via = {name: found[pid].via for name, pid in pids.items()}
    assert found[main.pid].via == "main"
    assert via["double"] == "marker"
    assert via["orphan"] == "session"
    assert via["stray"] == "descent"


def test_marks_are_read_again_of_who_began_another_program_and_of_nobody_else(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`exec` leaves pid and start as they were; no program begins without a page fault."""
    quiet = family.start("sleep", "300", env=marked("a"))
    other = family.start("sh", "-c", f"read x; AGENT_WATCHDOG_ID=b-{_run} exec sleep 300", env=marked("a"))
    marks_of, asked = tables.marks_of, list[int]()

    def counted(pid: int, proc_fd: int) -> tables.Marks:
        asked.append(pid)
        return marks_of(pid, proc_fd)

    monkeypatch.setattr(tables, "marks_of", counted)
    seen = [scan(HOST, UIDS)]

    def at_rest() -> bool:
        asked.clear()
        seen.append(scan(HOST, UIDS, previous=seen[-1]))
        both = {quiet.pid, other.pid}
        return not both & {*asked} and {seen[-1].rows[pid].marker for pid in both} == {f"a-{_run}"}

    until(at_rest, "both wait for something, and are not asked again")
    before = seen[-1]
    assert other.stdin is not None
    os.write(other.stdin.fileno(), b"\n")
    until(lambda: scan(HOST, UIDS, previous=before).rows[other.pid].marker == f"b-{_run}", "it is another's by now")
    asked.clear()
    after = scan(HOST, UIDS, previous=before)
    assert (after.find(before.identity(other.pid)), quiet.pid in asked) == (after.rows[other.pid], False)
    assert after.rows[quiet.pid].marks == before.rows[quiet.pid].marks


def test_what_is_left_of_a_tree_is_known_again_after_its_main_process_has_gone(family: Family) -> None:
    """Remembered members, their children, and others of the session that the dead agent led."""
    script = """
env -u AGENT_WATCHDOG_ID sh -c 'sleep 300 & echo one $!; read x; sleep 300 & echo late $!; wait' <&0 & echo shell $!
exec sleep 300
"""
    main = family.start("bash", "-c", script, session=True)
    pids = family.pids(main, {"one", "shell"})
    before = root("a", main.pid)
    members = with_inodes(trees(scan(HOST, UIDS), [before])[before.agent_id])
    assert {member.identity.pid for member in members} == {main.pid, *pids.values()}
    main.kill()
    main.wait()
    after = dataclasses.replace(before, remembered=tuple(member.identity for member in members))
    assert main.stdin is not None
    os.write(main.stdin.fileno(), b"\n")
    pids |= family.pids(main, {"late"})
    found = look(after)["a"]
    assert set(found) == set(pids.values())
    assert found[pids["one"]].identity in after.remembered
    assert look(dataclasses.replace(after, remembered=()))["a"] == {}


@needs_v2
def test_a_cgroup_of_its_own_holds_what_nothing_else_shows(family: Family) -> None:
    """A double fork with a cleared environment, of another uid and in a cgroup below; also when the agent has gone."""
    script = """
read x
(env -i setsid setpriv --reuid=12345 --clear-groups sh -c 'sleep 300 & echo lost $!')
exec sleep 300
"""
    with scratch() as own:
        main = family.start("bash", "-c", script, session=True)
        cgroups.move(main.pid, path_of(own))
        assert main.stdin is not None
        main.stdin.write(b"\n")
        main.stdin.flush()
        pids = family.pids(main, {"lost"})
        settled(main.pid, *pids.values())
        cgroups.create(f"{path_of(own)}/below")
        cgroups.move(pids["lost"], f"{path_of(own)}/below")
        without = root("a", main.pid)
        its = dataclasses.replace(without, cgroup=path_of(own))

        assert set(look(without)["a"]) == {main.pid}
        assert {pid: member.via for pid, member in look(its)["a"].items()} == {main.pid: "main", pids["lost"]: "cgroup"}
        main.kill()
        main.wait()
        assert set(look(its)["a"]) == set(pids.values())


def test_who_merely_sits_in_the_same_session_and_group_is_not_of_the_tree(family: Family) -> None:
    """A script starts an agent beside something else; the script leads, so session and group prove nothing."""
    leader = family.start("bash", "-c", "sleep 300 & echo agent $!; sleep 300 & echo bystander $!; wait", session=True)
    pids = family.pids(leader, {"agent", "bystander"})
    assert os.getsid(pids["agent"]) == os.getsid(pids["bystander"]) == os.getpgid(pids["agent"]) == leader.pid
    assert set(look(root("a", pids["agent"]))["a"]) == {pids["agent"]}


def test_a_group_that_the_agent_leads_is_of_the_tree_but_not_its_session(family: Family) -> None:
    """Job control: an interactive shell gives the agent a group of its own in the shell's session."""
    script = """
set -m
sh -c '(sleep 300 & echo orphan $!); echo agent $$; exec sleep 300' &
sleep 300 & echo bystander $!
wait
"""
    leader = family.start("bash", "-c", script, session=True)
    pids = family.pids(leader, {"agent", "orphan", "bystander"})
    found = look(root("a", pids["agent"]))["a"]
    assert {pid: member.via for pid, member in found.items()} == {pids["agent"]: "main", pids["orphan"]: "group"}


def test_a_child_agents_processes_are_the_childs(family: Family) -> None:
    """By ancestry, and by the marker also after a double fork; in the parent's session they stay the child's."""
    script = """
sleep 300 & echo mine $!
export AGENT_WATCHDOG_ID=child-$RUN
bash -c 'sleep 300 & echo near $!; (sleep 300 & echo far $!); exec sleep 301' & echo child $!
export AGENT_WATCHDOG_ID=parent-$RUN
bash -c 'sleep 300 & echo plain $!; exec sleep 302' & echo unmarked $!
wait
"""
    main = family.start("bash", "-c", script, env=marked("parent"), session=True)
    pids = family.pids(main, {"mine", "near", "far", "child", "plain", "unmarked"})
    settled(*pids.values())
    found = look(
        root("unmarked", pids["unmarked"]),
        root("child", pids["child"], parent_id=f"parent-{_run}"),
        root("parent", main.pid),
    )
    assert set(found["parent"]) == {main.pid, pids["mine"]}
    assert set(found["child"]) == {pids["child"], pids["near"], pids["far"]}
    assert set(found["unmarked"]) == {pids["unmarked"], pids["plain"]}


def test_a_wrapper_is_of_no_tree_and_what_it_inherited_is_its_agents(family: Family) -> None:
    """`run` inside an agent: the wrapper is neither's; orphans that it adopted are the child's."""
    wrapper = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
child = subprocess.Popen(["bash", "-c", "(setsid sleep 300 & echo adopted $!); echo main $$; exec sleep 300"])
sys.stdin.read()
"""
    script = f'"{sys.executable}" -c "$WRAPPER" <&0 & echo wrapper $!; wait'
    main = family.start("bash", "-c", script, env={"WRAPPER": wrapper}, session=True)
    pids = family.pids(main, {"adopted", "main", "wrapper"})
    parent = root("parent", main.pid)
    child = root("child", pids["main"], parent_id=f"parent-{_run}", wrapper=known(pids["wrapper"]))
    settled(pids["adopted"], pids["main"])
    found = look(parent, child)
    assert set(found["parent"]) == {main.pid}
    assert set(found["child"]) == {pids["main"], pids["adopted"]}
    inferred = look(parent, dataclasses.replace(child, wrapper=None, wrapped=True))
    assert pids["wrapper"] not in inferred["parent"] | inferred["child"]


def test_a_spared_program_and_what_it_started_are_left_alone(family: Family) -> None:
    """A tmux server that an agent happened to start serves its owner's other panes; an agent in one is an agent."""
    script = """
"$PYTHON" -c 'import sys; open("/proc/self/comm","w").write("tmux: server"); import subprocess
print("pane", subprocess.Popen(["sleep", "300"]).pid, flush=True)
print("inner", subprocess.Popen(["sleep", "300"]).pid, flush=True)
sys.stdin.read()' <&0 & echo server $!
wait
"""
    main = family.start("bash", "-c", script, env=marked("a", PYTHON=sys.executable), session=True)
    pids = family.pids(main, {"server", "pane", "inner"})
    spare = frozenset({"tmux: server"})
    found = look(root("a", main.pid, spare=spare), root("b", pids["inner"]))
    assert set(found["a"]) == {main.pid}
    assert set(found["b"]) == {pids["inner"]}
    assert set(look(root("a", main.pid))["a"]) == {main.pid, *pids.values()}


def test_the_daemon_its_ancestors_and_its_children_are_in_no_tree(family: Family) -> None:
    """A daemon that was started inside an agent does not count itself to that agent."""
    child = family.start("sleep", "300", env=marked("a"))
    found = look(root("a", os.getppid()), root("b", os.getpid()))
    assert not {child.pid, os.getpid(), os.getppid()} & (set(found["a"]) | set(found["b"]))


@needs_root
def test_a_marker_of_another_uid_counts_only_below_the_agent(family: Family) -> None:
    """Anybody can write anybody's agent id into an environment; ancestry cannot be claimed."""
    claim = marked("a")
    main = family.start(
        "bash", "-c", "setpriv --reuid 65534 --clear-groups sleep 300 & echo own $!; wait", session=True, env=claim
    )
    own = family.pids(main, {"own"})["own"]
    liar = family.start("bash", "-c", "(setsid sleep 300 & echo liar $!)", env=claim, user=65534)
    false = family.pids(liar, {"liar"})["liar"]
    until(lambda: os.stat(f"/proc/{own}").st_uid == 65534, "setuid")
    agent = root("a", main.pid)
    table = scan(HOST, frozenset({0, 65534}))
    assert table.rows[false].marker == agent.agent_id
    assert {m.identity.pid: m.via for m in trees(table, [agent])[agent.agent_id]} == {main.pid: "main", own: "marker"}


def test_a_scan_keeps_of_an_environment_the_marker_alone(family: Family) -> None:
    """And reads none at all of uids that own no agent."""
    child = family.start(
        "sleep", "300", env={"AGENT_WATCHDOG_ID": "a-1", "SECRET": "hunter2", "XAGENT_WATCHDOG_ID": "x"}
    )
    settled(child.pid)
    assert scan(HOST, UIDS).rows[child.pid].marker == "a-1"
    assert "hunter2" not in repr(scan(HOST, UIDS))
    assert scan(HOST, frozenset({12345})).rows[child.pid].marker is None


def test_a_process_that_cannot_be_read_is_told_and_one_that_vanishes_is_skipped(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hole in the picture is not an absence."""
    hidden, gone = family.start("sleep", "300"), family.start("sleep", "300")
    real = tables._read

    def read(path: str, proc_fd: int) -> bytes:
        if path == f"{hidden.pid}/stat":
            raise PermissionError(1, "hidden")
        if path == f"{gone.pid}/stat":
            raise ProcessLookupError(3, "gone")
        return real(path, proc_fd)

    monkeypatch.setattr(tables, "_read", read)
    table = scan(HOST, UIDS)
    assert hidden.pid in table.unreadable and gone.pid not in table.unreadable
    assert not {hidden.pid, gone.pid} & set(table.rows)


@needs_root
def test_the_daemon_of_the_unit_reads_markers_of_other_uids(family: Family) -> None:
    """Root with CAP_SYS_PTRACE and no CAP_DAC_OVERRIDE: /proc/PID/environ may not be opened, the memory may be read."""
    child = family.start("sleep", "300", env={"AGENT_WATCHDOG_ID": "a-1", "SECRET": "hunter2"}, user=65534)
    settled(child.pid)
    code = (
        "from watchdog.processes.table import scan; "
        f"table = scan('h', frozenset({{65534}})); row = table.rows[{child.pid}]; "
        f"print(row.marker, {child.pid} in table.unreadable, 'hunter2' in repr(table))"
    )
    caps = "-all,+sys_ptrace,+kill"
    done = subprocess.run(
        ["setpriv", f"--bounding-set={caps}", f"--inh-caps={caps}", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout == "a-1 False False\n", done.stderr


def test_a_member_that_a_scan_does_not_see_is_still_a_member(family: Family) -> None:
    """A read that failed, or hidepid: it is forgotten only when its pidfd says that it has gone."""
    hidden, gone = family.start("sleep", "300"), family.start("sleep", "300")
    agent = Root("a", os.getuid(), None, remembered=(known(hidden.pid), known(gone.pid)))
    gone.kill()
    gone.wait()
    seen = scan(HOST, UIDS)
    assert unseen(seen, agent) == ()
    blind = dataclasses.replace(seen, rows={pid: row for pid, row in seen.rows.items() if pid != hidden.pid})
    assert [member.identity for member in unseen(blind, agent)] == [known(hidden.pid)]


def test_a_proc_that_cannot_be_listed_is_a_failed_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty table would read as "everybody is gone"."""
    monkeypatch.setattr(procfs, "PROC", "/nonexistent")
    with pytest.raises(identities.LookFailed):
        scan(HOST, UIDS)


def test_cpu_time_of_a_tree_grows_with_its_work(family: Family) -> None:
    """Two scans, one difference: what "busy without beats" is judged by."""
    main = family.python("import sys\nprint('up')\nwhile True: pass")
    family.line(main)
    agent = root("a", main.pid)
    first = look(agent)["a"][main.pid].cpu_seconds
    until(lambda: look(agent)["a"][main.pid].cpu_seconds > first + 0.05, "CPU time")


def test_a_line_read_in_the_tick_of_its_birth_is_read_again(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until that tick is over another process may get its number and its tick. Here it ends before the second look."""
    over = identities.tick_is_over
    born = []

    def listed(path: int) -> list[str]:
        born.append(family.start("sleep", "300"))
        return [str(born[0].pid)]

    def later(tick: int) -> bool:
        born[0].kill()
        born[0].wait()
        return over(tick)

    monkeypatch.setattr(os, "listdir", listed)
    monkeypatch.setattr(identities, "tick_is_over", later)
    rows = scan(HOST, frozenset({os.getuid()})).rows
    assert rows == {}
