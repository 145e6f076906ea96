"""Locks of worktrees (`git worktree lock --reason TEXT`): one whose text proves that its maker has ended is none.

Programs lock the worktree of an agent for as long as they live and write who they are into the reason: `pid 4711`,
perhaps with `start N` (field 22 of /proc/PID/stat). One that was killed takes nothing back. Proved means: one pid is
named, no process has it here, nor in a container of this host; or another process has it by now, as the start tells.
Everything else is a statement and holds: a person's reason, another host's, one that cannot be looked at.
"""

import os
import re
import socket

from watchdog.core.mounts import REMOTE
from watchdog.owner import paths, proc_files

PID = re.compile(r"\bpid\b['\"]?[\s:=#]{0,3}(\d{1,10})\b", re.I)
START = re.compile(r"\b(?:proc[ _-]?)?start(?:[ _-]?(?:ticks|time))?\b['\"]?[\s:=]{0,3}(\d{1,20})\b(?![-:.T])", re.I)
HOST = re.compile(r"\bhost(?:name)?\b['\"]?[\s:=]{1,3}['\"]?([\w.-]+)|\w@([\w.-]+)", re.I)


def ended_maker(reason: str, git_dir: str) -> str:
    """In words which process made the lock, where it is proved to have ended; "" where nothing proves that.

    `git_dir`: git's entry of the worktree, where the lock lies. Raises OSError.
    """
    pids = {int(number) for number in PID.findall(reason)}
    if len(pids) != 1:
        return ""
    (pid,) = pids
    hosts = {one for pair in HOST.findall(reason) for one in pair if one}
    if hosts - {socket.gethostname(), socket.gethostname().partition(".")[0], "localhost"}:
        return ""
    directory = paths.open_directory(git_dir)
    try:
        if REMOTE.fullmatch(paths.file_system(directory)):
            return ""
    finally:
        os.close(directory)
    started = {int(number) for number in START.findall(reason)}
    if len(started) > 1 or not 1 < pid <= 4_194_304:  # 2^22, the kernel's own limit (proc(5), pid_max)
        return ""
    ticks = next(iter(started), None)
    if _lives(pid, ticks) or _lives_inside(pid):
        return ""
    return f"process {pid}, which made its lock, has ended"


def _lives(pid: int, ticks: int | None) -> bool:
    """Whether it may be there: hidden, unreadable, another one where nothing tells them apart."""
    try:
        os.close(os.pidfd_open(pid))  # also tells of one that /proc hides (hidepid)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    if ticks is None:
        return True
    try:
        return int(proc_files.read(pid, "stat").rpartition(b")")[2].split()[19]) == ticks
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
