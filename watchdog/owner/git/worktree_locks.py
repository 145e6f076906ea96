"""Locks of worktrees (`git worktree lock --reason TEXT`): one whose text proves that its maker has ended is none.

Programs lock the worktree of an agent for as long as they live and write who they are into the reason (`FORMS`). One
that was killed takes nothing back. Only a text that is such a form from its first character to its last says who made
the lock: any other word in it makes it a person's, which holds until it is taken away, whatever numbers it names.

Proved means: no process has that number here, nor in a container of this host; or the one that has it was started after
the maker, by ticks since boot (field 22 of /proc/PID/stat). A start that cannot be that is of another boot or host or
in another unit, and proves nothing. Nor does anything where we see only a part of this host's processes.
"""

import os
import re
import time

from watchdog.core.mounts import REMOTE
from watchdog.owner import paths, proc_files

_PID = "(?P<pid>[1-9][0-9]{0,9})"
FORMS = (
    # Claude Code, which names its `agent`s and `session`s without spaces; the start is left out by older versions, and
    # no ticks on other systems ("Fri Jun 19 21:37:40 2026").
    re.compile(
        rf"claude (?:agent|session) [\w./+@…-]{{1,255}} \(pid {_PID}(?: start (?P<ticks>[1-9][0-9]{{0,18}}))?\)"
    ),
    re.compile(rf"openclaw pid={_PID}"),  # OpenClaw
)
HOST_PIDS = "pid:[4026531836]"  # the first pid namespace, PROC_PID_INIT_INO of include/linux/proc_ns.h
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def ended_maker(reason: str, git_dir: str) -> str:
    """In words which process made the lock, where it is proved to have ended; "" where nothing proves that.

    `git_dir`: git's entry of the worktree, where the lock lies. Raises OSError.
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
    """Whether /proc shows all of this host's processes: in a container, and with hidepid, a number says nothing."""
    try:
        return os.readlink("/proc/self/ns/pid") == HOST_PIDS and os.path.isdir("/proc/1")
    except OSError:
        return False


def _lives(pid: int, ticks: int | None) -> bool:
    """Whether it may be there: hidden, unreadable, or nothing tells that another one has its number.

    One that has had it since before the maker's start was here when the maker was elsewhere.
    """
    try:
        os.close(os.pidfd_open(pid))  # also tells of one that /proc hides (hidepid)
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
    """Whether a process of another pid namespace has that number there (NSpid, proc(5)), or may have."""
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
