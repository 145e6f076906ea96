"""The main job, end to end: a real agent falls silent, is killed with its tree, and cleaned up."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.world import BIN, World, alive, git, make_repository, pids_with, wait_for


def test_a_silent_agent_is_killed_whole_and_cleaned_up(world: World) -> None:
    """Beats, silence, confirmation, TERM, KILL, temp dir, worktree, task, and our row last; `why` shows it all."""
    repository = make_repository(world.dir / "repo")
    tree = world.dir / "wt-alpha"
    git(repository, "worktree", "add", "-q", str(tree), "-b", "alpha-work")
    git(repository, "branch", "alpha-merged", "alpha-work")
    world.start()
    world.run(
        "alpha",
        *world.script("stubborn.sh", "hush"),
        options=("--stall-after", "3s", "--task", "T-1", "--worktree", "wt-alpha", "--temp-dir", "auto"),
    )
    agent = world.wait_status("alpha", "running")
    temp_dir = Path(world.json("why", "alpha")["agent"]["temp_dir"])
    assert temp_dir.is_dir()
    wait_for(lambda: len(pids_with("AGENT_WATCHDOG_ID", agent["agent_id"])) >= 4, "wrapper, child and grandchild live")
    processes = pids_with("AGENT_WATCHDOG_ID", agent["agent_id"])
    assert any(os.getsid(pid) == pid for pid in processes), "one has a session of its own"
    world.wait_event("agent.first_beat", name="alpha")
    (world.dir / "hush").touch()

    ended = world.wait_status("alpha", "killed")

    assert agent["agent_id"] == ended["agent_id"]
    assert not any(alive(pid) for pid in processes)
    assert not pids_with("AGENT_WATCHDOG_ID", agent["agent_id"])
    assert not temp_dir.exists()
    assert not tree.exists(), world.cli("why", "alpha").stdout
    assert str(tree) not in git(repository, "worktree", "list")
    assert "alpha-work" in git(repository, "branch", "--list", "alpha-work")
    trash = list((repository / ".git" / "agent-watchdog" / "trash").glob("*/tree/README"))
    assert len(trash) == 1
    assert trash[0].read_text() == "hello\n"

    story = world.json("why", "alpha")
    names = [event["event"] for event in story["events"]]
    for earlier, later in (
        ("agent.registered", "agent.late"),
        ("agent.late", "agent.stalled"),
        ("agent.stalled", "kill.requested"),
        ("kill.requested", "agent.ending"),
        ("agent.ending", "kill.signal_sent"),
        ("kill.signal_sent", "cleanup.hook_finished"),
        ("cleanup.hook_finished", "agent.ended"),
    ):
        assert names.index(earlier) < names.index(later), names
    assert names.count("agent.stalled") == 1
    text = world.cli("why", "alpha").stdout
    for word in ("silent for", "SIGTERM", "SIGKILL", "temp_dir", "worktree", "T-1", "before the first signal", "MiB"):
        assert word in text, text


def test_a_dirty_worktree_is_kept_and_reported(world: World) -> None:
    """Uncommitted work stays where it is, registered, whatever happened to its agent."""
    repository = make_repository(world.dir / "repo")
    tree = world.dir / "wt-beta"
    git(repository, "worktree", "add", "-q", str(tree), "-b", "beta-work")
    (tree / "new.txt").write_text("hours of work\n")
    world.start()
    world.run("beta", *world.script("agent.py", "beat=0.3/4", "deaf"), options=("--worktree", str(tree)))

    world.wait_status("beta", "killed")

    assert (tree / "new.txt").read_text() == "hours of work\n"
    assert str(tree) in git(repository, "worktree", "list")
    kept = world.wait_event("cleanup.hook_finished", name="beta", hook="worktree")
    assert kept["outcome"] == "kept"
    assert "new.txt" in kept["message"] or "untracked" in kept["message"]
    assert f"  do: see what its worktree still holds: git -C {tree} status;" in world.cli("why", "beta").stdout


def test_a_shared_worktree_goes_with_its_last_agent(world: World) -> None:
    """The end of the first one leaves it to the other."""
    repository = make_repository(world.dir / "repo")
    tree = world.dir / "wt-both"
    git(repository, "worktree", "add", "-q", str(tree), "-b", "both")
    world.start()
    stays = world.run("stays", *world.script("agent.py", "beat=0.3"), options=("--worktree", str(tree)))
    world.wait_status("stays", "running")
    world.run("goes", "/bin/true", options=("--worktree", str(tree)))

    kept = world.wait_event("cleanup.hook_finished", name="goes", hook="worktree")
    assert kept["outcome"] == "kept"
    assert "another living agent, stays (" in kept["message"]
    assert tree.is_dir()
    assert stays.poll() is None

    world.json("kill", "stays")
    gone = world.wait_event("cleanup.hook_finished", name="stays", hook="worktree")
    assert gone["outcome"] == "done", gone
    assert not tree.exists()


@pytest.mark.parametrize(
    ("ending", "status", "code", "number"),
    [("exit=0", "completed", 0, None), ("exit=3", "failed", 3, None), ("sleep", "failed", None, 9)],
)
def test_an_exit_is_found_without_a_sweep(
    world: World, ending: str, status: str, code: int | None, number: int | None
) -> None:
    """Exit 0, exit 3, and SIGKILL by another process: found by pidfd, recorded, cleaned up, without a signal."""
    world.configure(sweep={"interval_seconds": 300}, stall={"after_seconds": 600})
    world.start()
    world.run("gamma", *world.script("agent.py", "for=go", ending), options=("--temp-dir", "auto"))
    agent = world.wait_status("gamma", "running")
    temp_dir = Path(world.json("why", "gamma")["agent"]["temp_dir"])
    if number is not None:
        os.kill(agent["pid"], signal.SIGKILL)
    (world.dir / "go").touch()
    wait_for(lambda: not alive(agent["pid"]), "the agent ends")

    world.wait_event("agent.gone", name="gamma")
    ended = world.wait_status("gamma", status)

    assert (code, number) == (ended["exit_code"], ended["exit_signal"])
    assert not temp_dir.exists()
    assert world.count("kill.signal_sent") == 0


def test_leftover_processes_of_an_agent_are_killed(world: World) -> None:
    """The main process exits; its child in another session is killed too, before the cleanup."""
    world.start()
    go = world.dir / "go"
    world.run("delta", "/bin/sh", "-c", f"setsid sleep 1000 & until [ -e {go} ]; do sleep 0.1; done; exit 0")
    agent = world.wait_status("delta", "running")
    left = wait_for(
        lambda: found if len(found := pids_with("AGENT_WATCHDOG_ID", agent["agent_id"])) > 1 else None, "both run"
    )
    go.touch()

    world.wait_status("delta", "completed")

    assert not any(alive(pid) for pid in left)


def test_an_agent_that_promised_no_beats_lives(world: World) -> None:
    """`run -- sleep 600` says that silence will not be judged, and it is not."""
    world.start()
    world.run("quiet", "sleep", "600")
    loud = world.run("loud", *world.script("agent.py", "beat=0.3/3"))
    world.wait_status("loud", "killed")

    assert world.agents()["quiet"]["status"] == "running"
    assert world.json("why", "quiet")["agent"]["command"] == "sleep"
    assert "never killed for silence before its first beat" in (world.dir / "quiet.out").read_text()
    assert loud.wait(60) != 0


def test_rows_without_optional_fields_are_closed_like_any_other(world: World) -> None:
    """Case F3: no worktree, no temp dir, neither; only the steps that need the field are skipped."""
    world.start()
    (world.dir / "t").mkdir()
    plain = world.run("plain", *world.script("agent.py", "exit=0"))
    temp = world.run("temp", *world.script("agent.py", "exit=0"), options=("--temp-dir", "auto"))

    world.wait_status("plain", "completed")
    world.wait_status("temp", "completed")

    assert plain.wait(60) == 0
    assert temp.wait(60) == 0


def test_observe_mode_decides_the_same_and_touches_nothing(world: World) -> None:
    """The same verdict and line as in enforce mode; no signal, no hook, no repeated report."""
    world.start("--observe")
    world.run("epsilon", *world.script("agent.py", "beat=0.3/3", "deaf"), options=("--temp-dir", "auto"))
    agent = world.wait_status("epsilon", "running")
    said = world.wait_event("kill.observed", name="epsilon")
    gone = world.run("zeta", *world.script("agent.py", "exit=0"), options=("--temp-dir", "auto"))
    assert gone.wait(60) == 0
    temp_dir = Path(world.json("why", "zeta")["agent"]["temp_dir"])
    world.wait_status("zeta", "completed")

    assert "silent for" in said["why"]
    assert alive(agent["pid"])
    assert temp_dir.is_dir()
    assert world.count("kill.observed", name="epsilon") == 1
    assert world.count("kill.signal_sent") == 0
    assert world.count("cleanup.hook_finished", outcome="done") == 0
    assert world.cli("kill", "epsilon", check=False).returncode != 0
    assert alive(agent["pid"])


def test_a_command_hook_gets_the_facts_as_json(world: World) -> None:
    """A user-defined hook: JSON on stdin, run as the owner, its answer in the log."""
    seen = world.dir / "seen.json"
    with world.config.open("a") as config:
        config.write(
            f'[[hook]]\nname = "mine"\non = ["killed"]\ncommand = ["/bin/sh", "-c", "cat > {seen}; echo noted"]\n'
        )
    world.start()
    world.run("eta", *world.script("agent.py", "beat=0.3/3"), options=("--task", "T-9"))
    world.wait_status("eta", "killed")

    facts = json.loads(seen.read_text())
    assert (facts["name"], facts["task_id"], facts["outcome"]) == ("eta", "T-9", "killed")
    assert "noted" in world.wait_event("cleanup.hook_finished", hook="mine")["message"]


def test_a_second_daemon_says_which_one_runs_already(world: World) -> None:
    """Exit 75, with the pid and what to do."""
    world.start()
    assert world.daemon is not None
    first = world.daemon.pid
    second = subprocess.run(
        [BIN / "agent-watchdogd", "--config", world.config],
        env=world.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert second.returncode == 75
    assert f"pid {first}" in second.stderr


def test_a_worktree_behind_a_link_is_cleaned_like_any_other(world: World) -> None:
    """A linked home is common: the path is resolved once, by its owner, when the agent is registered."""
    repository = make_repository(world.dir / "real" / "repo")
    (world.dir / "home").symlink_to(world.dir / "real")
    tree = world.dir / "home" / "wt"
    git(repository, "worktree", "add", "-q", str(world.dir / "real" / "wt"), "-b", "linked")
    git(repository, "branch", "merged", "linked")
    world.start()
    world.run("theta", *world.script("agent.py", "exit=1"), options=("--worktree", str(tree)))

    world.wait_status("theta", "failed")

    assert world.wait_event("cleanup.hook_finished", name="theta", hook="worktree")["outcome"] == "done"
    assert not (world.dir / "real" / "wt").exists()
