"""A path that was an agent's and belongs to others now: nothing there is touched."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.world import World, alive, git, make_repository, wait_for


def left_agent(world: World, *options: str) -> None:
    """An agent that has died while the daemon was down."""
    world.start()
    wrapper = world.run("alpha", "sleep", "600", options=options)
    agent = wait_for(lambda: world.agents()["alpha"]["pid"] and world.agents()["alpha"], "it runs")
    world.wait_event("agent.registered", name="alpha")
    wait_for(lambda: "directory" in world.sql("SELECT sites FROM agent_lifecycle")[0][0], "what lies there was seen")
    world.crash()
    for pid in (wrapper.pid, agent["pid"]):
        with suppress(ProcessLookupError):  # it was killed with the one before
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda pid=pid: not alive(pid), "it is dead")  # type: ignore[misc]


def end_of(world: World, hook: str) -> dict[str, object]:
    world.start()
    world.wait_status("alpha", "completed", "failed", "killed")
    return world.wait_event("cleanup.hook_finished", name="alpha", hook=hook)


@pytest.mark.parametrize("known", [True, False])
def test_a_worktree_made_at_the_same_path_later_stays(world: World, known: bool) -> None:
    """Case P6: clean, merged, with an ignored file. Also for a row of version 0.1, which has no site."""
    repository, tree = make_repository(world.dir / "repo"), world.dir / "wt"
    git(repository, "worktree", "add", "-q", "-b", "work", str(tree))
    left_agent(world, "--worktree", str(tree))
    if not known:
        world.sql("UPDATE agent_lifecycle SET sites = '{}'")
    git(repository, "worktree", "remove", str(tree))
    git(repository, "worktree", "add", "-q", "-b", "mine", str(tree), "work")
    (repository / ".git" / "info").mkdir(exist_ok=True)
    (repository / ".git" / "info" / "exclude").write_text(".env\n")
    (tree / ".env").write_text("secret\n")

    hook = end_of(world, "worktree")

    assert (hook["outcome"], "so it is not the agent's" in str(hook["message"])) == ("kept", True), hook
    assert (tree / ".env").read_text() == "secret\n"
    assert world.json("restore")["restorable"] == []


def test_its_own_worktree_is_removed_as_usual(world: World) -> None:
    """The same without a change in between; an agent that makes its tree itself after registration is no stranger."""
    repository, tree = make_repository(world.dir / "repo"), world.dir / "wt"
    git(repository, "worktree", "add", "-q", "-b", "work", str(tree))
    left_agent(world, "--worktree", str(tree))
    assert end_of(world, "worktree")["outcome"] == "done"
    own = world.dir / "own"
    make = f"sleep 0.1; git -C {repository} worktree add -q -b own {own}"
    world.run("beta", "sh", "-c", make, options=("--worktree", str(own)))
    hook = world.wait_event("cleanup.hook_finished", name="beta", hook="worktree")
    assert hook["outcome"] == "done", hook


def test_a_directory_made_at_a_temp_dirs_path_later_stays(world: World) -> None:
    """The sibling: a temp dir is deleted at once, without a trash."""
    place = Path(
        subprocess.run(["mktemp", "-d", str(world.dir / "t.XXXX")], capture_output=True, text=True).stdout[:-1]
    )
    world.configure(cleanup={"roots": [str(world.dir)]})
    left_agent(world, "--temp-dir", str(place))
    place.rename(world.dir / "aside")
    place.mkdir()
    (place / "work").write_text("mine\n")
    hook = end_of(world, "temp_dir")
    assert hook["outcome"] == "kept", hook
    assert (place / "work").read_text() == "mine\n"
