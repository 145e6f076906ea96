"""A bounded snapshot of a tree for the history: what each process was doing at the time of a verdict.

It holds no environment, no command line beyond the program's base name, and no secret that `core.redaction` recognises.
A failed read is recorded in the snapshot, never raised. Bounds: 64 processes, 16 KiB of JSON, 256 descriptors per
process and 2,048 in all.
"""

import json
import os
from collections.abc import Iterable

from watchdog.core.process import TreeMember
from watchdog.core.redaction import hide_secrets
from watchdog.processes import bounded as bounds
from watchdog.processes import procfs
from watchdog.processes.bounded import bounded

MAX_PROCESSES = 64
MAX_BYTES = 16 * 1024
_MAX_DESCRIPTORS = 256
_MAX_DESCRIPTORS_IN_ALL = 2048
_MAX_PORTS = 16
_MAX_SOCKET_TABLE = 256 * 1024  # bytes of /proc/PID/net/tcp
_LISTEN = b"0A"  # TCP_LISTEN, include/net/tcp_states.h


@bounded
def snapshot(members: Iterable[TreeMember]) -> dict[str, object]:
    """`{"processes": [...], "omitted": n}`, in the order given; `omitted` counts processes that did not fit.

    Per process: pid, ppid, name, program, state, via, wchan, cpu_seconds, rss_bytes, threads, age_seconds, ports; and
    `failed`, the failed reads with their errors. A process that has exited meanwhile is marked `gone`.
    """
    given = list(members)
    uptime = _uptime()
    listening: dict[int, dict[int, int]] = {}
    budget = [_MAX_DESCRIPTORS_IN_ALL]
    processes: list[dict[str, object]] = []
    size = len('{"processes": [], "omitted": 0000000000}')
    first = given[:MAX_PROCESSES]
    entries = bounds.each(range(len(first)), lambda number: _entry(first[number], uptime, listening, budget))
    for number, member in enumerate(first):
        entry = entries[number]
        if isinstance(entry, OSError):  # a read after that of its stat line hangs
            entry = _as_seen(member) | {"failed": {"read": _word(entry)}}
        size += len(json.dumps(entry)) + 2
        if size > MAX_BYTES:
            break
        processes.append(entry)
    return {"processes": processes, "omitted": len(given) - len(processes)}


def _entry(
    member: TreeMember, uptime: float | None, listening: dict[int, dict[int, int]], budget: list[int]
) -> dict[str, object]:
    pid = member.identity.pid
    failed: dict[str, str] = {}
    entry = _as_seen(member)
    try:
        stat = procfs.stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return {**entry, "gone": True}
    except (OSError, ValueError) as error:
        return {**entry, "failed": {"stat": _word(error)}}
    if stat.start_ticks != member.identity.start_ticks:
        return {**entry, "gone": True}
    entry |= {
        "ppid": stat.parent_pid,
        "name": stat.name,
        "state": stat.state,
        "cpu_seconds": round(stat.cpu_ticks / procfs.TICKS_PER_SECOND, 2),
        "rss_bytes": stat.rss_pages * procfs.PAGE_BYTES,
        "threads": stat.threads,
    }
    if uptime is not None:
        entry["age_seconds"] = round(max(0.0, uptime - stat.start_ticks / procfs.TICKS_PER_SECOND), 1)
    try:
        wchan = procfs.read_of(pid, "wchan").decode("ascii", "replace")[:64]
        if wchan not in ("", "0"):  # 0: running, or not visible to us
            entry["wchan"] = wchan
    except OSError as error:
        failed["wchan"] = _word(error)
    if stat.state not in "ZXD":  # reading the memory of a process in uninterruptible sleep can block too
        try:
            program = _program(pid)
            if program:
                entry["program"] = program
        except OSError as error:
            failed["program"] = _word(error)
    try:
        ports = _ports(pid, listening, budget)
        if ports:
            entry["ports"] = ports
    except OSError as error:
        failed["ports"] = _word(error)
    if failed:
        entry["failed"] = failed
    return entry


def _as_seen(member: TreeMember) -> dict[str, object]:
    """What the last scan recorded about it."""
    return {
        "pid": member.identity.pid,
        "ppid": member.parent_pid,
        "name": member.name,
        "state": member.state,
        "via": member.via,
        "cpu_seconds": round(member.cpu_seconds, 2),
        "rss_bytes": member.rss_bytes,
    }


def _program(pid: int) -> str:
    """The base name of argv[0]. A program may have set a title there: only its first word is used, without secrets."""
    title = procfs.read_of(pid, "cmdline", limit=1024).split(b"\0", 1)[0].decode("utf-8", "replace")
    words = hide_secrets(title).split()  # as a whole: the text before a secret identifies it
    return os.path.basename(words[0])[:64] if words else ""


def _ports(pid: int, listening: dict[int, dict[int, int]], budget: list[int]) -> list[int]:
    """TCP ports that the process listens on, as far as the budget of descriptors allows.

    To show a socket table the kernel walks its whole hash (2 ms each on an idle host), so this is done only for a
    process that has a socket.
    """
    held: set[int] = set()
    with bounds.Reading(pid, "fd"):
        for name in os.listdir(f"{procfs.PROC}/{pid}/fd")[: min(_MAX_DESCRIPTORS, budget[0])]:
            budget[0] -= 1
            try:
                target = os.readlink(f"{procfs.PROC}/{pid}/fd/{name}")
            except OSError:
                continue  # closed meanwhile
            if target.startswith("socket:["):
                held.add(int(target[8:-1]))
    if not held:
        return []
    with bounds.Reading(pid, "ns"):
        namespace = os.stat(f"{procfs.PROC}/{pid}/ns/net").st_ino
    if namespace not in listening:
        listening[namespace] = _listening(pid)
    sockets = listening[namespace]
    return sorted({sockets[inode] for inode in held & sockets.keys()})[:_MAX_PORTS]


def _listening(pid: int) -> dict[int, int]:
    """Socket inode -> port of the listening TCP sockets in that process's network namespace (proc(5))."""
    found: dict[int, int] = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = procfs.read_of(pid, f"net/{table}", limit=_MAX_SOCKET_TABLE).splitlines()[1:]
        except FileNotFoundError:
            continue  # no IPv6
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN:
                found[int(fields[9])] = int(fields[1].rpartition(b":")[2], 16)
    return found


def _uptime() -> float | None:
    try:
        return float(procfs.read("/proc/uptime").split()[0])
    except (OSError, ValueError):
        return None


def _word(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error))[:60]
