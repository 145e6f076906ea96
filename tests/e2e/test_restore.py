"""Work left by an ended agent comes back byte for byte, also by a daemon that does not know the agent."""

import os
from pathlib import Path

from tests.owner.repositories import hashes
from tests.world import World, git, make_repository, wait_for

RESCUE = {"dirty_worktree": "rescue"}


def dirty_agent(world: World, name: str) -> Path:
    """An agent that left changed, staged, untracked and ignored files behind; its worktree, which is in the trash."""
    repository = world.dir / "repo"
    tree = world.dir / f"wt-{name}"
    git(repository, "worktree", "add", "-q", str(tree), "-b", f"work-{name}")
    (tree / "README").write_text("changed\n")
    (tree / "staged").write_text("staged\n")
    git(tree, "add", "staged")
    (tree / "notes").write_bytes(os.urandom(1000))
    (tree / ".gitignore").write_text("*.db\n")
    (tree / "rows.db").write_text("rows\n")
    before = hashes(tree)
    world.run(name, "true", options=("--worktree", str(tree)))
    world.wait_status(name, "completed")
    hook = world.wait_event("cleanup.hook_finished", name=name, hook="worktree")
    assert hook["outcome"] == "done", hook
    assert not tree.exists()
    (world.dir / f"{name}.status").write_text(git_status_of(before))
    return tree


def git_status_of(files: dict[str, bytes]) -> str:
    """The state of a tree, for comparison."""
    return repr(sorted(files.items()))


def test_restore_lists_and_brings_back_also_after_a_reinstall(world: World) -> None:
    """By the daemon that moved it to the trash, then by one with an empty registry, from within the repository."""
    repository = make_repository(world.dir / "repo")
    world.configure(cleanup=RESCUE)
    world.start()
    trees = [dirty_agent(world, name) for name in ("alpha", "beta")]

    listed = world.json("restore")["restorable"]
    assert {(one["name"], one["path"], one["restorable"]) for one in listed} == {
        ("alpha", str(trees[0]), True),
        ("beta", str(trees[1]), True),
    }
    assert "would be restored" in world.cli("restore", "alpha", "--dry-run").stdout
    assert not trees[0].exists()
    world.cli("restore", "alpha")
    assert git_status_of(hashes(trees[0])) == (world.dir / "alpha.status").read_text()
    assert git(trees[0], "status", "--porcelain") == " M README\nA  staged\n?? .gitignore\n?? notes\n"
    assert world.wait_event("worktree.restored")["why"].startswith(f"restored: {trees[0]} (with 'rows.db'")
    assert "worktree.restored" in [event["event"] for event in world.json("why", "alpha")["events"]]
    world.stop()

    (world.state / "registry.db").unlink()
    for left in world.state.iterdir():
        left.unlink()
    world.start()

    assert world.json("restore")["restorable"] == []
    unknown = world.cli("restore", "beta", check=False)
    assert (unknown.returncode, "--repository" in unknown.stderr) == (1, True)
    there = world.json("restore", "--repository", str(repository / ".git"))["restorable"]
    (found,) = [one for one in there if one["restorable"]]  # of the first one the refs are left
    told = world.json("restore", found["agent_id"][:8], "--repository", str(repository))
    assert told["path"] == str(trees[1])
    assert git_status_of(hashes(trees[1])) == (world.dir / "beta.status").read_text()
    assert git(trees[1], "symbolic-ref", "HEAD").strip() == "refs/heads/work-beta"


def test_ignored_work_outlives_the_retention_of_the_trash(world: World) -> None:
    """Case P8: the reaper, `restore` and the hook name it; it comes back."""
    make_repository(world.dir / "repo")
    world.configure(cleanup=RESCUE | {"trash_retention_hours": 0})
    world.start()
    tree = dirty_agent(world, "delta")
    assert "'rows.db'" in world.wait_event("cleanup.hook_finished", name="delta", hook="worktree")["message"]

    assert "kept without limit: it holds 'rows.db'" in world.cli("reap").stdout
    assert "nothing rebuilds, rows.db" in world.cli("restore").stdout
    world.cli("restore", "delta")
    assert git_status_of(hashes(tree)) == (world.dir / "delta.status").read_text()


def test_the_reaper_empties_the_trash_after_its_time(world: World) -> None:
    """Refs stay; `restore` says that only they are left. A file that git ignores is no work here: its name says so."""
    repository = make_repository(world.dir / "repo")
    world.configure(cleanup=RESCUE | {"trash_retention_hours": 0, "rebuildable": ["*.db"]})
    world.start()
    dirty_agent(world, "gamma")

    found = world.cli("reap", "--dry-run").stdout
    assert "has lain in the trash" in found
    world.cli("reap")

    trash = repository / ".git" / "agent-watchdog" / "trash"
    wait_for(lambda: not list(trash.iterdir()), "the trash is empty")
    (left,) = world.json("restore")["restorable"]
    assert left["restorable"] is False
    assert git(repository, "show", f"{sorted(left['refs'])[0]}:README").strip() == "changed"
    refused = world.cli("restore", left["agent_id"], check=False)
    assert refused.returncode == 1
    assert "worktree add PATH refs/agent-watchdog/rescue/" in refused.stderr
