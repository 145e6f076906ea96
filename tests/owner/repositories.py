"""Real repositories and contexts for the tests of what runs as an owner."""

import os
import subprocess
from pathlib import Path

from watchdog.core.model import HookContext, Status


class Repository:
    """A main checkout with one commit, an origin, and linked worktrees beside it."""

    def __init__(self, place: Path) -> None:
        self.origin = place / "origin.git"
        self.main = place / "main"
        self.place = place
        git(place, "init", "-q", "--bare", "-b", "main", str(self.origin))
        git(place, "init", "-q", "-b", "main", str(self.main))
        (self.main / "file").write_text("one\n")
        (self.main / ".gitignore").write_text("ignored/\n.env\n")
        git(self.main, "add", "-A")
        git(self.main, "commit", "-qm", "first")
        git(self.main, "remote", "add", "origin", str(self.origin))
        git(self.main, "push", "-q", "-u", "origin", "main")

    @property
    def trash(self) -> Path:
        """Where put-away worktrees lie."""
        return self.main / ".git" / "agent-watchdog" / "trash"

    def worktree(self, name: str = "wt", *options: str) -> Path:
        """A new linked worktree on a branch of its own name."""
        path = self.place / name
        git(self.main, "worktree", "add", "-q", *(options or ("-b", name)), str(path))
        return path

    def listed(self) -> list[str]:
        """The paths that git lists."""
        out = git(self.main, "worktree", "list", "--porcelain")
        return [line.split(" ", 1)[1] for line in out.splitlines() if line.startswith("worktree ")]


def git(where: Path, *arguments: str) -> str:
    """Run git and return what it says."""
    ran = subprocess.run(["git", "-C", str(where), *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def context(**changes: object) -> HookContext:
    """A context with the given fields changed."""
    fields: dict[str, object] = {
        "run_id": "run-1",
        "hook": "hook",
        "agent_id": "a" * 32,
        "name": "alpha",
        "owner_uid": os.geteuid(),
        "outcome": Status.KILLED,
        "reason": "stalled",
        "task_id": None,
        "worktree": None,
        "temp_dir": None,
    }
    return HookContext(**{**fields, **changes})  # type: ignore[arg-type]
