"""Who stands beside an agent: in its group, its pane, its service, with its marker. He lives, and gets no signal."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.e2e.kill_cases import signals_of, told, with_servers
from tests.faults.private import left, running
from tests.faults.table import Row, Run
from tests.systemd import service
from tests.systemd.machine import Machine, booted
from tests.world import World, alive, pids_with, wait_for

ALIVE = "the agent's own processes end, all others live and get no signal"


def each(survive: Callable[[World], None]) -> Callable[[Run], None]:
    """So many times, each in a world of its own."""

    def runs(run: Run) -> None:
        for _ in range(run.times):
            with running(kill={"grace_seconds": 1}) as world:
                with_servers(world)
                survive(world)

    return runs


def kill(world: World, name: str, others: list[int]) -> None:
    """End it: none of its own lives, and none of the others has noticed."""
    agent_id = world.agents()[name]["agent_id"]
    own = {*pids_with("AGENT_WATCHDOG_ID", agent_id)} - {*others}
    world.cli("kill", name)
    assert world.agents()[name]["status"] == "killed"
    assert [pid for pid in own if alive(pid) and pids_with("AGENT_WATCHDOG_ID", agent_id)] == []
    assert all(alive(pid) for pid in others)
    assert [line for pid in others for line in signals_of(world, pid)] == []
    assert not {*others} & world.signalled()


def pid_in(world: World, name: str) -> int:
    """A pid that somebody wrote down."""
    path = world.dir / name
    return int(wait_for(lambda: path.read_text().strip() if path.exists() else None, f"{name} is known"))


JOB = '"$PYTHON" "$WORLD/srv.py"'
SHELL = f"""
ROLE=before {JOB} &
$START
ROLE=after {JOB} &
while :; do wait; sleep 1; done
"""
AGENT = "sh -c 'echo $$ >\"$WORLD/agent\"; sleep 1000 & sleep 1000 & wait'"


def in_a_shells_group(world: World, *, by_run: bool) -> None:
    """A script without job control: everything that it starts is in one group, which it leads."""
    start = f"agent-watchdog run --name a -- {AGENT} &" if by_run else f"{AGENT} &"
    shell = world.spawn("bash", "-c", SHELL.replace("$START", start))
    jobs = [*told(world, "before", 1), *told(world, "after", 1)]
    main = pid_in(world, "agent")
    if not by_run:
        world.cli("register", "--name", "a", "--pid", str(main))
    wait_for(lambda: world.agents().get("a", {}).get("pid") == main, "its pid is known")
    # Without a terminal `run` gives its agent a session of its own.
    assert {os.getpgid(pid) for pid in (*jobs, *([] if by_run else [main]))} == {shell.pid}
    children = [int(pid) for pid in Path(f"/proc/{main}/task/{main}/children").read_text().split()]
    assert len(children) == 2
    kill(world, "a", [shell.pid, *jobs])
    assert not any(alive(pid) for pid in (main, *children))


def two_in_a_group(world: World, *, one_leads: bool) -> None:
    """Two agents with a child each, in the group of a shell that is none, or of the first of them."""
    two = 'sh -c \'echo $$ >"$WORLD/two"; ROLE=of-two "$PYTHON" "$WORLD/srv.py" & wait\' &'
    one = 'echo $BASHPID >"$WORLD/one"; sleep 1000 &'
    script = f"{one} {two} wait" if one_leads else f"({one} wait) & {two} wait"
    leader = world.spawn("bash", "-c", script)
    pids = {name: pid_in(world, name) for name in ("one", "two")}
    child = next(iter(told(world, "of-two", 1)))
    for name, pid in pids.items():
        world.cli("register", "--name", name, "--pid", str(pid))
    assert {os.getpgid(pid) for pid in (*pids.values(), child)} == {leader.pid}
    assert (pids["one"] == leader.pid) == one_leads
    kill(world, "one", [pids["two"], child, *([] if one_leads else [leader.pid])])
    assert world.agents()["two"]["status"] == "running"
    assert not alive(pids["one"])


@contextmanager
def tmux(world: World) -> Iterator[Callable[..., str]]:
    """A tmux server of this world alone; it ends with it."""
    socket = str(world.dir / "tmux")

    def run(*words: str) -> str:
        done = subprocess.run(
            ["tmux", "-f", "/dev/null", "-S", socket, *words],
            capture_output=True,
            text=True,
            timeout=30,
            env={key: value for key, value in world.environ.items() if not key.startswith("TMUX")},
            cwd=world.dir,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    try:
        yield run
    finally:
        subprocess.run(["tmux", "-S", socket, "kill-server"], capture_output=True, timeout=30)


def by_hand_in_a_pane(world: World, *, by_run: bool) -> None:
    """Typed into an interactive shell of a pane; beside it a job of that shell, and another pane."""
    with tmux(world) as run:
        run("new-session", "-d", "-s", "one", "bash --norc --noprofile -i")
        run("new-session", "-d", "-s", "two", f"ROLE=pane {JOB}")
        server = int(run("display-message", "-p", "#{pid}"))
        shell = int(run("display-message", "-p", "-t", "=one:", "#{pane_pid}"))
        run("send-keys", "-t", "=one:", f"ROLE=job {JOB} &", "Enter")
        start = f"agent-watchdog run --name a -- {AGENT}" if by_run else AGENT
        run("send-keys", "-t", "=one:", "-l", f"{start}")
        run("send-keys", "-t", "=one:", "Enter")
        others = [server, shell, *told(world, "job", 1), *told(world, "pane", 1)]
        main = pid_in(world, "agent")
        if not by_run:
            world.cli("register", "--name", "a", "--pid", str(main))
        wait_for(lambda: world.agents().get("a", {}).get("pid") == main, "its pid is known")
        kill(world, "a", others)
        run("send-keys", "-t", "=one:", "echo $$ >$WORLD/prompt", "Enter")
        assert pid_in(world, "prompt") == shell


def started_the_tmux_server(world: World, *, by_run: bool) -> None:
    """The first `tmux` is typed by an agent: the server carries its marker, and so do all panes from then on.

    Also what somebody started in a pane of it, and that has left it.
    """
    with tmux(world) as run:
        command = (
            "sh",
            "-c",
            f"tmux -f /dev/null -S {world.dir}/tmux new-session -d 'ROLE=pane {JOB}'; exec sleep 1000",
        )
        if by_run:
            world.run("a", *command)
        else:
            world.registered("a", *command)
        own_pane = next(iter(told(world, "pane", 1)))
        run("new-window", "-d", f"ROLE=others {JOB}")
        run("new-window", "-d", f"ROLE=left nohup setsid -f {JOB}")
        server = int(run("display-message", "-p", "#{pid}"))
        others = [server, own_pane, *told(world, "others", 1), *told(world, "left", 1)]
        wait_for(lambda: world.agents().get("a", {}).get("pid"), "its pid is known")
        marker = world.agents()["a"]["agent_id"]
        assert {*others} <= {*pids_with("AGENT_WATCHDOG_ID", marker)}
        kill(world, "a", others)


SUICIDE = """
import subprocess, sys, time
for flags in (["--force"], []):
    subprocess.Popen(["sh", "-c", "agent-watchdog kill self --json >answer; echo $? >status"])
time.sleep(1000)
"""


def ends_itself(world: World, *, by_run: bool) -> None:
    """The client runs below the agent whose end it orders, and goes down with it."""
    with world.config.open("a") as config:
        config.write(f'[[hook]]\nname = "note"\ncommand = ["/bin/sh", "-c", "echo ran >> {world.dir}/hook"]\n')
    world.stop()
    world.start()
    if by_run:
        world.run("self", sys.executable, "-c", SUICIDE)
    else:
        world.registered("self", sys.executable, "-c", SUICIDE)
    world.wait_event("agent.ended", name="self")
    story = world.story("self")
    assert story["agent"]["status"] == "killed"
    (request,) = story["requests"]
    assert (request["status"], request["outcome"]["success"]) == ("done", True)
    assert {"kill.requested", "kill.signal_sent", "agent.ended"} <= {e["event"] for e in story["events"]}
    assert (world.dir / "hook").read_text() == "ran\n"
    assert left(world) == []


RETRY = """
trap '$TRAP' TERM
while :; do
    echo start >>"$WORLD/starts"
    sh -c 'trap "exit 1" TERM; sleep 1000 & wait'
done
"""


def retry_wrapper(world: World, *, polite: str, deaf: bool) -> None:
    """A loop that starts its program again whenever that ends; told to end first, or with all others at once."""
    world.stop()
    world.configure(kill={"grace_seconds": 1, "polite": polite})
    world.start()
    world.registered("a", "bash", "-c", RETRY.replace("$TRAP", "" if deaf else "exit 0"))
    starts = world.dir / "starts"
    wait_for(starts.exists, "it has started once")
    world.wait_event("agent.pid_known", name="a")
    kill(world, "a", [])
    count = starts.read_text().count("start")
    assert left(world) == []
    if not deaf and polite == "main_first":
        assert count == 1, "the wrapper started it anew"
    assert starts.read_text().count("start") == count


@contextmanager
def served() -> Iterator[Machine]:
    """A booted systemd with our service and a user with a manager of his own."""
    with booted() as machine:
        service.install(machine)
        service.start(machine)
        machine.add_user("ann", linger=True)
        yield machine


def pids_of(machine: Machine, unit: str, user: str | None = None) -> list[str]:
    """The processes of a unit, of the system or of a user's manager."""
    manager = ("--user",) if user else ()
    show = machine.run("systemctl", *manager, "show", "-P", "ControlGroup", unit, user=user).stdout.strip()
    return sorted(machine.run("cat", f"/sys/fs/cgroup{show}/cgroup.procs").stdout.split())


def in_a_service(run: Run) -> None:
    """A service that starts an agent among other things, in its own cgroup."""
    client = service.BIN / "agent-watchdog"
    script = (
        "sleep 1001 & sh -c 'sleep 1002 & exec sleep 1003' & "
        f"{client} register --name inner --pid $! >/dev/null; sleep 1004 & wait"  # who evaluates it starts its own
    )
    with served() as machine:
        machine.start("others", "sh", "-c", script, user="ann")
        wait_for(lambda: service.agent(machine, "inner"), "the agent is known")
        before = pids_of(machine, "others.service")
        wait_for(lambda: len(pids_of(machine, "others.service")) >= 5, "all have started")
        assert service.client(machine, "kill", "inner")["success"], before
        assert machine.show("others.service", "ActiveState")["ActiveState"] == "active"
        wait_for(lambda: len(pids_of(machine, "others.service")) == 3, "what is not the agent's lives on")
        run.note("service and its other processes live")


def marker_in_the_manager(run: Run) -> None:
    """An agent tells its environment to the user's manager: services that start from then on carry its marker."""
    client = service.BIN / "agent-watchdog"
    ask = (
        "systemctl --user import-environment AGENT_WATCHDOG_ID && "
        "systemctl --user start spread.service && (setsid sleep 1003 &) && exec sleep 1002"
    )
    with served() as machine:
        unit = "[Service]\nExecStart=/bin/sh -c 'sleep 1000 & exec sleep 1001'\n"
        machine.write("/etc/systemd/user/spread.service", unit)
        machine.run("systemctl", "--user", "daemon-reload", user="ann")
        machine.start("agents", client, "run", "--name", "spreader", "--", "sh", "-c", ask, user="ann")
        wait_for(lambda: service.agent(machine, "spreader"), "the agent is known")
        wait_for(lambda: len(pids_of(machine, "spread.service", "ann")) == 2, "the service is up")
        before = pids_of(machine, "spread.service", "ann")
        marker = service.agent(machine, "spreader")
        assert marker is not None
        for pid in before:
            environ = machine.run("cat", f"/proc/{pid}/environ").stdout
            assert f"AGENT_WATCHDOG_ID={marker['agent_id']}" in environ
        assert service.client(machine, "kill", "spreader")["success"]
        assert pids_of(machine, "spread.service", "ann") == before
        told = machine.wait_event("kill.finished")
        run.note(str(told["why"]))
        left_over = machine.run("sh", "-c", "pgrep -f 'sleep 100[23]' || echo none").stdout.split()
        assert left_over == ["none"] or all(pid in before for pid in left_over)


def rows(fault: str, how: str, survive: Callable[..., None], end: str = ALIVE) -> list[Row]:
    """One under `run`, one for an agent that is only registered."""
    return [
        Row(f"{fault}, started by `run`", how, end, each(partial(survive, by_run=True)), runs=20, limit=600),
        Row(f"{fault}, only registered", how, end, each(partial(survive, by_run=False)), runs=20, limit=600),
    ]


SERVICE_LIVES = "the service lives"
ROWS = [
    *rows("agent in a shell's group", "a script starts it between two other jobs", in_a_shells_group),
    *rows("agent by hand in a pane", "typed into the shell of a tmux pane", by_hand_in_a_pane),
    *rows("agent that started the tmux server", "`tmux new-session -d` in the agent", started_the_tmux_server),
    *rows(
        "an agent orders its own end",
        "the client runs in the agent, twice at once",
        ends_itself,
        "the kill completes, is journaled, and its hook runs once",
    ),
    *(
        Row(
            f"two agents in one group, {whose}",
            "the first is ended",
            "only its own processes end",
            each(partial(two_in_a_group, one_leads=leads)),
            runs=20,
            limit=600,
        )
        for leads, whose in ((False, "a shell's"), (True, "the first one's own"))
    ),
    *(
        Row(
            f"retry wrapper that {'ignores' if deaf else 'obeys'} TERM, polite = {polite}",
            "a loop that starts its program again whenever that ends",
            "nobody survives, nothing is started anew",
            each(partial(retry_wrapper, polite=polite, deaf=deaf)),
            runs=10,
            limit=600,
        )
        for deaf, polite in ((False, "main_first"), (False, "all"), (True, "main_first"))
    ),
    Row("agent in a service's cgroup", "a unit starts it, on a booted systemd", SERVICE_LIVES, in_a_service, root=True),
    Row(
        "marker spread by import-environment",
        "`systemctl --user import-environment` in the agent, on a booted systemd",
        SERVICE_LIVES,
        marker_in_the_manager,
        root=True,
    ),
]
