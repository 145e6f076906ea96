"""Locks of worktrees (`git worktree lock --reason TEXT`): a lock is stale if its text proves that its maker has exited.

Programs lock an agent's worktree while they run and write their identity into the reason (`FORMS`). A killed program
leaves its lock. Only a text that matches such a form completely identifies the maker: with any other word in it the
lock counts as a person's, which holds until it is removed, whatever numbers it names.

It is proved if no process has that pid here or in a container of this host; or if the process that has it was started
after the maker, by ticks since boot (field 22 of /proc/PID/stat). An impossible start is from another boot or host or
in another unit, and proves nothing. Nor is anything proved if only some of this host's processes are visible.
"""

import os
import re
import time

from watchdog.core.mounts import REMOTE
from watchdog.owner import paths, proc_files

_PID = "(?P<pid>[1-9][0-9]{0,9})"
FORMS = (
    # Claude Code, which names its `agent`s and `session`s without spaces; older versions omit the start, and on other
    # systems it is not in ticks ("Fri Jun 19 21:37:40 2026").
    re.compile(
        rf"claude (?:agent|session) [\w./+@…-]{{1,255}} \(pid {_PID}(?: start (?P<ticks>[1-9][0-9]{{0,18}}))?\)"
    ),
    re.compile(rf"openclaw pid={_PID}"),  # OpenClaw
)
HOST_PIDS = "pid:[4026531836]"  # the first pid namespace, PROC_PID_INIT_INO of include/linux/proc_ns.h
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def ended_maker(reason: str, git_dir: str) -> str:
    """Describe the process that made the lock if it is proved to have exited; "": not proved.

    `git_dir`: git's entry of the worktree, which contains the lock. Raises OSError.
    """
    made = next((found for form in FORMS if (found := form.fullmatch(reason.removesuffix("\n")))), None)
    if made is None:
        return ""
    pid, started = int(made["pid"]), made.groupdict().get("ticks")
    ticks = None if started is None else int(started)
    if not 1 < pid <= 4_194_304:  # 2^22, the kernel's own limit (proc(5), pid_max)
        return ""
    if ticks is not None and ticks > time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_SECOND:
        return ""
    directory = paths.open_directory(git_dir)
    try:
        if REMOTE.fullmatch(paths.file_system(directory)):
            return ""
    finally:
        os.close(directory)
    if not _all_are_seen() or _lives(pid, ticks) or _lives_inside(pid):
        return ""
    return f"process {pid}, which made its lock, has ended"


def _all_are_seen() -> bool:
    """Whether /proc shows all of this host's processes: in a container, and with hidepid, a missing pid proves
    nothing.
    """
    try:
        return os.readlink("/proc/self/ns/pid") == HOST_PIDS and os.path.isdir("/proc/1")
    except OSError:
        return False


def _lives(pid: int, ticks: int | None) -> bool:
    """Whether it may be alive: hidden, unreadable, or not proved that another process has its pid.

    A process that started before the maker means that the maker was in another pid namespace.
    """
    try:
        os.close(os.pidfd_open(pid))  # also finds a process that /proc hides (hidepid)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    if ticks is None:
        return True
    try:
        return int(proc_files.read(pid, "stat").rpartition(b")")[2].split()[19]) <= ticks
    except (OSError, ValueError, IndexError):
        return True


def _lives_inside(pid: int) -> bool:
    """Whether a process in another pid namespace has, or may have, that pid there (NSpid, proc(5))."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            status = proc_files.read(int(name), "status")
        except (ProcessLookupError, FileNotFoundError):
            continue
        except OSError:
            return True
        numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith(b"NSpid:")), [])
        if len(numbers) > 1 and int(numbers[-1]) == pid:
            return True
    return False
