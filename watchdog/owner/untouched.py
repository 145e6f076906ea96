"""Whether anybody changed anything in a worktree since a former look: all of it as one hash.

Ignored files count, too: what somebody builds there is use of it. Names, sizes and times of what lies on disk, content
of git's entry. What only reads leaves no trace here, and a git that merely refreshes the index does: then it stays.
"""

import hashlib
import os
import stat

from watchdog.owner import copying, paths, worktrees


def seal(tree: worktrees.Linked) -> str | None:
    """The hash; None when not all can be looked at, since something comes and goes, say."""
    try:
        return _seal(tree)
    except OSError:
        return None


def _seal(tree: worktrees.Linked) -> str:
    found = hashlib.sha256(repr((tree.branch, tree.head)).encode())
    for directory, names, files in paths.below(tree.path, onerror=_raise):
        for path in [directory, *(os.path.join(directory, name) for name in sorted([*names, *files]))]:
            status = os.lstat(path)
            # A directory's ctime changes when it is moved and put back; of a file it tells what mtime may hide.
            times = status.st_mtime_ns, 0 if stat.S_ISDIR(status.st_mode) else status.st_ctime_ns
            found.update(repr((path, status.st_ino, status.st_mode, status.st_size, *times)).encode())
    for pair in sorted(copying.content(tree.git_dir)):
        found.update(repr(pair).encode())
    return found.hexdigest()


def _raise(error: OSError) -> None:
    raise error
