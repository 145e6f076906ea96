"""Finds living processes that hold git's lock files, or are a git working in a repository. Read-only.

A git that waits for its editor has closed its lock file and still holds it, so open files are not enough: a living git
of this uid whose cwd, open file, GIT_* variable or argument leads into the repository counts. Directories are compared
by identity, not by name, so that a git in a container's mount namespace counts too. A git that cannot be inspected
counts everywhere. Other uids' processes are ignored: they did not make our lock files.

Tests: tests/owner/git/test_lock_files.py, tests/owner/test_proc_files.py.
"""

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from watchdog import file_identity
from watchdog.owner import paths, proc_files

NAMES = ("git", "jj", "lazygit", "tig")  # such a process's or program's name is one of these, or begins with the first
VARIABLES = (b"GIT_DIR", b"GIT_COMMON_DIR", b"GIT_WORK_TREE", b"GIT_INDEX_FILE", b"GIT_OBJECT_DIRECTORY")
OPTIONS = (b"--git-dir", b"--work-tree", b"-C")


@dataclass(frozen=True, slots=True)
class Working:
    """One living git: the identities of the directories where it works; `unseen`: it could not be inspected."""

    pid: str
    places: frozenset[file_identity.FileId]
    unseen: bool = False


def at_work() -> list[Working]:
    """All living gits of this uid. Raises OSError when /proc cannot be read."""
    return [found for pid in _processes() if _is_git(pid) and (found := _working(pid)) is not None]


def holder(files: Collection[file_identity.FileId]) -> dict[file_identity.FileId, str]:
    """By file, the pid of a process that has it open, among processes that this uid may inspect."""
    found: dict[file_identity.FileId, str] = {}
    for pid in _processes():
        for fd in _listed(f"/proc/{pid}/fd"):
            identity = _identity(f"/proc/{pid}/fd/{fd}")
            if identity is not None and identity in files:
                found[identity] = pid
    return found


def _processes() -> Iterator[str]:
    own = str(os.getpid())
    return (pid for pid in os.listdir("/proc") if pid.isdigit() and pid != own)


def _is_git(pid: str) -> bool:
    """Whether a process is a git, by its or its program's name; of this uid, not a zombie. A hanging one of ours may
    be.

    A set-uid program does not count: its caller chooses its name and where it seems to work.
    """
    try:
        status = dict(line.partition(b":")[::2] for line in proc_files.read(pid, "status").splitlines())
    except (FileNotFoundError, ProcessLookupError):
        return False
    except proc_files.ReadHung:
        return proc_files.uid_of(pid) == os.geteuid()
    if status[b"State"].split()[:1] in ([b"Z"], [b"X"]) or str(os.geteuid()).encode() not in status[b"Uid"].split():
        return False
    names = [os.fsdecode(status[b"Name"].strip())]
    with contextlib.suppress(OSError):  # unreadable: its name must suffice
        names.append(os.readlink(f"/proc/{pid}/exe").rpartition("/")[2])
    called_so = any(name.startswith(NAMES[0]) or name in NAMES for name in names)
    return called_so and proc_files.speaks_for_us(pid)


def _working(pid: str) -> Working | None:
    """Where that git works; None if it has exited meanwhile."""
    places: set[file_identity.FileId] = set()
    try:
        places |= _around(f"/proc/{pid}/cwd")
        variables = dict(pair.partition(b"=")[::2] for pair in proc_files.read(pid, "environ").split(b"\0"))
        words = proc_files.read(pid, "cmdline").split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return Working(pid, frozenset(), unseen=True)
    named = [variables[name] for name in VARIABLES if variables.get(name)]
    for option in OPTIONS:
        named += [after for word, after in pairwise(words) if word == option]
        named += [word[len(option) + 1 :] for word in words if word.startswith(option + b"=")]
    for name in named:
        places |= _existing(f"/proc/{pid}/{'root' if name.startswith(b'/') else 'cwd'}/{os.fsdecode(name)}")
    for fd in _listed(f"/proc/{pid}/fd"):
        target = f"/proc/{pid}/fd/{fd}"
        places |= _existing(target if os.path.isdir(target) else os.path.realpath(target))
    return Working(pid, frozenset(places))


def _existing(path: str) -> set[file_identity.FileId]:
    """As `_around`; for a file, its directory. Empty if it does not exist or is neither file nor directory."""
    try:
        if os.path.isdir(path):
            return _around(path)
        return _around(os.path.dirname(path)) if os.path.isfile(path) else set()
    except OSError:
        return set()


def _around(path: str) -> set[file_identity.FileId]:
    """A directory and its parents up to the first checkout: git searches no further for its repository."""
    found: set[file_identity.FileId] = set()
    current = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while (identity := file_identity.file_id(current)) not in found:
            found.add(identity)
            if os.path.lexists(f"/proc/self/fd/{current}/.git"):
                break
            try:
                above = os.open("..", paths.STEP, dir_fd=current)
            except OSError:
                break  # a deleted directory, or one whose parent is not accessible
            os.close(current)
            current = above
    finally:
        os.close(current)
    return found


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _identity(path: str) -> file_identity.FileId | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
