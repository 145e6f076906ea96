"""Paths, links, mounts and disks that could lead a removal astray, or stop it half way."""

import subprocess

from tests.faults.private import inside, running
from tests.faults.table import Row, Run
from tests.world import wait_for

NAMED = ["-c", "user.name=t", "-c", "user.email=t@example.org"]


def hostile(run: Run) -> None:
    said = inside("places", "hostile", 1)
    assert said["taken"] == []
    assert said["paths"] >= 60
    run.note(f"{said['paths']} of {said['paths']} refused")


def swaps(run: Run) -> None:
    said = inside("places", "swaps", run.times)
    assert said["swaps"] >= run.times
    run.note(f"{said['swaps']} swaps in {said['rounds']} removals, {said['removed']} of them done")


def mounts(run: Run) -> None:
    said = inside("places", "mounts", 1)
    assert {reason for place, reason in said.items() if place.endswith("top")} == {"mount_point"}
    assert {reason for place, reason in said.items() if not place.endswith("top")} == {"mount_inside"}
    run.note(f"{len(said)} of {len(said)} kept")


def many(run: Run) -> None:
    said = inside("places", "many", run.times)
    assert said["inodes"] == run.times + 11
    assert said["rounds"] >= 5
    assert said["most"] <= run.times // 5
    run.note(f"{said['inodes']} inodes in {said['rounds']} rounds of at most {said['longest']} s")


def full(run: Run) -> None:
    said = inside("places", "disk_full", 1)
    assert said["reasons"] == ["disk_full"], said


def hindered(run: Run) -> None:
    said = inside("places", "hindered", 1)
    assert said.pop("a file that is mounted") == ["busy"]
    assert said.pop("a quota") == ["quota"]
    run.note(", ".join(sorted({reason for reasons in said.values() for reason in reasons})))


def committing(run: Run) -> None:
    """E12 with the daemon: killed while its editor waits; afterwards another one commits there."""
    for _ in range(run.times):
        with running() as world:
            main = world.dir / "main"
            for words in (["init", "-q", "main"], ["-C", "main", *NAMED, "commit", "-q", "--allow-empty", "-m", "one"]):
                subprocess.run(["git", *words], cwd=world.dir, check=True)
            lock = main / ".git" / "index.lock"
            code = f"touch file; git add -A; {' '.join(['git', *NAMED])} commit -a"
            editor = f"touch {world.dir}/up; sleep 1000; :"
            world.run("committer", "sh", "-c", f"cd main; {code}", options=("--worktree", str(main)), GIT_EDITOR=editor)
            wait_for((world.dir / "up").exists, "its editor waits")
            assert lock.exists()
            world.cli("kill", "--force", "committer")  # a git that gets TERM takes its lock away
            moved = world.wait_event("cleanup.hook_finished", name="committer", hook="git_locks")
            assert moved["outcome"] == "done", moved
            assert not lock.exists()
            subprocess.run(["git", *NAMED, "commit", "-q", "-a", "-m", "two"], cwd=main, check=True)
            kept = world.wait_event("cleanup.hook_finished", name="committer", hook="worktree")
            assert kept["outcome"] == "kept", kept
            assert (main / "file").exists()


ROWS = [
    Row(
        "an agent is killed in the middle of a commit",
        "`git commit -a` in a main checkout, its editor waits",
        "its index.lock lies aside, another commits there, the checkout stays",
        committing,
        runs=5,
    ),
    Row(
        "a temp dir with a hostile path",
        "some 80 paths: empty, relative, traversing, roots, homes, links, twins, mounts, control characters",
        "refused, every file everywhere as before",
        hostile,
        root=True,
    ),
    Row(
        "a directory is exchanged for a link all the time",
        "renameat2(RENAME_EXCHANGE) in a loop, before, during and after the removal, also in the trash",
        "the link's target is as before",
        swaps,
        runs=100_000,
        share=100,
        root=True,
        limit=600,
    ),
    Row(
        "a mount in a temp dir",
        "tmpfs and a bind mount of the same device, at the top, deep inside, and in the trash; also without openat2",
        "kept, and what is mounted there is as before",
        mounts,
        root=True,
    ),
    Row(
        "a temp dir of a million files",
        "the hook, then the finder until nothing is left, with another agent's removal between two rounds",
        "all gone, no round longer than its bound, every inode counted",
        many,
        runs=1_000_000,
        share=100,
        root=True,
        limit=900,
    ),
    Row(
        "the disk is too full to write down what will be done",
        "a small tmpfs without blocks or inodes, a clean worktree and a temp dir on it; then room again",
        "both stay as they are, told as disk_full; then both go",
        full,
        root=True,
    ),
    Row(
        "a place that may not be changed",
        "mounted read-only; chattr +i and +a of a file and a directory; a file that is a mount point",
        "told by its name, never forced, the rest goes; when it is over, all of it",
        hindered,
        root=True,
    ),
]
