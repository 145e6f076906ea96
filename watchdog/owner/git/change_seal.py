"""Detects whether anything in a worktree was changed since an earlier check: a hash over all of it.

Ignored files count too: a build is use. It covers names, sizes and times of the files, their content where times are
unreliable (tmpfs), and the content of git's entry. Reading leaves no trace here, but a git that merely refreshes the
index does: then the worktree stays.

Tests: tests/owner/hooks/test_worktree.py.
"""

import hashlib
import os
import stat

from watchdog.owner import copy_tree, occupancy, paths
from watchdog.owner.git import worktrees

# A process that has mapped a file there, reads a page and then writes to it changes none of its times (Linux 6.18).
TIMELESS = frozenset({"tmpfs", "ramfs"})


def seal(tree: worktrees.Linked) -> str | None:
    """The hash; None if something changes meanwhile, cannot be read, or is mapped by a possible writer.

    A write through a mapping to a page that was written to a moment ago changes no time (mmap(2)).
    """
    try:
        directory = os.open(tree.path, paths.STEP)
        try:
            if occupancy.is_mapped_to_write(paths.real_path(directory)):
                return None
            return _seal(tree, by_content=paths.file_system(directory) in TIMELESS)
        finally:
            os.close(directory)
    except OSError:
        return None


def _seal(tree: worktrees.Linked, *, by_content: bool) -> str:
    found = hashlib.sha256(repr((tree.branch, tree.head)).encode())
    for directory, names, files in paths.below(tree.path, onerror=_raise):
        for path in [directory, *(os.path.join(directory, name) for name in sorted([*names, *files]))]:
            status = os.lstat(path)
            # A directory's ctime changes when it is moved and put back; a file's shows what mtime may hide.
            times = status.st_mtime_ns, 0 if stat.S_ISDIR(status.st_mode) else status.st_ctime_ns
            found.update(repr((path, status.st_ino, status.st_mode, status.st_size, *times)).encode())
            if by_content and stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    found.update(hashlib.file_digest(file, "sha256").digest())
    for pair in sorted(copy_tree.content(tree.git_dir)):
        found.update(repr(pair).encode())
    return found.hexdigest()


def _raise(error: OSError) -> None:
    raise error
