"""Temp dirs that agent programs make for their sessions, by the vendors' layouts; and which may still be in use.

Claude Code (seen in 2.1): `<root>/claude-<uid>/<slug of the cwd>/<session id>/`. Each name is compared whole:
`claude-notes` and `claude-1000-backup` are a person's own. A session is dead when no process of this uid carries its id
in environment or arguments, and every Claude Code that runs says which other session it is. It only looks.

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
    """One such directory, with links on the way to it ruled out when it was listed."""

    path: str
    session: str
    changed: float  # its own last change, seconds since the epoch


@dataclass(frozen=True, slots=True)
class Living:
    """Ids that living processes carry; and in words a process of the vendor's that may be of any session."""

    ids: frozenset[str]
    unknown: str | None = None


def slugs(root: str) -> list[str]:
    """The directories below `root` in which sessions have theirs."""
    top = os.path.join(root, f"claude-{os.geteuid()}")
    return [entry.path for own in _directories(root) if own.path == top for entry in _directories(top)]


def session_dirs(root: str) -> Iterator[SessionDir]:
    """Every session's directory below `root` that is this uid's own."""
    for slug in slugs(root):
        for entry in _directories(slug):
            if SESSION.fullmatch(entry.name):
                status = entry.stat(follow_symlinks=False)
                yield SessionDir(entry.path, entry.name, max(status.st_mtime, status.st_ctime))


def living() -> Living:
    """The sessions that live, as far as this uid may see. Raises OSError when /proc cannot be read."""
    found: set[str] = set()
    unknown = None
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if not proc_files.speaks_for_us(pid):
                continue  # any process may carry any id
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
    """Where the process of that number keeps its list of sessions, if it is a Claude Code of this uid's."""
    try:
        return _directory_of(_read(str(pid), "environ"))
    except proc_files.ReadHung:
        return _directory_of(b"")


def _directories(place: str) -> list[os.DirEntry[str]]:
    """This uid's own directories in `place`, links left out; none when it is not there or may not be read."""
    try:
        with os.scandir(place) as entries:
            inside = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        return [entry for entry in inside if entry.stat(follow_symlinks=False).st_uid == os.geteuid()]
    except OSError:
        return []


def _read(pid: str, file: str) -> bytes:
    """A file of /proc; nothing when its process has gone or is not ours to look at. Raises Hung."""
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
    """Where that process keeps its list of sessions."""
    variables = dict(pair.partition(b"=")[::2] for pair in environment.split(b"\0"))
    home = os.fsdecode(variables.get(b"HOME", b"")) or os.environ.get("HOME", "/")
    return os.fsdecode(variables.get(b"CLAUDE_CONFIG_DIR", b"")) or os.path.join(home, ".claude")
