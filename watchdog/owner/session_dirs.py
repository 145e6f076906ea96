"""Temp dirs that agent programs make for their sessions, by the vendors' layouts; and which of them may be in use.

Claude Code (seen in 2.1): `<root>/claude-<uid>/<slug of the cwd>/<session id>/`. Full names are compared:
`claude-notes` and `claude-1000-backup` belong to a person. A session is dead when no process of this uid carries its id
in environment or arguments, and each running Claude Code is known to be another session. Read-only.

Tests: tests/owner/finders/test_temp_dirs.py, tests/owner/test_proc_files.py.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from watchdog.core.vendors import runs_as
from watchdog.owner import proc_files
from watchdog.owner.sources.claude import session_of

SESSION = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ANYWHERE = re.compile(SESSION.pattern.encode())


@dataclass(frozen=True, slots=True)
class SessionDir:
    """One such directory; when it was listed its path had no links."""

    path: str
    session: str
    changed: float  # the directory's own last change, seconds since the epoch


@dataclass(frozen=True, slots=True)
class Living:
    """Ids that living processes carry; `unknown` describes a process of the vendor's whose session is unknown."""

    ids: frozenset[str]
    unknown: str | None = None


def slugs(root: str) -> list[str]:
    """The directories below `root` that hold sessions' directories."""
    top = os.path.join(root, f"claude-{os.geteuid()}")
    return [entry.path for own in _directories(root) if own.path == top for entry in _directories(top)]


def session_dirs(root: str) -> Iterator[SessionDir]:
    """All session directories below `root` that are this uid's own."""
    for slug in slugs(root):
        for entry in _directories(slug):
            if SESSION.fullmatch(entry.name):
                status = entry.stat(follow_symlinks=False)
                yield SessionDir(entry.path, entry.name, max(status.st_mtime, status.st_ctime))


def living() -> Living:
    """The living sessions, as far as this uid can see. Raises OSError when /proc cannot be read."""
    found: set[str] = set()
    unknown = None
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if not proc_files.speaks_for_us(pid):
                continue  # another user's process may carry any id
            words, environment = _read(pid, "cmdline"), _read(pid, "environ") if proc_files.is_ours(pid) else b""
        except proc_files.ReadHung as error:
            if proc_files.uid_of(pid) == os.geteuid():
                unknown = f"{error.strerror}; it may be a Claude Code"
            continue
        found |= {os.fsdecode(name) for name in _ANYWHERE.findall(words + b"\0" + environment)}
        if not words or not _runs_claude(pid, words):
            continue
        session = session_of(_directory_of(environment), int(pid))
        if session is None:
            unknown = f"process {pid} is a Claude Code that does not say which session it is"
        else:
            found.add(session)
    return Living(frozenset(found), unknown)


def claude_directory(pid: int) -> str:
    """Where that process keeps its list of sessions, if it is a Claude Code of this uid's."""
    try:
        return _directory_of(_read(str(pid), "environ"))
    except proc_files.ReadHung:
        return _directory_of(b"")


def _directories(place: str) -> list[os.DirEntry[str]]:
    """This uid's own directories in `place`, without links; empty if it does not exist or is unreadable."""
    try:
        with os.scandir(place) as entries:
            inside = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        return [entry for entry in inside if entry.stat(follow_symlinks=False).st_uid == os.geteuid()]
    except OSError:
        return []


def _read(pid: str, file: str) -> bytes:
    """A file of a process; empty if the process is gone or unreadable. Raises ReadHung."""
    try:
        return proc_files.read(pid, file)
    except proc_files.ReadHung:
        raise
    except OSError:
        return b""


def _runs_claude(pid: str, words: bytes) -> bool:
    try:
        mine, executable = os.stat(f"/proc/{pid}").st_uid == os.geteuid(), os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    first = [word for word in words.decode("utf-8", "replace").split("\0") if word][:8]
    return mine and runs_as("claude", first, executable) is not None


def _directory_of(environment: bytes) -> str:
    """Where a process with that environment keeps its list of sessions."""
    variables = dict(pair.partition(b"=")[::2] for pair in environment.split(b"\0"))
    home = os.fsdecode(variables.get(b"HOME", b"")) or os.environ.get("HOME", "/")
    return os.fsdecode(variables.get(b"CLAUDE_CONFIG_DIR", b"")) or os.path.join(home, ".claude")
