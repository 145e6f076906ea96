"""One living process: its ancestors, and the marker that it was started with; without a scan."""

import os

from watchdog.processes import procfs
from watchdog.processes.bounded import bounded
from watchdog.processes.table import marks_of

MOST = 256  # generations


@bounded
def lineage(pid: int) -> frozenset[tuple[int, int]]:
    """The process and its ancestors, as pid and start ticks, as far up as is visible. Raises OSError."""
    found: list[tuple[int, int]] = []
    while pid > 0 and len(found) < MOST:
        try:
            stat = procfs.stat(pid)
        except OSError:
            if not found:
                raise
            break  # it has just exited: its children are reparented
        found.append((pid, stat.start_ticks))
        pid = stat.parent_pid
    if not found:
        raise ProcessLookupError("it has no number here: another pid namespace (unix(7))")
    return frozenset(found)


@bounded
def marker(pid: int) -> str | None:
    """The value of AGENT_WATCHDOG_ID in its environment. Raises OSError."""
    proc = os.open(procfs.PROC, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return marks_of(pid, proc)[0]
    finally:
        os.close(proc)
