"""One scan of /proc that serves the trees of all agents.

It keeps only stat lines and owners, and for the wanted uids the marks and the cgroup; nothing else of an environment
leaves `marks_of`. A process that vanishes during the scan is skipped; one that cannot be read is in `unreadable`; if a
read of its files hangs, its row consists of what the previous scan saw and what the kernel reports without a file. The
table is a value: `tree.trees` draws the conclusions.

Tests: tests/processes/test_tree.py, tests/processes/test_relays.py.
"""

import errno
import os
import re
import stat as modes
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from watchdog.clock import Clock
from watchdog.core.process import Identity, Presence
from watchdog.core.services import service_of
from watchdog.core.vendors import KNOWN
from watchdog.processes import bounded as bounds
from watchdog.processes import cgroups, pidfd_info, procfs
from watchdog.processes import identity as identities
from watchdog.processes.bounded import Unreadable, bounded

MARKER = "AGENT_WATCHDOG_ID"
# Variables that agent programs and launchers set for what they start, with a different value in each run. Flags
# (CLAUDECODE=1, GEMINI_CLI=1, OPENCODE=1) do not distinguish runs. `vendor_markers` decides which agent a value means.
VENDOR_MARKERS = (
    *(name for vendor in KNOWN.values() for name in vendor.markers),
    "HCOM_PROCESS_ID",  # hcom: the agent and all below it
    "MNGR_AGENT_ID",  # mngr: the agent and all below it
)
SERVICE_MANAGERS = frozenset({"systemd"})
_ENVIRON_LIMIT = 4 << 20  # bytes; the rest of a longer environment is ignored
FRESH = 5 * procfs.TICKS_PER_SECOND  # ticks before a scan; an older process could be read by an earlier scan
LISTS = 5  # listings of /proc in one scan, at most: with so much churn no listing is complete
_VALUE_LIMIT = 128  # bytes; a longer value is not the id of a run
_WORDS_LIMIT = 4096  # bytes read from the start of a command line
# Variables by which a terminal multiplexer names the server of a process's pane (tmux(1), screen(1)).
TERMINALS = {"TMUX": re.compile(r".*,(\d+),\d+"), "STY": re.compile(r"(\d+)\..*")}
_NEEDLES = tuple((name, f"\0{name}=".encode()) for name in (MARKER, *VENDOR_MARKERS, *TERMINALS))


Marks = tuple[str | None, frozenset[str] | None, int | None]  # marker, vendors, terminal of a `Row`
UNREAD = "?"  # name and state of a process whose stat line was never read; its start ticks are 0


class Row(NamedTuple):
    """One process at the time of the scan. `uid` is the effective one (the owner of /proc/PID)."""

    stat: procfs.Stat
    uid: int
    marker: str | None = None
    cgroup: str | None = None  # read only if it can matter; None: not read, or unreadable
    vendors: frozenset[str] | None = None  # "NAME=value" of VENDOR_MARKERS; None: its environment was not read
    terminal: int | None = None  # pid of the multiplexer server in whose pane it or its ancestor was started
    service: str | None = None  # the shared service that it is a part of (`core.services`)

    @property
    def marks(self) -> Marks:
        """The marks in its environment."""
        return self.marker, self.vendors, self.terminal


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """All processes that one scan saw. `scanner_pid` is the daemon itself."""

    host: str
    boot_id: str
    scanner_pid: int
    rows: Mapping[int, Row] = field(default_factory=dict)
    whole: bool = True  # all processes that lived during the scan are in it or in `unreadable`
    lost: bool = False  # a process that may have left a successor exited before its marks were read (see `_lost`)
    unreadable: frozenset[int] = frozenset()  # existing, but stat, owner or marks could not be read or hang

    def find(self, identity: Identity | None) -> Row | None:
        """The row of exactly that process, as far as a table can tell (it has no pidfd inodes)."""
        if identity is None or identity.host != self.host or identity.boot_id != self.boot_id:
            return None
        row = self.rows.get(identity.pid)
        return row if row is not None and row.stat.start_ticks == identity.start_ticks else None

    def identity(self, pid: int) -> Identity:
        """The identity of a row, without inode. Raises KeyError."""
        return Identity(self.host, self.boot_id, pid, self.rows[pid].stat.start_ticks)

    def parent(self, pid: int) -> int | None:
        """The parent, unless it is younger than its child: then its pid was reused during the scan.

        A shared service has none: the process that happened to start it is no closer to it than the other clients.
        """
        row = self.rows[pid]
        if row.service is not None:
            return None
        parent = self.rows.get(row.stat.parent_pid)
        if parent is None or parent.stat.pid == pid or parent.stat.start_ticks > row.stat.start_ticks > 0:
            return None
        return parent.stat.pid

    def ancestry(self, pid: int) -> list[int]:
        """The ancestors of a process, the nearest first; empty for one that is not in the table."""
        found: dict[int, None] = {}
        current = self.parent(pid) if pid in self.rows else None
        while current is not None and current != pid and current not in found:
            found[current] = None
            current = self.parent(current)
        return list(found)


def scan(
    host: str,
    uids: frozenset[int],
    *,
    cgroups_of: frozenset[int] = frozenset(),
    own_cgroups: frozenset[str] = frozenset(),
    previous: ProcessTable | None = None,
    scanner_pid: int | None = None,
) -> ProcessTable:
    """Read /proc once. Raises LookFailed when /proc itself cannot be listed.

    `uids`: owners of agents; marks are read only of their processes. `cgroups_of`: pids (main processes) whose cgroup
    is always wanted; `own_cgroups`: the agents' own; all their members are marked, of any owner. `previous`: the last
    scan. Marks are reused from there for a process without a page fault since: it has started no other program, as none
    starts without a fault, and reading marks is half of a scan's time. They are also reused for a process in
    uninterruptible sleep, because reading its memory can block as long as it sleeps. `scanner_pid`: the daemon's pid if
    its reader scans.
    """
    before = {} if previous is None else previous.rows
    try:
        proc_fd = os.open(procfs.PROC, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise identities.LookFailed(error.errno, f"cannot open /proc: {error.strerror}") from error
    rows: dict[int, Row] = {}
    unreadable: set[int] = set()
    began = int(Clock().now().boot * procfs.TICKS_PER_SECOND)
    try:
        first = _last_number(proc_fd)
        whole = _read_all(proc_fd, rows, unreadable, before, _Fresh(uids, began - FRESH))
        whole = (
            whole and _last_number(proc_fd) >= first
        )  # otherwise pids wrapped, and a process with a low pid may be in no listing
        # A line that was read in the tick in which its process started may by now belong to another process with the
        # same pid and tick, and the two could not be distinguished. Read after that tick, it identifies one process.
        young = {pid: row.stat.start_ticks for pid, row in rows.items() if row.stat.start_ticks >= began}
        again: list[Row] = []
        if young and identities.tick_is_over(max(young.values())):
            again = [rows.pop(pid) for pid in young]
            _read_rows(young, proc_fd, rows, unreadable, before)
        over = [row for row in again if row.uid in uids and _has_ended(rows.get(row.stat.pid))]
        _keep_marks(again, rows, unreadable)
        marked = _read_details(proc_fd, rows, unreadable, before, uids, cgroups_of)
        doubtful = [*over, *(rows[pid] for pid in marked)]
        lost = any(_lost(row, rows, unreadable, began - FRESH) for row in doubtful)
        # Read last: if a pid was reused since its line was read, the mark goes to the row of the process that is gone.
        for path in sorted(own_cgroups):
            with suppress(OSError):  # an unreadable cgroup (ENAMETOOLONG) only hides its own processes
                for pid in cgroups.members(path) & rows.keys():
                    rows[pid] = rows[pid]._replace(cgroup=path)
    except OSError as error:
        raise identities.LookFailed(error.errno, f"cannot list processes: {error.strerror}") from error
    finally:
        os.close(proc_fd)
    bounds.readable = frozenset(pid for pid, row in rows.items() if row.stat.state != UNREAD)
    scanner = os.getpid() if scanner_pid is None else scanner_pid
    return ProcessTable(host, identities.boot_id(), scanner, rows, whole, lost, frozenset(unreadable))


def _read_details(
    proc_fd: int,
    rows: dict[int, Row],
    unreadable: set[int],
    before: Mapping[int, Row],
    uids: frozenset[int],
    cgroups_of: frozenset[int],
) -> list[int]:
    """Add marks and cgroups to the rows that need them; return the pids whose marks were wanted."""
    wanted: dict[int, tuple[bool, bool]] = {}  # by pid: marks wanted, cgroup wanted in any case
    for pid, row in rows.items():
        marks = row.uid in uids and not row.stat.kernel_thread
        parent = rows.get(row.stat.parent_pid)
        cgroup = pid in cgroups_of or (parent is not None and parent.stat.name in SERVICE_MANAGERS)
        if marks or cgroup:
            wanted[pid] = marks, cgroup
    detailed = bounds.each(wanted, lambda pid: _with_details(rows[pid], proc_fd, *wanted[pid], before.get(pid)))
    for pid, found in detailed.items():
        if isinstance(found, OSError):
            unreadable.add(pid)
        else:
            rows[pid], complete = found
            if not complete:
                unreadable.add(pid)
    return [pid for pid, (marks, _) in wanted.items() if marks]


@bounded
def table(host: str, uids: frozenset[int], scanner_pid: int) -> ProcessTable:
    """`scan` for a caller that keeps no previous table."""
    return scan(host, uids, scanner_pid=scanner_pid)


class _Fresh(NamedTuple):
    """Selects the processes whose marks are read at once: those of these uids that began since that tick."""

    uids: frozenset[int]
    since: int

    def are(self, row: Row, before: Row | None) -> bool:
        if row.uid not in self.uids or row.stat.start_ticks < self.since or row.stat.state in ("D", UNREAD):
            return False
        seen = before is not None and before.stat.start_ticks == row.stat.start_ticks
        return not (seen or row.stat.kernel_thread or row.stat.dead)


def _read_all(
    proc_fd: int, rows: dict[int, Row], unreadable: set[int], before: Mapping[int, Row], fresh: _Fresh
) -> bool:
    """Read line and owner of every process, until a listing of /proc shows nothing new; False: that never happened.

    A process that starts during a listing appears only in the next one: a process that starts a successor and exits at
    once is missed by one listing half of the time. It may have exited before all lines are read, so its marks are read
    right after its line.
    """
    for _ in range(LISTS):
        known = rows.keys() | unreadable
        new = [pid for name in os.listdir(proc_fd) if name.isdigit() and (pid := int(name)) not in known]
        if not new:
            return True
        _read_rows(new, proc_fd, rows, unreadable, before)
        young = [pid for pid in new if pid in rows and fresh.are(rows[pid], before.get(pid))]
        for pid, marks in bounds.each(young, lambda pid: marks_of(pid, proc_fd)).items():
            if not isinstance(marks, OSError) and (marks[0] is not None or marks[1]):
                rows[pid] = rows[pid]._replace(marker=marks[0], vendors=marks[1], terminal=marks[2])
    return False


def _keep_marks(former: Iterable[Row], rows: dict[int, Row], unreadable: set[int]) -> None:
    """Keep the marks of rows whose line was read again. A process that has exited meanwhile keeps its former row."""
    for row in former:
        pid = row.stat.pid
        if (row.marker is None and not row.vendors) or pid in unreadable:
            continue
        now = rows.get(pid)
        if _has_ended(now):
            rows[pid] = row
        elif now is not None and now.stat.start_ticks == row.stat.start_ticks:
            rows[pid] = now._replace(marker=row.marker, vendors=row.vendors, terminal=row.terminal)


def _last_number(proc_fd: int) -> int:
    """The most recently assigned pid (loadavg, proc(5)): pids go up and wrap at the maximum."""
    try:
        return int(_read("loadavg", proc_fd).split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def _has_ended(row: Row | None) -> bool:
    return row is None or row.stat.dead


def _lost(row: Row, rows: Mapping[int, Row], unreadable: set[int], since: int) -> bool:
    """Whether a process that began after tick `since` exited before its marks were read, or they cannot be read, and
    nothing else shows which agent it belonged to.

    A process that starts a successor and exits is some ms old, and so is its parent, or it is an orphan; a child of an
    older parent in the same session is known by that parent. Zombies have no environment.
    """
    if row.marker is not None or row.vendors or row.stat.dead or row.stat.start_ticks < since:
        return False
    parent = rows.get(row.stat.parent_pid)
    if parent is not None and parent.stat.start_ticks < since and parent.stat.session == row.stat.session:
        return False
    if row.stat.pid in unreadable:
        return True  # in uninterruptible sleep, as every process is briefly during a fork
    try:
        now = procfs.stat(row.stat.pid)
        return now.dead or now.exiting or now.start_ticks != row.stat.start_ticks
    except (OSError, ValueError) as error:
        return not isinstance(error, Unreadable)  # a process that hangs is in `unreadable`


def _read_rows(
    pids: Iterable[int], proc_fd: int, rows: dict[int, Row], unreadable: set[int], before: Mapping[int, Row]
) -> None:
    """Read line and owner of each process that still exists into `rows`."""
    for pid, found in bounds.each(pids, lambda pid: _row(pid, proc_fd)).items():
        if isinstance(found, Row):
            rows[pid] = found
        elif not isinstance(found, FileNotFoundError | ProcessLookupError):
            unreadable.add(pid)
            if isinstance(found, Unreadable) and (row := _without_files(pid, proc_fd, before.get(pid))) is not None:
                rows[pid] = row


def _row(pid: int, proc_fd: int) -> Row:
    with bounds.Reading(pid, "stat"):
        try:
            stat = procfs.parse_stat(_read(f"{pid}/stat", proc_fd))
        except ValueError as error:
            raise OSError(errno.EIO, str(error)) from error
    return Row(stat, os.stat(str(pid), dir_fd=proc_fd).st_uid)


def _without_files(pid: int, proc_fd: int, before: Row | None) -> Row | None:
    """A row for a process whose stat line hangs, from the last scan and from system calls; None when it is gone.

    The row keeps its descendants in place. It is never signalled by this row: that takes a complete identity.
    """
    try:
        pidfd = identities.open_pidfd(pid)
    except identities.LookFailed:
        return before
    if pidfd is None:
        return None
    try:
        group, session, uid = os.getpgid(pid), os.getsid(pid), os.stat(str(pid), dir_fd=proc_fd).st_uid
        known = pidfd_info.info(pidfd)
        if identities.ended(pidfd):
            return None
    except OSError:
        return None
    finally:
        os.close(pidfd)
    if before is not None and (before.stat.group, before.stat.session) == (group, session):
        stat = before.stat
    else:  # another process with that pid, or a new one: nothing of it was read
        before, stat = None, procfs.Stat(pid, UNREAD, UNREAD, 0, group, session, False, 0, 1, 0, 0)
    parent = stat.parent_pid if known is None else known.parent_pid
    row = Row(stat, uid) if before is None else before
    return row._replace(stat=stat._replace(parent_pid=parent, state=UNREAD), uid=uid)


@bounded
def wrapper_of(main: Identity, name: str) -> Identity | None:
    """The parent of a main process if it is the wrapper with that comm, which adopts the agent's orphans."""
    try:
        parent = procfs.stat(main.pid).parent_pid
        stat = procfs.stat(parent)
        found = identities.read_identity(parent, main.host) if stat.name == name else None
        alive = identities.presence(main, None) is Presence.ALIVE  # so the parent that was read is this process's
    except (OSError, ValueError):
        return None
    return found if alive else None


def cgroup_of(main: Identity) -> str | None:
    """The cgroup of a main process, known before the first scan; None when it is gone or cannot be read."""
    try:
        found = procfs.cgroup_path(procfs.cgroup_lines(main.pid))
    except OSError:
        return None
    return found if identities.presence(main, None) is Presence.ALIVE else None


def has_terminal(main: Identity) -> bool:
    """Whether a main process has a controlling terminal (tty_nr, field 7 of stat): without one it is in no pane."""
    try:
        device, start_ticks = procfs.terminal(main.pid)
        return device != 0 and start_ticks == main.start_ticks
    except (OSError, ValueError):
        return False


def _read(path: str, proc_fd: int) -> bytes:
    """Read once: one read returns a whole stat line."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _with_details(row: Row, proc_fd: int, want_marks: bool, want_cgroup: bool, before: Row | None) -> tuple[Row, bool]:
    """The row with its marks and its cgroup, and whether all of them could be read now."""
    pid, whole = row.stat.pid, True
    if before is not None and before.stat.start_ticks != row.stat.start_ticks:
        before = None
    try:
        if want_marks:
            same = before is not None
            try:
                marks = row.marks if row.marker is not None or row.vendors else _read_before(row, before)
                if marks is None:
                    same, marks = False, marks_of(pid, proc_fd)
            except Unreadable:
                whole, marks = False, (None, None, None) if before is None else before.marks
            row = row._replace(marker=marks[0], vendors=marks[1], terminal=marks[2])
            if row.stat.session == pid:  # a service has left its starter's session
                row = row._replace(service=before.service if before and same else _service(pid, proc_fd, before))
        if want_cgroup or row.marker is not None or row.vendors:
            try:
                with bounds.Reading(pid, "cgroup"):
                    row = row._replace(cgroup=procfs.cgroup_path(procfs.read(f"{pid}/cgroup", dir_fd=proc_fd)))
            except Unreadable:
                whole, row = False, row._replace(cgroup=None if before is None else before.cgroup)
    except (FileNotFoundError, ProcessLookupError):
        pass  # vanished since its stat was read: the row is true of that time
    return row, whole


def _service(pid: int, proc_fd: int, before: Row | None) -> str | None:
    """The shared service that a process is a part of; while that cannot be read, the last known one."""
    try:
        with bounds.Reading(pid, "cmdline"):
            words = procfs.read(f"{pid}/cmdline", dir_fd=proc_fd, limit=_WORDS_LIMIT)
        argv = [word for word in words.decode("utf-8", "replace").split("\0") if word]
        with bounds.Reading(pid, "exe"):
            return service_of(argv, os.readlink(f"{pid}/exe", dir_fd=proc_fd))
    except (Unreadable, PermissionError):
        return None if before is None else before.service


def _read_before(row: Row, before: Row | None) -> Marks | None:
    """Its marks at the last scan if they are unchanged or must not be read now; None: read them. Raises OSError if they
    must not be read and were not read before."""
    marks = None if before is None or before.vendors is None else before.marks
    if row.stat.state not in ("D", UNREAD):
        return marks if before is not None and before.stat.faults == row.stat.faults > 0 else None
    if marks is None:
        raise OSError("in uninterruptible sleep and not seen before")
    return marks


def marks_of(pid: int, proc_fd: int) -> Marks:
    """Our marker's value, the vendors' "NAME=value" and the terminal in /proc/PID/environ; the rest is discarded here.

    If a name occurs twice the first counts, as with getenv(3).
    """
    environ = b"\0" + procfs.environ(pid, dir_fd=proc_fd, limit=_ENVIRON_LIMIT)
    found: dict[str, str] = {}
    for name, needle in _NEEDLES:
        start = environ.find(needle)
        if start >= 0:
            end = environ.find(b"\0", start + len(needle))
            value = environ[start + len(needle) : end if end >= 0 else len(environ)]
            if 0 < len(value) <= _VALUE_LIMIT:
                found[name] = value.decode("ascii", "replace")
    marker = found.pop(MARKER, None)
    said = [pattern.fullmatch(found.pop(name, "")) for name, pattern in TERMINALS.items()]
    terminal = next((int(match[1][-9:]) for match in said if match), None)
    return marker, frozenset(f"{name}={value}" for name, value in found.items()), terminal


def sees_other_users() -> bool:
    """Whether /proc shows us other users' processes, that is, no hidepid. Process 1 is root's."""
    try:
        return modes.S_ISDIR(os.stat(f"{procfs.PROC}/1").st_mode)
    except OSError:
        return False
