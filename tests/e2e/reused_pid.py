"""Reused pids and wrapped pids: `python -m tests.e2e.reused_pid CASE`, as root of a pid namespace.

Case D1: an agent's pid is reused by a process of the same uid and command line, while the daemon is down (`down`), or
between TERM and KILL (`between`). Case D9: `wrapped`, children with smaller pids than their parent, and hostile names.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from tests.e2e.kill_cases import end, signals_of, told, with_servers
from tests.world import World, alive, make_world, started_at, wait_for

HOOK = """
[[hook]]
name = "note"
command = ["/bin/sh", "-c", "cat >> {file}; echo >> {file}"]
"""


def next_pid(pid: int) -> None:
    """The next process of this namespace gets that pid, if it is free (pid_namespaces(7))."""
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))


def take(world: World, pid: int) -> None:
    """Start a server with that pid: a bystander that records its signals."""
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the number is free")
    for _ in range(200):
        next_pid(pid)
        process = world.spawn(sys.executable, str(world.dir / "srv.py"), ROLE="bystander")
        if process.pid == pid:
            told(world, "bystander", 1)
            return
        process.kill()
        process.wait()
    raise AssertionError(f"no process got pid {pid}")


def an_agent(world: World) -> tuple[int, Path]:
    """A running agent that ends only on KILL; its pid, and the file of its cleanup hook."""
    with_servers(world)
    noted = world.dir / "noted"
    with world.config.open("a") as config:
        config.write(HOOK.format(file=noted))
    world.start()
    agent = world.registered("alpha", sys.executable, str(world.dir / "srv.py"))
    told(world, "servers", 1)
    world.wait_sweeps(1)
    return agent.pid, noted


def closed(world: World, pid: int, noted: Path) -> None:
    """The row is closed, its own cleanup ran once, the bystander with its pid lives and got no signal."""
    world.wait_status("alpha", "failed", "completed", "killed")
    (fact,) = [json.loads(line) for line in noted.read_text().splitlines() if line.strip()]
    assert fact["name"] == "alpha"
    assert alive(pid)
    (request,) = world.story("alpha")["requests"]
    assert "has been reused by another process" in request["outcome"]["message"], request["outcome"]["message"]


def down(world: World) -> None:
    """No daemon runs: the agent exits, and its pid is reused."""
    pid, noted = an_agent(world)
    world.stop()
    end(pid)
    world.started[-1].wait()
    take(world, pid)

    world.start()
    closed(world, pid, noted)

    assert signals_of(world, pid) == []
    assert world.signalled() == set()


def between(world: World) -> None:
    """TERM was sent and grace runs: the agent exits, and its pid is reused before KILL."""
    pid, noted = an_agent(world)
    asked = world.ask("POST", "/v1/kill", {"targets": ["alpha"], "grace_seconds": 8, "wait": False})
    assert asked[0] in (200, 202), asked
    world.wait_event("kill.signal_sent", name="alpha")
    wait_for(lambda: "SIGTERM" in signals_of(world, pid), "TERM was handled")
    had = len(signals_of(world, pid))
    assert world.daemon is not None
    world.daemon.send_signal(signal.SIGSTOP)  # otherwise it sees the exit before the pid is reused
    end(pid)
    world.started[0].wait()
    take(world, pid)
    world.daemon.send_signal(signal.SIGCONT)
    closed(world, pid, noted)
    assert len(signals_of(world, pid)) == had
    assert [e["why"] for e in world.events() if e["event"] == "kill.signal_sent"] == ["SIGTERM to 1 process"]


NAMES = ("sl) R 1 (x", "a\nb) S 1 (", "1 (c) Z 1 1", "))((")
FORKS = r"""
import os, subprocess, sys, time
directory, low = sys.argv[1], int(sys.argv[2])
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(low))
children = [subprocess.Popen(["sleep", "1000"])]
for name in os.listdir(directory):
    children.append(subprocess.Popen([os.path.join(directory, name), "1000"]))
with open(os.environ["WORLD"] + "/children.new", "w") as file:
    file.write(" ".join(str(child.pid) for child in children))
os.rename(os.environ["WORLD"] + "/children.new", os.environ["WORLD"] + "/children")
time.sleep(1000)
"""


def wrapped(world: World) -> None:
    """The pid counter is high when the agent starts, and low when it forks."""
    names = world.dir / "names"
    names.mkdir()
    for name in NAMES:
        shutil.copy("/usr/bin/sleep", names / name)
    world.start()
    older = world.spawn("sleep", "1000")
    next_pid(30000)
    # Marks of ownership are removed: only the parent relation is left.
    status, answer = world.ask("POST", "/v1/agents", {"name": "alpha"})
    assert status == 201
    agent = world.spawn(sys.executable, "-c", FORKS, str(names), "2000")
    assert world.ask("PATCH", f"/v1/agents/{answer['agent_id']}", {"pid": agent.pid})[0] == 200
    path = world.dir / "children"
    children = [int(pid) for pid in wait_for(lambda: path.read_text() if path.exists() else None, "children").split()]
    between_them = world.spawn("sleep", "1000")
    assert agent.pid > between_them.pid > max(children) > older.pid
    comms = {Path(f"/proc/{pid}/comm").read_text()[:-1] for pid in children}
    assert comms == {"sleep", *NAMES}
    world.wait_sweeps(2)
    before = {pid: started_at(pid) for pid in (older.pid, between_them.pid)}

    world.cli("kill", "alpha")

    assert not any(alive(pid) for pid in (agent.pid, *children))
    assert world.signalled() == {agent.pid, *children}
    assert {pid: started_at(pid) for pid in before} == before


def main() -> None:
    case = {"down": down, "between": between, "wrapped": wrapped}[sys.argv[1]]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for world in make_world(stall={"after_seconds": 600}, kill={"grace_seconds": 1}, log={"level": "debug"}):
        case(world)
    print(f"survived {sys.argv[1]}")


if __name__ == "__main__":
    main()
