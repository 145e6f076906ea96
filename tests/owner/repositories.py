"""Real repositories and contexts for the tests of what runs as an owner."""

import os
import subprocess
from pathlib import Path

import pytest

from watchdog.core.agent import Status
from watchdog.core.hooks import HookContext


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


def hashes(top: Path) -> dict[str, bytes]:
    """All content below a directory, links as their target."""
    found = {}
    for directory, _, files in os.walk(top):
        for name in files:
            file = Path(directory) / name
            if file.is_symlink():
                found[str(file.relative_to(top))] = os.fsencode(os.readlink(file))
            elif file.is_file():
                found[str(file.relative_to(top))] = file.read_bytes()
    return found


def state_of(path: Path) -> dict[str, object]:
    """The worktree to the byte: every name with mode and content, its index, HEAD and reflog, and what git says."""
    entry = Path(git(path, "rev-parse", "--absolute-git-dir").strip())
    files: dict[str, object] = dict(hashes(path))
    for place in [path, *path.rglob("*")]:
        status = place.lstat()
        files[f"mode {place.relative_to(path)}"] = (status.st_mode, 0 if place.is_dir() else status.st_mtime_ns)
    about = {f"entry {name}": content for name, content in hashes(entry).items()}
    return files | about | {"status": git(path, "--no-optional-locks", "status", "--porcelain", "--ignored")}


def own_config(patch: pytest.MonkeyPatch, home: Path) -> None:
    """No config of whoever runs the tests."""
    config = home / ".gitconfig"
    config.write_text("[user]\n\tname = t\n\temail = t@example.org\n")
    for key in [key for key in os.environ if key.startswith("GIT_")]:
        patch.delenv(key)
    patch.setenv("GIT_CONFIG_GLOBAL", str(config))
    patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    # The hooks strip GIT_*: there the config is found by HOME, and it protects only that.
    patch.setenv("HOME", str(home))
