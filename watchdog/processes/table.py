"""One scan of /proc that serves the trees of all agents.

Only stat lines, owners, and of the wanted uids the marker and the cgroup are kept; nothing else of an environment ever
leaves `_marker`. A process that vanishes during the scan is skipped; one that cannot be read is told in `unreadable`.
The table is a value: `tree.trees` draws the conclusions.
"""

import os
import stat as modes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from watchdog.core.model import Identity, Presence
from watchdog.processes import identity as identities
from watchdog.processes import procfs

MARKER = "AGENT_WATCHDOG_ID"
SERVICE_MANAGERS = frozenset({"systemd"})
_ENVIRON_LIMIT = 4 << 20  # bytes; a longer environment is read so far and no farther
_MARKER_AT_START = f"{MARKER}=".encode()
_MARKER_LATER = b"\0" + _MARKER_AT_START


class Row(NamedTuple):
    """One process at the time of the scan. `uid` is the effective one (the owner of /proc/PID)."""

    stat: procfs.Stat
    uid: int
    marker: str | None = None
    cgroup: str | None = None  # read only where it can matter; None: not read, or not readable


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """All processes that one scan saw. `scanner_pid` is the daemon itself."""

    host: str
    boot_id: str
    scanner_pid: int
    rows: Mapping[int, Row] = field(default_factory=dict)
    unreadable: frozenset[int] = frozenset()  # there, but stat, owner or marker could not be read

    def find(self, identity: Identity | None) -> Row | None:
        """The row of exactly that process, as far as a table can tell (it knows no pidfd inodes)."""
        if identity is None or identity.host != self.host or identity.boot_id != self.boot_id:
            return None
        row = self.rows.get(identity.pid)
        return row if row is not None and row.stat.start_ticks == identity.start_ticks else None

    def identity(self, pid: int) -> Identity:
        """The identity of a row, without inode. Raises KeyError."""
        return Identity(self.host, self.boot_id, pid, self.rows[pid].stat.start_ticks)


def scan(
    host: str,
    uids: frozenset[int],
    *,
    cgroups_of: frozenset[int] = frozenset(),
    all_cgroups: bool = False,
    previous: ProcessTable | None = None,
) -> ProcessTable:
    """Read /proc once. Raises LookFailed when /proc itself cannot be listed.

    `uids`: owners of agents; markers are read of their processes alone. `cgroups_of`: pids (main processes) whose
    cgroup is wanted in any case; `all_cgroups`: that of all processes of `uids` (an agent has a cgroup of its own).
    `previous`: the last table; of a process in uninterruptible sleep the marker is taken from there, because reading
    its memory can block as long as it sleeps.
    """
    try:
        proc_fd = os.open(procfs.PROC, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise identities.LookFailed(error.errno, f"cannot open /proc: {error.strerror}") from error
    rows: dict[int, Row] = {}
    unreadable: set[int] = set()
    try:
        for name in os.listdir(proc_fd):
            if not name.isdigit():
                continue
            try:
                stat = procfs.parse_stat(_read(f"{name}/stat", proc_fd))
                rows[stat.pid] = Row(stat, os.stat(name, dir_fd=proc_fd).st_uid)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except (OSError, ValueError):
                unreadable.add(int(name))
        for pid, row in rows.items():
            marker = row.uid in uids and not row.stat.kernel_thread
            parent = rows.get(row.stat.parent_pid)
            cgroup = (
                pid in cgroups_of
                or (all_cgroups and marker)
                or (parent is not None and parent.stat.name in SERVICE_MANAGERS)
            )
            if marker or cgroup:
                try:
                    rows[pid] = _with_details(row, proc_fd, marker, cgroup, previous)
                except OSError:
                    unreadable.add(pid)
    except OSError as error:
        raise identities.LookFailed(error.errno, f"cannot list /proc: {error.strerror}") from error
    finally:
        os.close(proc_fd)
    return ProcessTable(host, identities.boot_id(), os.getpid(), rows, frozenset(unreadable))


def wrapper_of(main: Identity, name: str) -> Identity | None:
    """The parent of a main process where it is the wrapper of that comm, which adopts what the agent orphans."""
    try:
        parent = procfs.parse_stat(procfs.read(f"{procfs.PROC}/{main.pid}/stat")).parent_pid
        stat = procfs.parse_stat(procfs.read(f"{procfs.PROC}/{parent}/stat"))
        found = identities.read_identity(parent, main.host) if stat.name == name else None
        alive = identities.presence(main, None) is Presence.ALIVE  # so it was this process's parent that we read
    except (OSError, ValueError):
        return None
    return found if alive else None


def _read(path: str, proc_fd: int) -> bytes:
    """A stat line comes whole in one read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _with_details(row: Row, proc_fd: int, want_marker: bool, want_cgroup: bool, previous: ProcessTable | None) -> Row:
    marker = cgroup = None
    pid = row.stat.pid
    try:
        if want_marker:
            marker = _remembered_marker(row, previous) if row.stat.state == "D" else _marker(pid, proc_fd)
        if want_cgroup or marker is not None:
            cgroup = procfs.cgroup_path(procfs.read(f"{pid}/cgroup", dir_fd=proc_fd))
    except (FileNotFoundError, ProcessLookupError):
        pass  # vanished since its stat was read: what we have is true of that time
    return row._replace(marker=marker, cgroup=cgroup)


def _remembered_marker(row: Row, previous: ProcessTable | None) -> str | None:
    before = previous.rows.get(row.stat.pid) if previous is not None else None
    if before is None or before.stat.start_ticks != row.stat.start_ticks:
        raise OSError("in uninterruptible sleep and not seen before")
    return before.marker


def _marker(pid: int, proc_fd: int) -> str | None:
    """The value of our one variable in /proc/PID/environ; the rest is thrown away here."""
    environ = procfs.read(f"{pid}/environ", dir_fd=proc_fd, limit=_ENVIRON_LIMIT)
    if environ.startswith(_MARKER_AT_START):
        start = len(_MARKER_AT_START)
    else:
        found = environ.find(_MARKER_LATER)
        if found < 0:
            return None
        start = found + len(_MARKER_LATER)
    value = environ[start : environ.find(b"\0", start) if b"\0" in environ[start:] else len(environ)]
    return value.decode("ascii", "replace") or None


def sees_other_users() -> bool:
    """Whether /proc shows other users' processes to us, that is, no hidepid. Process 1 is root's."""
    try:
        return modes.S_ISDIR(os.stat(f"{procfs.PROC}/1").st_mode)
    except OSError:
        return False
