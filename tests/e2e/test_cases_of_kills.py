"""Public bug reports about which processes a kill reaches, one test per case, on a real daemon and real processes."""

import os
import shutil
import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cgroups import needs_v1, scratch
from tests.e2e.kill_cases import (
    ASKER,
    LEAVES,
    SERVERS,
    SHARED,
    bystander,
    end,
    in_pid_namespace,
    parent_of,
    signals_of,
    told,
    with_servers,
)
from tests.world import World, alive, git, make_repository, pids_with, wait_for

heavy = pytest.mark.faults
TIMES: dict[str, dict[str, Any]] = {
    "sweep": {"interval_seconds": 0.5},
    "stall": {"after_seconds": 2, "start_limit_seconds": 60},
    "kill": {"grace_seconds": 5},
    "log": {"level": "debug"},
}


def members(world: World, name: str) -> dict[int, str]:
    """pid -> how it ended, of the whole tree, by the order's outcome."""
    (request,) = world.story(name)["requests"]
    return {p["pid"]: p["how"] for p in request["outcome"]["processes"]}


def one_beat(world: World, name: str) -> None:
    """And never again."""
    assert world.ask("POST", f"/v1/agents/{world.agents()[name]['agent_id']}/beat", {})[0] == 204


@pytest.mark.parametrize("how", [pytest.param("registered", marks=heavy), "run"])
def test_a1_leftovers_of_a_dead_main_process_are_killed(world: World, how: str) -> None:
    """Only the main process is killed: its six leftovers are killed, two look-alikes of no agent live."""
    world.configure(**{**TIMES, "stall": {"after_seconds": 600}})
    with_servers(world)
    world.start()
    began = datetime.now(UTC)
    command = (sys.executable, "-c", LEAVES)
    if how == "run":
        world.run("leaves", *command)
    else:
        world.registered("leaves", *command)
    servers = told(world, "servers", 3)
    beside = bystander(world, "beside", *SERVERS), bystander(world, "orphaned", *SERVERS, orphan=True)
    wait_for(lambda: world.agents()["leaves"]["beats"] == 2, "it has beaten twice")
    left = {*servers, *servers.values()}
    up = datetime.now(UTC)
    main = world.agents()["leaves"]["pid"]

    before = len(world.events())
    end(main)
    world.wait_event("agent.gone", name="leaves")
    said = [event["event"] for event in world.events()[before:]]
    assert said[: said.index("agent.gone")].count("sweep.finished") <= 2
    world.wait_event("kill.signal_sent", name="leaves")
    assert world.story("leaves")["agent"]["status"] == "ending", "its servers ignore TERM and live"
    world.wait_status("leaves", "failed")

    assert not any(alive(pid) for pid in left)
    processes = world.wait_event("kill.finished", name="leaves")["processes"]
    started = {process["pid"]: datetime.fromisoformat(process["started"]) for process in processes}
    assert started.keys() == left
    assert all(began - timedelta(seconds=2) < birth < up for birth in started.values())
    assert members(world, "leaves") == {
        **dict.fromkeys(servers, "after SIGKILL"),
        **dict.fromkeys(servers.values(), "after SIGTERM"),
    }
    got = {pid: set(signals_of(world, pid)) for pid in servers}  # a handler of CONT may run within that of TERM
    assert got == {pid: {"SIGTERM", "SIGCONT"} for pid in servers}
    assert all(alive(pid) and signals_of(world, pid) == [] for pid in beside)
    assert world.signalled() == left


# Three wrappers, each of which silently exits on TERM; then one process that ignores TERM.
WRAPPERS = r"""
trap 'exit 0' TERM
"$PYTHON" -c '
import subprocess, sys, signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
subprocess.Popen(["bash", "-c", sys.argv[1]]).wait()  # run() would KILL it on the way out
' "trap 'exit 0' TERM; $LEAF & wait" &
wait
"""
LEAF = 'sh -c \'trap "" TERM INT HUP; echo $$ >>"$WORLD/leaf"; while :; do sleep 1000; done\''
LEAVING = 'env -i WORLD="$WORLD" PATH="$PATH" setsid '


@pytest.mark.parametrize(
    "leaf",
    [
        pytest.param(LEAF, marks=heavy, id="plain"),
        pytest.param(LEAVING + LEAF, id="with nothing that shows whose it is"),
    ],
)
def test_a2_the_worker_at_the_bottom_of_a_chain_of_wrappers_is_killed(world: World, leaf: str) -> None:
    """bash, python, bash, leaf: each gets TERM, the leaf gets KILL although its parents are gone by then."""
    world.configure(**TIMES)
    world.start()
    world.registered("chain", "bash", "-c", WRAPPERS, environ={"LEAF": leaf})
    path = world.dir / "leaf"
    bottom = int(wait_for(lambda: path.read_text() if path.exists() else None, "the leaf"))
    chain = [bottom]
    while chain[-1] != world.agents()["chain"]["pid"]:
        chain.append(parent_of(chain[-1]))
    assert len(chain) == 4
    one_beat(world, "chain")

    world.wait_status("chain", "killed")

    ended = members(world, "chain")
    assert not any(alive(pid) for pid in (*chain, *ended))
    assert {pid: ended[pid] for pid in chain} == {
        bottom: "after SIGKILL",
        **dict.fromkeys(chain[1:], "after SIGTERM"),
    }
    assert world.signalled() == set(ended)


# Becomes a subreaper with some name, starts the agent (argv) by a launcher, and on request a child of its own.
SUBREAPER = """
import ctypes, os, signal, subprocess, sys
libc = ctypes.CDLL(None)
libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
libc.prctl(15, sys.argv[1].encode(), 0, 0, 0)  # PR_SET_NAME
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
subprocess.Popen(["sh", "-c", '"$PYTHON" "$WORLD/srv.py"; :'], env=os.environ | {"ROLE": "beside"})
launcher = ["sh", "-c", '"$PYTHON" -c "$LEAVES" & echo $! >"$WORLD/main"; wait']
subprocess.Popen(launcher, env=os.environ | dict(word.split("=", 1) for word in sys.argv[2:]))
while True:
    signal.pause()
"""


@pytest.mark.parametrize(
    ("name", "marked"),
    [
        pytest.param("subreaper", "ours", marks=heavy),
        pytest.param("systemd", "a vendor's", marks=heavy),
        ("systemd", "nobody's"),
    ],
)
def test_a4_an_orphan_that_a_subreaper_adopted_is_known(world: World, name: str, marked: str) -> None:
    """Launcher and main process are killed; the rest is below the subreaper, whose own child belongs to no agent."""
    world.configure(**TIMES)
    with_servers(world)
    world.start()
    status, answer = world.ask("POST", "/v1/agents", {"name": "leaves"})
    assert status == 201
    leaves = LEAVES.replace("import os,", "import os; os.environ['CODEX_THREAD_ID'] = str(os.getpid())\nimport os,")
    env = [f"{key}={value}" for key, value in answer["env"].items()] if marked == "ours" else []
    shown = leaves if marked == "a vendor's" else LEAVES
    reaper = world.spawn(sys.executable, "-c", SUBREAPER, name, *env, LEAVES=shown)
    main = int(wait_for(lambda: read(world.dir / "main"), "the main process"))
    servers = told(world, "servers", 3)
    beside = told(world, "beside", 1)
    assert world.ask("PATCH", f"/v1/agents/{answer['agent_id']}", {"pid": main})[0] == 200
    launcher = parent_of(main)
    path = f"/v1/agents/{answer['agent_id']}"
    wait_for(lambda: len(world.ask("GET", path)[1]["agent"]["members"]) >= 7, "its tree is known")

    end(launcher)
    end(main)
    world.wait_status("leaves", "failed", "completed")

    assert not any(alive(pid) for pid in (*servers, *servers.values()))
    assert reaper.poll() is None
    assert all(alive(pid) and signals_of(world, pid) == [] for pid in (*beside, *beside.values()))
    assert world.signalled() == {*servers, *servers.values()}


# As LEAVES, and starts one more server on request.
LATER = """
import os, subprocess, sys, time
for number in range(3):
    subprocess.Popen(["sh", "-c", '"$PYTHON" "$WORLD/srv.py"; :'])
while not os.path.exists(os.environ["WORLD"] + "/now"):
    time.sleep(0.05)
subprocess.Popen([os.environ["PYTHON"], os.environ["WORLD"] + "/srv.py"], env=os.environ | {"ROLE": "late"})
time.sleep(1000)
"""


@heavy
@pytest.mark.parametrize("marked", ["ours", "nobody's"])
def test_a4_orphans_adopted_by_a_service_manager_without_a_daemon_are_known(world: World, marked: str) -> None:
    """The daemon is killed, then launcher and main process; the next daemon kills the rest.

    With the marker: also a process that was started in between, when no process from an earlier scan is left.
    """
    world.configure(**TIMES)
    with_servers(world)
    world.start()
    status, answer = world.ask("POST", "/v1/agents", {"name": "leaves"})
    assert status == 201
    env = [f"{key}={value}" for key, value in answer["env"].items()] if marked == "ours" else []
    reaper = world.spawn(sys.executable, "-c", SUBREAPER, "systemd", *env, LEAVES=LATER)
    main = int(wait_for(lambda: read(world.dir / "main"), "the main process"))
    servers = told(world, "servers", 3)
    beside = told(world, "beside", 1)
    path = f"/v1/agents/{answer['agent_id']}"
    assert world.ask("PATCH", path, {"pid": main})[0] == 200
    launcher = parent_of(main)
    wait_for(lambda: len(world.ask("GET", path)[1]["agent"]["members"]) >= 7, "its tree is known")
    world.wait_sweeps(1)  # it is stored

    world.crash()
    ours, adopted = {*servers, *servers.values()}, set(servers.values())
    if marked == "ours":
        (world.dir / "now").touch()
        for pid in ours:
            end(pid)
        ours = adopted = set(told(world, "late", 1))
    end(launcher)
    end(main)
    wait_for(lambda: all(parent_of(pid) == reaper.pid for pid in adopted) or None, "they are adopted")
    world.start()
    world.wait_status("leaves", "failed", "completed")

    assert not any(alive(pid) for pid in ours)
    assert reaper.poll() is None
    assert all(alive(pid) and signals_of(world, pid) == [] for pid in (*beside, *beside.values()))
    assert world.signalled() == ours


def read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces, or acting as another uid")


@needs_root
@pytest.mark.parametrize("when", [pytest.param("down", marks=heavy), "between"])
def test_d1_a_process_that_reused_the_agents_pid_gets_no_signal(when: str) -> None:
    """While the daemon is down, and between TERM and KILL; the row is closed, says so, and its own cleanup runs."""
    assert f"survived {when}" in in_pid_namespace("tests.e2e.reused_pid", when)


@needs_root
def test_d9_children_with_smaller_pids_and_hostile_names_are_found() -> None:
    """The counter wrapped; names look like the rest of a stat line.

    Older processes and those in between are bystanders.
    """
    assert "survived wrapped" in in_pid_namespace("tests.e2e.reused_pid", "wrapped")


@heavy
def test_d5_an_order_for_a_former_run_leaves_its_successor_alone(world: World) -> None:
    """Alpha's first run ends independently while its order waits, and its second begins in the same worktree."""
    world.configure(**{**TIMES, "stall": {"after_seconds": 600}, "kill": {"grace_seconds": 60}})
    repository = make_repository(world.dir / "repo")
    worktree = world.dir / "wt"
    git(repository, "worktree", "add", "-q", "-b", "alpha", str(worktree))
    world.start()
    first = world.registered("alpha", *world.script("agent.py", "deaf", "sleep"), worktree=str(worktree))
    former = world.agents()["alpha"]["agent_id"]
    assert world.ask("POST", "/v1/kill", {"targets": ["alpha"], "wait": False})[0] in (200, 202)
    world.wait_event("kill.signal_sent", name="alpha")
    first.kill()
    first.wait()
    agent = " ".join(world.script("agent.py", "witness", "sleep"))
    second = world.spawn("sh", "-c", f"cd {worktree} && exec {agent}")
    body = {"name": "alpha", "pid": second.pid, "worktree": str(worktree)}
    assert world.ask("POST", "/v1/agents", body)[0] == 409, "two living agents of one name"
    wait_for(lambda: world.ask("POST", "/v1/agents", body)[0] == 201, "alpha's second run is taken in")

    assert world.json("kill", former)["message"].startswith("already dead")
    (request,) = world.story(former)["requests"]
    assert request["outcome"]["message"] == "killed on request: 1 process ended on TERM"
    # A late message, by a program that writes into the registry.
    world.sql(
        "INSERT INTO kill_request (request_id, agent_id, reason, by_text, options, status, members, evidence, outcome,"
        f" created_at) SELECT 'late', agent_id, reason, by_text, options, 'open', '[]', '{{}}', '{{}}', created_at"
        f" FROM kill_request WHERE agent_id = '{former}'"
    )
    world.stop()
    world.start()
    world.wait_sweeps(2)

    assert world.sql("SELECT status FROM kill_request WHERE request_id = 'late'") == [("done",)]
    assert world.agents()["alpha"]["status"] == "running"
    assert second.poll() is None
    assert world.witnessed() == []
    assert (worktree / "README").read_text() == "hello\n"


def test_d5_an_order_for_an_unknown_name_kills_nothing(world: World) -> None:
    """Neither the only other agent, nor one whose name begins with that name."""
    world.start()
    for name in ("rust", "alpha-2"):
        world.registered(name, *world.script("agent.py", "witness", "sleep"))

    refused = world.json("kill", "alpha", check=False)

    assert refused["error"] == "agent_not_found"
    assert {name: agent["status"] for name, agent in world.agents().items()} == {
        "rust": "running",
        "alpha-2": "running",
    }
    assert world.witnessed() == []


def test_d5_a_replaced_agent_leaves_its_worktree_to_its_successor(world: World) -> None:
    """`run --replace` in the same place, from outside of it: the former run's cleanup does nothing there."""
    world.configure(**TIMES)
    repository = make_repository(world.dir / "repo")
    worktree = world.dir / "wt"
    git(repository, "worktree", "add", "-q", "-b", "alpha", str(worktree))
    world.start()
    options = ("--worktree", str(worktree))
    first = world.run("alpha", *world.script("agent.py", "sleep"), options=options)
    former = wait_for(lambda: world.agents().get("alpha"), "the first")
    world.run("alpha", *world.script("agent.py", "beat=0.3"), options=(*options, "--replace"))
    wait_for(lambda: world.agents()["alpha"]["beats"], "the second")

    assert first.wait(60) != 0
    assert world.story(former["agent_id"])["agent"]["status"] == "stopped"
    assert (worktree / "README").read_text() == "hello\n"


@pytest.mark.parametrize(
    "shared",
    [pytest.param("nobody's", marks=heavy), "an agent of its own", pytest.param("spared by name", marks=heavy)],
)
def test_d7_a_server_that_others_use_survives(world: World, shared: str) -> None:
    """Its parent is process 1, as the daemon's is; the second agent still gets answers."""
    spare = {"spare": ["mcp-shared"]} if shared == "spared by name" else {}
    world.configure(**{**TIMES, "stall": {"after_seconds": 600}, "kill": {**TIMES["kill"], **spare}})
    world.start(prefix=("setsid", "--fork"))
    door = world.dir / "door"
    server = [sys.executable, "-c", SHARED, "mcp-server", "--stdio", str(door)]
    if shared == "nobody's":
        world.spawn("sh", "-c", 'setsid "$@" & exit', "sh", *server).wait()
        server = []
    pids = {}
    for name in ("one", "two"):
        command = [sys.executable, "-c", ASKER, str(door), str(world.dir / name)]
        pids[name] = world.registered(name, *command, *(server if name == "one" else [])).pid

    def answers(name: str) -> list[str]:
        return (read(world.dir / name) or "").split()

    wait_for(lambda: answers("one") and answers("two"), "both are answered")
    shared_pid = int(answers("one")[0])
    if shared == "an agent of its own":
        world.cli("register", "--name", "server", "--pid", str(shared_pid))
    world.wait_sweeps(2)

    assert world.json("kill", "one")["success"]
    count = len(answers("two"))
    wait_for(lambda: len(answers("two")) >= count + 3, "the second is answered still")

    assert not alive(pids["one"])
    assert set(answers("two")) == {str(shared_pid)}
    assert signals_of(world, shared_pid) == []
    assert world.signalled() == {pids["one"]}
    assert world.agents()["two"]["status"] == "running"


@heavy
def test_d7_a_process_that_the_agents_own_policy_does_not_spare_is_killed(world: World) -> None:
    """The policy's list replaces the general one, also for the check before each signal."""
    world.configure(**TIMES)
    with world.config.open("a") as config:
        config.write('[[policy]]\nmatch = { name = "one" }\nspare = ["gpg-agent"]\n')
    world.start()
    copy = str(world.dir / "ssh-agent")
    shutil.copy("/bin/sleep", copy)
    world.registered("one", "sh", "-c", f"{copy} 1000 & echo $! > pid; wait")
    pid = int(wait_for(lambda: read(world.dir / "pid"), "it started its own"))
    wait_for(lambda: alive(pid), "it is there")
    assert world.json("kill", "one")["success"]
    assert not alive(pid)


# Changes its name in the kernel's list and in its command line to that of another program.
RENAMED = """
import ctypes, os, sys, time
if sys.argv[1:] != ["again"]:
    os.execv(sys.executable, ["[kworker/7:1]", "-c", open("/proc/self/cmdline").read().split("\\0")[2], "again"])
ctypes.CDLL(None).prctl(15, b"a) Z 1 (b", 0, 0, 0)  # PR_SET_NAME
time.sleep(1000)
"""


def test_f5_an_entry_stays_until_its_process_has_gone(world: World) -> None:
    """One never starts correctly, one renames itself and falls silent: both trees are killed, whatever their names."""
    world.configure(**{**TIMES, "stall": {"after_seconds": 2, "start_limit_seconds": 4}})
    world.start()
    world.registered("late", *world.script("agent.py", "deaf", "grandchild", "sleep"), stall_after_seconds=2)
    renamed = world.registered("renamed", sys.executable, "-c", RENAMED)
    name = Path(f"/proc/{renamed.pid}/comm")
    wait_for(lambda: name.read_text() == "a) Z 1 (b\n", "it has renamed itself")

    def whole() -> dict[str, list[int]] | None:
        found = {n: pids_with("AGENT_WATCHDOG_ID", world.agents()[n]["agent_id"]) for n in ("late", "renamed")}
        return found if {n: len(pids) for n, pids in found.items()} == {"late": 2, "renamed": 1} else None

    trees = wait_for(whole, "the grandchild has begun")
    one_beat(world, "renamed")

    world.wait_event("kill.signal_sent", name="late")
    assert world.story("late")["agent"]["status"] == "ending"
    assert all(alive(pid) for pid in trees["late"])
    assert world.wait_status("late", "failed")["pid"] in trees["late"]
    world.wait_status("renamed", "killed")

    assert not any(alive(pid) for pids in trees.values() for pid in pids)
    assert world.signalled() == {pid for pids in trees.values() for pid in pids}


def frozen_agent(world: World, freezer: Path) -> int:
    """Ordered to be killed in a frozen cgroup of v1, where KILL waits for the thaw; its worktree is empty."""
    world.configure(
        **{
            **TIMES,
            "stall": {"after_seconds": 600},
            "kill": {"grace_seconds": 0.5, "verify_seconds": 3, "parallel": 1},
        }
    )
    repository = make_repository(world.dir / "repo")
    git(repository, "worktree", "add", "-q", "-b", "work", str(world.dir / "wt"))
    with world.config.open("a") as config:
        note = f"cat >> {world.dir}/noted; echo >> {world.dir}/noted"
        config.write(f'[[hook]]\nname = "note"\ncommand = ["/bin/sh", "-c", "{note}"]\n')
        config.write('[[hook]]\nname = "worktree"\nrun = "worktree"\n')
    world.start()
    agent = world.registered("frozen", *world.script("agent.py", "sleep"), worktree=str(world.dir / "wt"))
    (freezer / "cgroup.procs").write_text(str(agent.pid))
    (freezer / "freezer.state").write_text("FROZEN")
    wait_for(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n", "it is frozen")
    refused = world.json("kill", "frozen", check=False)
    assert refused["error"] == "kill_failed"
    return agent.pid


@heavy
@needs_v1("freezer")
def test_h14_an_unkillable_agent_delays_no_other_and_closes_when_it_dies(world: World) -> None:
    """State D: unkillable, reported once, the one worker free, nothing cleaned; after the thaw the row is closed."""
    with scratch("freezer") as freezer:
        pid = frozen_agent(world, freezer)
        world.wait_status("frozen", "unkillable")
        world.registered("other", *world.script("agent.py", "sleep"))
        assert world.json("kill", "other")["success"]
        world.wait_sweeps(3)
        assert world.agents()["frozen"]["status"] == "unkillable"
        assert alive(pid)
        assert '"frozen"' not in (world.dir / "noted").read_text(), "a hook ran for who lives"
        assert (world.dir / "wt/README").exists()

        (freezer / "freezer.state").write_text("THAWED")
        world.wait_status("frozen", "killed")

        assert not alive(pid)
        assert not (world.dir / "wt").exists()
        assert (world.dir / "noted").read_text().count('"frozen"') == 1
        assert world.count("kill.unkillable", name="frozen") == 1


@heavy
@pytest.mark.timeout(300)
@needs_v1("freezer")
def test_f5_an_unkillable_agent_is_tried_again_with_growing_pauses(world: World) -> None:
    """The order and the agent's row stay open, whatever the attempts find; reported once."""
    with scratch("freezer") as freezer:
        frozen_agent(world, freezer)
        begun: dict[str, float] = {}

        def attempts() -> bool:
            begun.setdefault(str(world.sql("SELECT claimed_at FROM kill_request")[0][0]), time.monotonic())
            return len(begun) >= 4

        wait_for(attempts, "three more attempts", 150)
        first, *pauses = [after - before for before, after in pairwise(begun.values())]
        assert pauses[0] > 1.3 * first
        assert pauses[1] > 1.3 * pauses[0]
        assert world.count("kill.unkillable", name="frozen") == 1
        (freezer / "freezer.state").write_text("THAWED")
        world.wait_status("frozen", "killed", seconds=120)
