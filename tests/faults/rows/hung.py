"""Files of processes whose read hangs: whatever file it is, the others are watched, killed and cleaned up on time."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.hung import FILES, hanging
from tests.faults.private import running
from tests.faults.table import Row, Run
from tests.world import PATIENCE, World, alive, wait_for

CROWD = 200
BY_HAND = ("task",)  # of the first thread: task/PID/stat


def started(world: World) -> dict[str, int]:
    """Three agents that beat once or never; the pid of each."""
    for name in ("hangs", "bystander"):
        world.registered(name, "sleep", "1000", stall_after_seconds=3600)
    world.registered("stalls", *world.script("agent.py", "beat=0.2/3", "sleep"), stall_after_seconds=4)
    world.wait_event("agent.first_beat", name="stalls")
    world.wait_sweeps(2)
    return {name: agent["pid"] for name, agent in world.agents().items()}


def others_are_served(run: Run, world: World) -> None:
    """Sweeps come, a bystander is killed, a stall is found; the figures go to the table."""
    began = time.monotonic()
    world.wait_sweeps(3)
    run.within(time.monotonic() - began, 3, "for three sweeps")
    began = time.monotonic()
    done = world.cli("kill", "bystander", "--force", check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    run.within(time.monotonic() - began, 3, "for a kill")
    stalled = world.wait_status("stalls", "killed")
    assert "silent for" in stalled["why"], stalled


def obeys(run: Run, world: World) -> None:
    """SIGTERM ends the daemon."""
    began = time.monotonic()
    assert world.stop() == 0
    run.within(time.monotonic() - began, 3, "for SIGTERM")


def is_unknown(world: World, name: str) -> dict[str, Any]:
    """Neither dead nor stale."""

    def look() -> dict[str, Any] | None:
        agent = world.agents()[name]
        assert agent["status"] == "running", agent
        return agent if agent["verdict"] == "unknown" else None

    return wait_for(look, f"{name} is unknown")


def one(run: Run, file: str) -> None:
    """One agent's main process, one of its files."""
    for _ in range(run.times):
        with hanging(log={"level": "debug"}) as (world, hung):
            pids = started(world)
            hung.hang([pids["hangs"]], [f"task/{pids['hangs']}/stat" if file in BY_HAND else file])
            others_are_served(run, world)
            assert world.agents()["hangs"]["status"] == "running"
            assert alive(pids["hangs"])
            world.cli("kill", "hangs")
            assert world.agents()["hangs"]["status"] == "killed"
            assert not alive(pids["hangs"])
            obeys(run, world)


def reported(run: Run) -> None:
    """Once, in log, status, doctor and metric; and when it returns."""
    for _ in range(run.times):
        with hanging(log={"level": "debug"}) as (world, hung):
            pid = started(world)["hangs"]
            hung.hang([pid])
            world.cli("kill", "bystander")  # takes a scan
            is_unknown(world, "hangs")
            event = world.wait_event("process.unreadable", pid=pid)
            assert (event["file"], event["uid"]) == (f"/proc/{pid}/stat", 0)
            said = world.json("status")["unreadable"]
            assert said == [{"pid": pid, "file": f"/proc/{pid}/stat", "uid": 0, "agent": "hangs"}]
            assert f"reading /proc/{pid}/stat hangs" in world.cli("why", "hangs").stdout
            assert f"reads of files of uid 0 hang (/proc/{pid}/stat): process {pid}" in world.cli("status").stdout
            assert f"process {pid}" in world.cli("doctor", check=False).stdout
            assert "agent_watchdog_unreadable_processes 1.0" in _metrics(world)
            world.wait_sweeps(5)
            assert world.count("process.unreadable") == 1
            hung.release([pid])
            world.wait_status("stalls", "killed")  # another scan
            world.wait_event("process.readable", pid=pid)
            wait_for(lambda: world.agents()["hangs"]["verdict"] == "starting", "it can be read again")
            assert "agent_watchdog_unreadable_processes 0.0" in _metrics(world)


def many(run: Run) -> None:
    """So many of one user at once, and later one more that is to be registered."""
    for _ in range(run.times):
        with hanging(log={"level": "debug"}) as (world, hung):
            pids = started(world)
            crowd = [world.spawn("sleep", "1000").pid for _ in range(CROWD - 1)]
            hung.hang([pids["hangs"], *crowd])
            others_are_served(run, world)
            of_crowd = {pids["hangs"], *crowd}
            wait_for(partial(_are_reported, world, of_crowd), f"{CROWD} are reported")
            is_unknown(world, "hangs")
            began = time.monotonic()
            world.registered("another", "sleep", "1000")
            run.within(time.monotonic() - began, 1, "for a registration")
            world.cli("kill", "another", "hangs")
            obeys(run, world)


def refused(run: Run) -> None:
    """A registration of it, at once; others' registrations go on."""
    for _ in range(run.times):
        with hanging() as (world, hung):
            pid = world.spawn("sleep", "1000").pid
            hung.hang([pid])
            began = time.monotonic()
            status, answer = world.ask("POST", "/v1/agents", {"name": "hung", "pid": pid})
            assert (status, answer["error"]) == (503, "unknown"), answer
            assert "cannot be read now" in answer["message"]
            run.within(time.monotonic() - began, 1, "until it is refused")
            hung.release([pid])
            register = partial(world.ask, "POST", "/v1/agents", {"name": "hung", "pid": pid})
            wait_for(partial(_is_taken, register), "it can be read again")


def never_read(run: Run) -> None:
    """A child of the agent that hung before a scan read it: nothing says whose it is, so nothing is sent to it."""
    for _ in range(run.times):
        with hanging(log={"level": "debug"}, kill={"grace_seconds": 0, "verify_seconds": 2}) as (world, hung):
            code = "import subprocess; subprocess.Popen(['sleep', '1000']); open('up', 'w').close(); input()"
            world.wait_sweeps(2)
            process = _held(world, code)
            wait_for((world.dir / "up").exists, "its child is there")
            child = wait_for(partial(_child_of, process.pid), "the child")
            hung.hang([child])
            status, answer = world.ask("POST", "/v1/agents", {"name": "parent", "pid": process.pid})
            assert status == 201, answer
            world.cli("kill", "parent", "--force", check=False)
            event = world.wait_event("kill.unkillable")
            assert event["why"].startswith("unreadable"), event
            assert alive(child)
            assert not alive(process.pid)
            hung.release([child])
            world.wait_status("parent", "killed")
            assert not alive(child)
            process.communicate(timeout=PATIENCE)


def reader_lost(run: Run, sig: signal.Signals) -> None:
    """The child that reads is killed or stopped: another takes its place."""
    for _ in range(run.times):
        with running(log={"level": "debug"}) as world:
            started(world)
            assert world.daemon is not None
            former = _reader_of(world.daemon.pid)
            os.kill(former, sig)
            done = world.cli("kill", "bystander", "--force", check=False)
            assert done.returncode == 0, f"{done.stdout}{done.stderr}"
            assert "silent for" in world.wait_status("stalls", "killed")["why"]
            wait_for(partial(_is_another, world.daemon.pid, former), "another reader")
            obeys(run, world)


def _reader_of(daemon: int) -> int:
    for pid in _children_of(daemon):
        if b"reader_main" in Path(f"/proc/{pid}/cmdline").read_bytes() and alive(pid):
            return pid
    return 0


def _is_another(daemon: int, former: int) -> bool:
    return _reader_of(daemon) not in (0, former)


def _is_taken(register: Callable[[], tuple[int, object]]) -> bool:
    return register()[0] == 201


def _are_reported(world: World, pids: set[int]) -> bool:
    return pids <= {one["pid"] for one in world.json("status")["unreadable"]}


def _held(world: World, code: str) -> subprocess.Popen[bytes]:
    """A process that waits for its standard input."""
    process = subprocess.Popen(
        ["python3", "-c", code], stdin=subprocess.PIPE, cwd=world.dir, env=world.environ, start_new_session=True
    )
    world.started.append(process)
    return process


def _children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _child_of(pid: int) -> int | None:
    return next(iter(_children_of(pid)), None)


def _metrics(world: World) -> str:
    """As `curl --unix-socket` shows them."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(PATIENCE)
        asking.connect(world.socket)
        asking.sendall(b"GET /v1/metrics HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: asking.recv(65536), b"")).decode()


ROWS = [
    *(
        Row(
            f"a read of /proc/PID/{file} of an agent hangs for ever",
            "a FIFO is bound over it in the daemon's mount namespace",
            "sweeps come on time, a bystander is killed, a stall found; the agent goes on, and is killed by its pidfd;"
            " TERM is obeyed",
            partial(one, file=file),
            alike=True,
            root=True,
        )
        for file in (*FILES, *BY_HAND)
    ),
    Row(
        "a process that hangs is reported once",
        "a FIFO is bound over its stat, later taken away",
        "log, status, doctor and metric name it; its agent is neither dead nor stale; then it is judged again",
        reported,
        root=True,
    ),
    Row(
        f"{CROWD} processes hang at once",
        "FIFOs over their stat lines",
        "as with one; and an agent that comes later is registered",
        many,
        root=True,
    ),
    Row(
        "a process that hangs is to be registered",
        "a FIFO over its stat",
        "refused at once, to be tried again; then it can be",
        refused,
        root=True,
    ),
    *(
        Row(
            f"the daemon's reader gets {sig.name}",
            "sent to the child that reads files of processes, right before a kill",
            "another reads; the kill is done, a stall found, TERM obeyed",
            partial(reader_lost, sig=sig),
        )
        for sig in (signal.SIGKILL, signal.SIGSTOP)
    ),
    Row(
        "a child that hung before any scan read it",
        "a FIFO over its stat before its parent is registered; kill --force",
        "unkillable (unreadable), nothing sent to it; killed once it can be read",
        never_read,
        root=True,
    ),
]
