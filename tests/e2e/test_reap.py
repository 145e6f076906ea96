"""Leftovers of dead agents, and nothing else: found by identity and marker, shown, killed and cleaned up."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.world import BIN, World, alive, git, make_repository, started_at, wait_for

Sleeper = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def sleeper(world: World) -> Iterator[Sleeper]:
    """Starts a process unknown to the daemon, with this marker; all are killed afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def start(marker: str = "", program: str = "sleep") -> subprocess.Popen[bytes]:
        marked = {"AGENT_WATCHDOG_ID": marker} if marker else {}
        path = world.dir / program
        path.unlink(missing_ok=True)
        path.symlink_to("/bin/sleep")  # its name is the program's
        started.append(subprocess.Popen([path, "1000"], env={**world.environ, **marked}))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def ended(world: World, name: str) -> str:
    """An agent that has exited; its id."""
    world.run(name, "true")
    world.wait_status(name, "completed")
    return str(world.story(name)["agent"]["agent_id"])


def reap(world: World, *options: str) -> list[dict[str, Any]]:
    """The result of `reap --json` for agents of this test."""
    found = json.loads(world.cli("reap", "--json", *options, check=False).stdout)["findings"]
    return [one for one in found if one["agent_id"] is not None]


def identity_json(pid: int, like: dict[str, Any]) -> str:
    """A process in the stored form of a kill request."""
    identity = {**like, "pid": pid, "start_ticks": int(started_at(pid) or 0), "pidfd_inode": None}
    rest = {"parent_pid": 1, "uid": os.geteuid(), "name": "sleep", "state": "S", "via": "descent"}
    return json.dumps([{"identity": identity, **rest, "cpu_seconds": 0.0, "rss_bytes": 0}])


def test_only_orphans_found_by_marker_or_identity_are_killed(world: World, sleeper: Sleeper) -> None:
    """Shown first, with the reason. A stranger's, a spared program and a living agent's stay; `kill` does the same."""
    world.start()
    dead, other = ended(world, "dead"), ended(world, "other")
    world.run("living", "sleep", "1000")
    living = world.wait_status("living", "running")
    marked, spared, unknown = sleeper(dead), sleeper(dead, "ssh-agent"), sleeper("f" * 32)
    kin, recorded = sleeper(str(living["agent_id"])), sleeper()
    [(host, boot_id)] = world.sql(f"SELECT host, boot_id FROM agent_lifecycle WHERE agent_id = '{other}'")
    members = identity_json(recorded.pid, {"host": host, "boot_id": boot_id})
    world.sql(f"UPDATE kill_request SET members = '{members}' WHERE agent_id = '{other}'")

    shown = {one["what"].partition("]")[0]: one for one in reap(world, "--dry-run")}
    assert shown[f"sleep[{marked.pid}"]["action"] == "end"
    assert shown[f"sleep[{marked.pid}"]["why"] == "outlived agent dead, which is completed"
    assert shown[f"sleep[{recorded.pid}"]["agent_id"] == other
    assert shown[f"ssh-agent[{spared.pid}"]["action"] == "keep"
    assert not {f"sleep[{unknown.pid}", f"sleep[{kin.pid}"} & shown.keys()
    assert marked.poll() is recorded.poll() is None

    reaped = [one["outcome"] for one in reap(world) if one["action"] == "end"]
    assert reaped == ["done", "done"]
    assert (marked.wait(60), recorded.wait(60)) == (-signal.SIGTERM, -signal.SIGTERM)
    assert spared.poll() is unknown.poll() is kin.poll() is None
    assert alive(int(living["pid"]))
    requests = world.story("dead")["requests"]
    assert [(one["reason"], one["status"]) for one in requests] == [("gone", "done"), ("orphaned", "done")]
    assert world.agents()["dead"]["status"] == "completed"

    again = sleeper(dead)
    told = json.loads(world.cli("kill", "orphans", "--json").stdout)
    assert [one["agent_id"] for one in told["results"]] == [dead]
    assert again.wait(60) == -signal.SIGTERM
    assert spared.poll() is unknown.poll() is kin.poll() is None


def test_observe_mode_and_a_hold_leave_orphans(world: World, sleeper: Sleeper) -> None:
    """The daemon's own round at its start finds them: under a hold on all, or in observe mode, it only reports."""
    world.start()
    dead = ended(world, "dead")
    world.cli("hold", "--reason", "hands off")
    world.stop()
    orphan = sleeper(dead)

    world.start("--observe")
    world.wait_event("reap.found", kind="process", agent_id=dead)
    assert [one["action"] for one in reap(world)] == ["end"]
    world.stop()
    world.start()
    assert "held: hands off" in world.wait_event("reap.found", action="keep", agent_id=dead)["why"]
    assert orphan.poll() is None

    world.cli("unhold")
    world.stop()
    world.start()
    world.wait_event("kill.finished", agent_id=dead)
    assert orphan.wait(60) == -signal.SIGTERM


def test_an_agent_that_died_without_a_daemon_is_cleaned_up(world: World, sleeper: Sleeper) -> None:
    """The daemon is killed, then an agent: the next daemon closes its row, removes its temp dir and its leftovers."""
    world.start()
    world.run("gone", "sh", "-c", "setsid sleep 1000 & exec sleep 1000", options=("--temp-dir", "auto"))
    agent = world.wait_status("gone", "running")
    temp_dir = Path(world.story("gone")["agent"]["temp_dir"])
    past = ended(world, "past")
    world.crash()
    os.kill(int(agent["pid"]), signal.SIGKILL)
    socket = world.runtime / "notify" / past
    socket.touch()
    orphan = sleeper(past)

    world.start()
    world.wait_status("gone", "completed", "failed")
    world.wait_event("kill.finished", agent_id=past)
    wait_for(lambda: not socket.exists(), "our stale socket goes")
    assert orphan.wait(60) == -signal.SIGTERM
    assert not temp_dir.exists()


def test_temp_dirs_of_the_dead_go_after_retention_and_those_of_the_living_stay(world: World) -> None:
    """Case G1, the job's part: one that was left on purpose, marked and recorded; bytes are reported."""
    world.configure(cleanup={"trash_retention_hours": 0.0})
    world.start()
    places = {}
    for name in ("left", "living"):
        world.run(name, "sleep", "1000", options=("--temp-dir", "auto"))
        world.wait_status(name, "running")
        places[name] = Path(world.story(name)["agent"]["temp_dir"])
        (places[name] / "scratch").write_bytes(b"x" * 10_000)
    world.cli("kill", "left", "--no-cleanup")
    assert places["left"].is_dir()

    shown = [one for one in reap(world, "--dry-run") if one["action"] == "remove"]
    assert [one["what"] for one in shown] == [str(places["left"])]
    done = {one["what"]: one for one in reap(world)}[str(places["left"])]
    assert (done["outcome"], done["details"]["bytes"] >= 10_000) == ("done", True)
    assert not places["left"].exists()
    assert (places["living"] / "scratch").exists()
    history = world.sql(f"SELECT event FROM lifecycle_event WHERE agent_id = '{done['agent_id']}' ORDER BY id")
    assert [event for (event,) in history if event.startswith("reap.")] == ["reap.begun", "reap.finished"]


@pytest.mark.faults
def test_a_hook_that_gave_up_is_reported_once_and_tried_again(world: World) -> None:
    """Dead-lettered with one event; when the missing file is there, `reap` runs it, then dependent hooks."""
    there, seen = world.dir / "there", world.dir / "seen"
    hooks = (
        ("board", f"test -e {there}", "retries = 1"),
        ("after", f"echo $AGENT_WATCHDOG_RUN >> {seen}", 'needs = ["board"]'),
        ("always", "exit 0", ""),
    )
    with world.config.open("a") as config:
        for name, script, more in hooks:
            config.write(f'[[hook]]\nname = "{name}"\ncommand = ["/bin/sh", "-c", "{script}"]\n{more}\n')
    world.start()
    agent_id = ended(world, "a")
    assert world.count("cleanup.hook_failed", agent_id=agent_id) == 1
    assert world.count("cleanup.hook_skipped", hook="after") == 1

    [one] = reap(world)
    assert (one["kind"], one["what"], one["outcome"]) == ("hook", "board", "failed")
    there.touch()
    [one] = reap(world)
    assert one["outcome"] == "done"
    assert reap(world) == []
    assert seen.read_text() == f"{agent_id}/after\n"
    assert world.count("cleanup.hook_failed", agent_id=agent_id) == 1
    assert world.count("cleanup.hook_finished", hook="always") == 1


@pytest.mark.faults
def test_a_daemon_killed_while_it_kills_orphans_leaves_no_process_stopped(world: World, sleeper: Sleeper) -> None:
    """SIGKILL after TERM to a deaf orphan: the next daemon withdraws the old order and kills it by a new one."""
    world.configure(kill={"grace_seconds": 3})
    world.start()
    dead = ended(world, "dead")
    deaf = world.spawn("sh", "-c", "trap '' TERM; while :; do sleep 0.2; done", AGENT_WATCHDOG_ID=dead)
    killing = subprocess.Popen([BIN / "agent-watchdog", "kill", "orphans"], env=world.environ)
    world.wait_event("kill.signal_sent", agent_id=dead)
    world.crash()
    killing.wait(60)
    assert deaf.poll() is None

    world.start()
    world.wait_event("kill.finished", agent_id=dead)
    assert deaf.wait(60) == -signal.SIGKILL
    orders = [(one["reason"], one["status"]) for one in world.story("dead")["requests"]]
    assert orders == [("gone", "done"), ("orphaned", "withdrawn"), ("orphaned", "done")]
    assert world.agents()["dead"]["status"] == "completed"


@pytest.mark.faults
@pytest.mark.parametrize("worked_in", [False, True])
def test_a_worktree_that_was_in_use_is_cleaned_up_a_day_later(world: World, worked_in: bool) -> None:
    """The process leaves: the daemon's own round of the next day moves it. Changed, or used by an agent: it stays."""
    world.start()
    repository, tree = make_repository(world.dir / "repo"), world.dir / "tree"
    git(repository, "worktree", "add", "-q", str(tree))
    sitter = subprocess.Popen(["sleep", "1000"], cwd=tree)
    world.run("a", "true", options=("--worktree", str(tree)))
    world.wait_status("a", "completed")
    kept = world.wait_event("cleanup.hook_finished", hook="worktree", outcome="kept")
    assert f"in use: process {sitter.pid}" in kept["message"]
    if worked_in:
        (tree / "note").touch()
        (tree / "note").unlink()

    world.stop()
    world.start()  # no day later
    world.cli("status")
    world.stop()
    world.sql("UPDATE cleanup_run SET finished_at = datetime(finished_at, '-25 hours')")
    sitter.kill()
    sitter.wait()
    world.start()

    told = world.wait_event("reap.finished", kind="hook", what="worktree")
    assert ("it was in use, and was changed since" in told["message"]) == worked_in, told
    assert tree.exists() == worked_in
    assert reap(world) == []
    assert world.count("reap.finished", kind="hook") == 1
    assert sum("worktree: kept: " in event["why"] for event in world.story("a")["events"]) == 1 + worked_in


@pytest.mark.faults
def test_reap_by_hand_moves_a_worktree_that_was_in_use_at_once(world: World) -> None:
    """`--dry-run` shows it with the reason; it stays while a process is in it, and for ever if another agent had it."""
    world.start()
    repository = make_repository(world.dir / "repo")
    trees = [world.dir / "one", world.dir / "two"]
    sitters = []
    for tree in trees:
        git(repository, "worktree", "add", "-q", str(tree))
        sitters.append(subprocess.Popen(["sleep", "1000"], cwd=tree))
        world.run(tree.name, "true", options=("--worktree", str(tree)))
        world.wait_status(tree.name, "completed")
    [one, two] = sorted(reap(world), key=lambda found: str(found["name"]))
    assert ["in use: process" in found["message"] for found in (one, two)] == [True, True]
    world.run("later", "sleep", "1000", options=("--worktree", str(trees[1])))
    world.wait_status("later", "running")
    world.cli("stop", "later")
    for sitter in sitters:
        sitter.kill()
        sitter.wait()

    [shown] = reap(world, "--dry-run")
    assert (shown["name"], shown["action"]) == ("one", "run")
    assert [found["outcome"] for found in reap(world)] == ["done"]
    assert (trees[0].exists(), trees[1].exists()) == (False, True)
    assert "worktree: done: moved" in str(world.story("one")["events"])
