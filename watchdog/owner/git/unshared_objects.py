"""Finds git objects that only one worktree holds: those that HEAD's reflog, a running merge or rebase, a bisect, the
index and its stashes name, and no branch, remote branch or tag reaches.

Read-only. Ids are taken from all files of the entry, so that anything git keeps there is found without knowing its
format; cat-file sorts out what only looks like an id.

Tests: tests/owner/git/test_rescue.py.
"""

import os
import re
import stat
from dataclasses import dataclass, field

from watchdog.errors import PathRefused
from watchdog.owner import paths
from watchdog.owner.git import worktrees
from watchdog.owner.git.git import Git

OBJECT = re.compile(rb"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{40})(?![0-9a-f])")
FILE_LIMIT = 256 << 20  # bytes of one file, such as a reflog
OTHERS = ("--not", "--branches", "--remotes", "--tags")


@dataclass(slots=True)
class UnsharedObjects:
    """`tips`: commits that, with HEAD, reach everything that nothing else holds. `loose`: other objects."""

    tips: list[str] = field(default_factory=list)
    loose: list[tuple[str, str, str]] = field(default_factory=list)


def only_here(git: Git, tree: worktrees.Linked) -> UnsharedObjects:
    """What would be lost with the worktree's entry. Raises OwnerCallFailed, OSError, PathRefused."""
    names = _named(tree.git_dir) | set(worktrees.stashes(git, tree)) | _resolved(git)
    if tree.head is not None:
        names.add(tree.head)
    kinds: dict[str, str] = {}
    for line in git.run("cat-file", "--batch-check", stdin="".join(f"{name}\n" for name in sorted(names))).splitlines():
        name, kind, *_ = [*line.split(" "), ""]
        if kind in ("commit", "tree", "blob"):
            kinds[name] = kind
    held = UnsharedObjects()
    held.loose = [("100644" if kind == "blob" else "040000", kind, name) for name, kind in kinds.items()]
    held.loose = sorted(one for one in held.loose if one[1] != "commit")
    commits = sorted(name for name, kind in kinds.items() if kind == "commit")
    if commits:
        asked = "".join(f"{name}\n" for name in commits)
        lines = [
            line.split() for line in git.run("rev-list", "--parents", "--stdin", *OTHERS, stdin=asked).splitlines()
        ]
        reached = {parent for _, *parents in lines for parent in parents}
        held.tips = sorted(name for name, *_ in lines if name not in reached and name != tree.head)
    return held


def _named(git_dir: str) -> set[str]:
    """Everything that looks like an object id in the entry's files, except the index, which git reads for us."""
    found: set[str] = set()
    for directory, _, files in paths.below(git_dir, onerror=_raise):
        for name in files:
            path = os.path.join(directory, name)
            if directory == git_dir and name.startswith(("index", "sharedindex.")):
                continue
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_LIMIT:
                    raise PathRefused("not_understood", f"{path} is no file that git would write")
                found |= {match[0].decode() for line in file for match in OBJECT.finditer(line)}
    return found


def _raise(error: OSError) -> None:
    raise error


def _resolved(git: Git) -> set[str]:
    """The sides of resolved conflicts: the index keeps them so that the resolution can be undone."""
    lines = git.run("ls-files", "--resolve-undo", "-z").split("\0")
    return {line.split(" ")[1] for line in lines if "\t" in line}
