"""An orchestrator that only knows SQL, and real processes that beat by UPDATE: judged, killed and written back."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.owner.sources.orchestrator import Orchestrator
from tests.scripted_agents import orchestrated
from tests.world import World, alive, started_at, wait_for


def orchestrated_world(world: World, after: float = 2.0, *, wal: bool = False) -> Orchestrator:
    """A registry of its own, and a daemon that has it as a source."""
    made = Orchestrator(world.dir / "data", wal=wal)
    with world.config.open("a") as config:
        config.write(f'[[source]]\nkind = "orchestrator_db"\npath = "{made.path}"\nafter_seconds = {after}\n')
    return made


def agent(world: World, made: Orchestrator, agent_id: str, *options: str) -> subprocess.Popen[bytes]:
    """Its process, and the row that the orchestrator inserts for it."""
    command = [sys.executable, str(orchestrated.__file__), str(made.path), agent_id, *options]
    process = world.spawn(*command)
    row: dict[str, Any] = {
        "agent_type": "code-developer",
        "task_id": f"task-{agent_id}",
        "created_at": ...,
        "last_heartbeat": ...,
    }
    made.insert(agent_id=agent_id, status="running", pid=process.pid, **row)
    made.insert("orchestrator_task", task_id=f"task-{agent_id}", status="running")
    return process


def shown(world: World) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in world.ask("GET", "/v1/agents")[1]["agents"]}


@pytest.mark.faults
def test_an_agent_that_stops_beating_is_killed_and_its_row_and_task_say_so(world: World) -> None:
    """A beating one lives, and only its beats change its row; only the agent writes `last_heartbeat`."""
    made = orchestrated_world(world)
    lives = agent(world, made, "lives", "beat=0.3")
    silent = agent(world, made, "silent", "beat=0.3", "beats=2", "deaf")
    world.start()
    wait_for(lambda: {"lives", "silent"} <= shown(world).keys(), "both are known")
    now = shown(world)["lives"]
    assert (now["source"], now["type"], now["task_id"], now["promised"]) == (
        "orchestrator_db",
        "code-developer",
        "task-lives",
        True,
    )
    wait_for(lambda: made.agent("silent")["status"] == "killed", "its row is closed")
    assert not alive(silent.pid)
    row, task = made.agent("silent"), made.task("task-silent")
    assert row["last_heartbeat"].endswith(" 2")
    assert row["exit_code"] == -9 and row["completed_at"]
    assert row["error_message"].startswith("Agent killed: ")
    assert (task["status"], task["error_message"]) == ("failed", row["error_message"])
    assert alive(lives.pid)
    assert made.agent("lives")["status"] == made.task("task-lives")["status"] == "running"
    world.wait_event("agent.ended", name="silent")
    (ran,) = [run for run in world.story("silent")["cleanup"] if run["hook"] == "registry_entry"]
    assert (ran["status"], ran["message"]) == (
        "done",
        "orchestrator_db silent: status killed, task task-silent failed",
    )


@pytest.mark.faults
@pytest.mark.parametrize(
    ("wal", "stop"),
    [(False, "inside"), (True, "inside"), (False, "commit")],
    ids=["rollback journal", "WAL", "within COMMIT"],
)
def test_a_writer_stopped_inside_its_transaction_is_killed_and_no_other(world: World, wal: bool, stop: str) -> None:
    """No agent can beat while it holds the lock, nor read within COMMIT; when it is dead they can, and continue."""
    made = orchestrated_world(world, after=4.0 if stop == "commit" else 2.0, wal=wal)
    lives = agent(world, made, "lives", "beat=0.3")
    stopped = agent(world, made, "stopped", "beat=0.3", "beats=12", f"stop={stop}")
    world.start()
    wait_for(lambda: {"lives", "stopped"} <= shown(world).keys(), "both are known")
    wait_for(lambda: not alive(stopped.pid), "it is ended")
    wait_for(lambda: made.agent("stopped")["status"] == "killed", "its row is closed")
    before = made.agent("lives")["last_heartbeat"]
    wait_for(lambda: made.agent("lives")["last_heartbeat"] != before, "the other beats on")
    assert alive(lives.pid) and made.agent("lives")["status"] == "running"
    assert world.signalled() == {stopped.pid}


def test_leftovers_of_an_orchestrator_are_closed_without_a_signal(world: World) -> None:
    """A pid that is gone, a reused one, and a thread's ident, which is shown."""
    made = orchestrated_world(world)
    innocent = world.spawn("sleep", "300")
    gone = world.spawn("true")
    gone.wait()
    for agent_id, pid in (("gone", gone.pid), ("reused", innocent.pid)):
        made.insert(agent_id=agent_id, status="running", pid=pid, created_at="2020-01-02 03:04:05")
    made.insert(agent_id="thread", status="running", pid=140_243_000_000_000, created_at=...)
    world.start()
    for agent_id in ("gone", "reused"):
        wait_for(lambda agent_id=agent_id: made.agent(agent_id)["status"] == "failed", agent_id)  # type: ignore[misc]
        assert made.agent(agent_id)["error_message"].startswith("Agent lost: ")
    assert shown(world).keys() == {"thread"}
    assert shown(world)["thread"]["status"] == "unwatched"
    assert made.agent("thread")["status"] == "running"
    assert alive(innocent.pid)
    wait_for(lambda: world.count("source.ghost") == 2, "both are told")
    assert world.signalled() == set()


@pytest.mark.faults
def test_the_next_daemon_knows_the_entry_and_closes_it(world: World) -> None:
    """It stays the same agent; and when it exits by itself it is closed with its exit status."""
    made = orchestrated_world(world, after=60)
    process = agent(world, made, "one", "beat=0.3")
    world.start()
    first = wait_for(lambda: shown(world).get("one"), "it is known")
    world.stop()
    world.start()
    world.wait_event("agent.registered", agent_id=first["agent_id"])
    assert shown(world)["one"]["agent_id"] == first["agent_id"]
    process.kill()
    process.wait()
    wait_for(lambda: made.agent("one")["status"] == "failed", "its row is closed")
    assert world.count("agent.registered") == 1


@pytest.mark.faults
def test_a_removed_row_leaves_its_agent_alone(world: World) -> None:
    """It cannot beat any more: that is reported, and its silence does not count."""
    made = orchestrated_world(world, after=1.5)
    process = agent(world, made, "one", "beat=0.3")
    world.start()
    wait_for(lambda: shown(world).get("one"), "it is known")
    made.sql("DELETE FROM agent_lifecycle")
    world.wait_event("source.entry_gone", name="one")
    wait_for(lambda: not shown(world)["one"]["promised"], "it promises nothing")
    wait_for(lambda: shown(world)["one"]["silence_seconds"] > 4, "it is silent for long")
    assert alive(process.pid) and world.signalled() == set()


@pytest.mark.faults
def test_a_row_without_a_start_time_is_reported_and_killed_only_on_request(world: World) -> None:
    """Its pid may have been reused. Its task is passed on, where the configuration says so."""
    world.configure(kill={"task_status": "ready_for_retry"})
    made = orchestrated_world(world, after=1.5)
    process = world.spawn("sleep", "300")
    made.insert(agent_id="one", status="running", pid=process.pid, last_heartbeat="long ago", task_id="task")
    made.insert("orchestrator_task", task_id="task", status="running")
    world.start()
    wait_for(lambda: shown(world).get("one"), "it is known")
    wait_for(lambda: shown(world)["one"]["silence_seconds"] > 4, "it is silent for long")
    assert alive(process.pid) and world.signalled() == set()
    world.cli("kill", "one")
    assert not alive(process.pid)
    wait_for(lambda: made.agent("one")["status"] == "killed", "its row is closed")
    assert (made.task("task")["status"], made.task("task")["completed_at"]) == ("ready_for_retry", None)


@pytest.mark.skipif(os.getuid() != 0, reason="only root has other people's processes")
def test_a_file_counts_only_for_its_owner(world: World) -> None:
    """Root's daemon reads it as that user; a row that names a process of root or of another user has no effect."""
    made = Orchestrator(world.dir / "data")
    for path in (made.path.parent, made.path, made.status):
        os.chown(path, 65534, 65534)
    world.dir.chmod(0o755)
    with world.config.open("a") as config:
        config.write(f'[[source]]\nkind = "orchestrator_db"\npath = "{made.path}"\nuser = "nobody"\n')
    roots = world.spawn("sleep", "300")
    his = world.spawn("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sleep", "300")
    for agent_id, pid in (("roots", roots.pid), ("his", his.pid)):
        made.insert(agent_id=agent_id, status="running", pid=pid, created_at=..., last_heartbeat=...)
    world.start()
    assert world.ask("POST", "/v1/agents", {"name": "ours", "pid": roots.pid})[0] == 201
    wait_for(lambda: shown(world).get("his"), "his own is known")
    made.sql("UPDATE agent_lifecycle SET last_heartbeat = 'another'")
    wait_for(lambda: shown(world)["his"]["beats"] > 1, "his beat is heard")
    assert "roots" not in shown(world)
    assert (shown(world)["ours"]["beats"], shown(world)["ours"]["promised"]) == (0, False)
    assert shown(world)["his"]["owner_uid"] == 65534
    his.kill()
    his.wait()
    wait_for(lambda: made.agent("his")["status"] == "failed", "closed as he would")
    assert Path(made.path).stat().st_uid == 65534
    assert made.agent("roots")["status"] == "running"
    assert started_at(roots.pid)
    wait_for(lambda: set(world.agents(all_=False)) == {"ours"}, "its own row is closed last")


@pytest.mark.faults
def test_a_process_that_is_older_than_a_row_is_not_its_agent(world: World) -> None:
    """Cases Q4 and P16: a row from a container, and an invented one, name the user's own processes."""
    made = orchestrated_world(world)
    strangers = {name: world.spawn("sleep", "1000") for name in ("container", "shell")}
    wait_for(lambda: all(age_of(one.pid) > 11 for one in strangers.values()), "they have been there for a while")
    world.start()
    made.insert(
        agent_id="container", status="running", pid=strangers["container"].pid, started_at=..., last_heartbeat=...
    )
    made.insert(agent_id=":", status="running", pid=strangers["shell"].pid)
    lives = agent(world, made, "lives", "beat=0.3")
    for name in ("container", ":"):
        event = world.wait_event("source.drift", name=name)
        assert "older than its row" in event["why"] or "before its row came" in event["why"]
    wait_for(
        lambda: shown(world).get("lives", {}).get("verdict") == "healthy", "the one that came with its row is known"
    )
    world.cli("kill", "all", check=False)
    wait_for(lambda: not alive(lives.pid), "it alone is ended")
    assert all(alive(one.pid) for one in strangers.values())
    assert made.agent("container")["status"] == made.agent(":")["status"] == "running"


@pytest.mark.faults
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a pid namespace")
def test_a_pid_that_a_container_has_too_belongs_to_no_agent(world: World) -> None:
    """Case Q4 without a start time: a status file in a container's volume names a pid that the host has as well."""
    made = orchestrated_world(world)
    number = world.spawn("sleep", "1000").pid
    give = f"echo {number - 1} > /proc/sys/kernel/ns_last_pid; sleep 1000 & wait"
    world.spawn("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", give)
    wait_for(lambda: has_number_inside(number), "a process of the container has that number there")
    world.start()
    write = {"agent_type": "architect", "state": "working", "pid": number}
    stamp = datetime.now().isoformat()
    (made.status / "architect_status.json").write_text(json.dumps({**write, "last_heartbeat": stamp}))
    wait_for(lambda: f"architect-{number}" in shown(world), "it is shown")
    assert shown(world)[f"architect-{number}"]["status"] == "unwatched"


@pytest.mark.faults
def test_a_heartbeat_from_before_its_process_does_not_count(world: World) -> None:
    """Case Q6: the row of an earlier run, with a new pid. It starts, and has the start limit for its first beat."""
    made = orchestrated_world(world, after=1.0)
    world.start()
    process = world.spawn("sleep", "1000")
    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S")
    made.insert(agent_id="again", status="running", pid=process.pid, started_at=..., last_heartbeat=hour_ago)
    wait_for(lambda: shown(world).get("again", {}).get("verdict") == "starting", "it is known, and starts")
    wait_for(lambda: shown(world)["again"]["silence_seconds"] > 4, "it is silent for four limits")
    assert shown(world)["again"]["verdict"] == "starting"
    assert not world.count("kill.requested")
    made.sql("UPDATE agent_lifecycle SET last_heartbeat = CURRENT_TIMESTAMP")
    world.wait_event("kill.requested", name="again", reason="stalled")


HALVES = {"half": '{"agent_type": "architect", "pi', "empty": "", "list": "[1, 2, 3]"}


@pytest.mark.faults
@pytest.mark.parametrize("damage", HALVES)
def test_an_agent_that_beats_in_a_damaged_file_is_unknown_until_it_is_whole(world: World, damage: str) -> None:
    """Case P2: a row without a heartbeat of its own, and an agent that only has a file. Reported once, judged again."""
    made = orchestrated_world(world, after=1.5)
    files = {kind: made.status / f"{kind}_status.json" for kind in ("architect", "assistant")}
    processes = {}
    for kind, file in files.items():
        processes[kind] = world.spawn("sleep", "1000")
        write_file(file, kind, processes[kind].pid)
    made.insert(
        agent_id="row", agent_type="architect", status="running", pid=processes["architect"].pid, created_at=...
    )
    world.start()
    names = {"row", f"assistant-{processes['assistant'].pid}"}
    wait_for(lambda: names <= shown(world).keys(), "both are known")
    for kind, file in files.items():
        write_file(file, kind, processes[kind].pid)
    wait_for(lambda: all(shown(world)[name]["promised"] for name in names), "both have beaten")

    for file in files.values():
        file.write_text(HALVES[damage])
    wait_for(lambda: all(shown(world)[name]["silence_seconds"] > 5 for name in names), "they are not heard for long")
    assert {shown(world)[name]["verdict"] for name in names} == {"unknown"}
    assert all(alive(one.pid) for one in processes.values()) and world.signalled() == set()
    assert [event["source"] for event in world.events() if event["event"] == "source.unread"] == ["orchestrator_db"]
    assert not world.count("source.entry_gone")

    for kind, file in files.items():
        write_file(file, kind, processes[kind].pid)
    wait_for(lambda: {shown(world)[name]["verdict"] for name in names} == {"healthy"}, "both are heard again")
    for name in names:
        world.wait_event("kill.requested", name=name, reason="stalled")


def write_file(file: Path, kind: str, pid: int) -> None:
    stamp = datetime.now().isoformat()
    write = {"agent_type": kind, "state": "working", "pid": pid, "last_heartbeat": stamp}
    file.write_text(json.dumps(write))


@pytest.mark.faults
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to mount a file system that can be filled")
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_agents_that_cannot_beat_because_of_a_full_disk_are_unknown_meanwhile(world: World, fault: str) -> None:
    """Case P3: they were held as a mass stall, and all killed when that was over."""
    place = world.dir / "data"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(place)], check=True)
    try:
        world.configure(hold={"max_seconds": 2})
        made = orchestrated_world(world, after=1.5)
        agents = {f"a{number}": agent(world, made, f"a{number}", "beat=0.3") for number in range(4)}
        world.start()
        wait_for(lambda: agents.keys() <= shown(world).keys(), "all are known")
        wait_for(lambda: all(shown(world)[name]["beats"] > 2 for name in agents), "all beat")
        if fault == "full":
            with suppress(OSError):
                (place / "filler").write_bytes(b"x" * (1 << 20))
        else:
            # Not the file system itself: each agent has the file open for writing (EBUSY), but opens it again to beat.
            subprocess.run(["mount", "--bind", str(place), str(place)], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        wait_for(lambda: all(shown(world)[name]["silence_seconds"] > 7 for name in agents), "they are not heard")
        assert {shown(world)[name]["verdict"] for name in agents} == {"unknown"}
        assert all(alive(one.pid) for one in agents.values()) and world.signalled() == set()
        world.wait_event("source.unread", source="orchestrator_db")
        assert world.count("source.unread") == 1
        if fault == "full":
            (place / "filler").unlink()
        else:
            subprocess.run(["umount", "-l", str(place)], check=True)
        wait_for(lambda: {shown(world)[name]["verdict"] for name in agents} == {"healthy"}, "they are heard again")
        for one in agents.values():
            one.kill()
            one.wait()
        wait_for(lambda: {made.agent(name)["status"] for name in agents} == {"failed"}, "their rows are closed")
        world.stop()
    finally:
        while subprocess.run(["umount", "-l", str(place)], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            pass


def age_of(pid: int) -> float:
    """Seconds since it began."""
    with open("/proc/uptime") as file:
        return float(file.read().split()[0]) - int(started_at(pid) or 0) / os.sysconf("SC_CLK_TCK")


def has_number_inside(number: int) -> bool:
    """Whether a process below has that pid in its own namespace."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            lines = Path(f"/proc/{name}/status").read_text().splitlines()
            numbers = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
            if len(numbers) > 1 and numbers[-1] == str(number):
                return True
    return False
