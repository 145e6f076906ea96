"""What /proc shows about an owner's own processes, for sources whose registry has too little information."""

import functools
import os
import time
from dataclasses import dataclass

from watchdog.owner import environments, parsing, proc_files

MOST_WORDS = 65536  # bytes of a command line


@functools.cache
def pid_max() -> int:
    """The limit for pids here: a larger number is not a pid."""
    with open("/proc/sys/kernel/pid_max", "rb") as file:
        return int(file.read())


@functools.cache
def this_boot() -> str:
    """The id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read().decode().strip()


def as_pid(value: object) -> int | None:
    """The value if it can be an agent's pid, else None."""
    return value if type(value) is int and 1 < value <= pid_max() else None


@parsing.outside
def link(pid: int, name: str) -> str:
    """The target of a process's `cwd` or `exe`; empty if it is not visible."""
    try:
        return os.readlink(f"/proc/{pid}/{name}") if name in ("cwd", "exe") else ""
    except OSError:
        return ""


@parsing.outside
def environ(pid: int) -> dict[str, str]:
    """The environment of a process that this uid started; empty if it is not visible, or another uid started it."""
    return environments.of(pid)


@dataclass(frozen=True, slots=True)
class Process:
    """One process."""

    pid: int
    parent: int
    ticks: int  # field 22 of /proc/PID/stat
    words: tuple[str, ...]  # its command line


def process(pid: int) -> Process | None:
    """That process; None if it does not exist or is a zombie."""
    try:
        fields = proc_files.read(pid, "stat").rpartition(b")")[2].split()
        words = os.fsdecode(proc_files.read(pid, "cmdline", MOST_WORDS)).split("\0")[:-1]
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[1]), int(fields[19]), tuple(words))


def began(ticks: int) -> float:
    """The start of a process of this boot by its start ticks, in epoch seconds of the current clock."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def own_processes() -> dict[int, Process]:
    """All processes of this uid."""
    found = {}
    for name in os.listdir("/proc"):
        try:
            if not name.isdigit() or os.stat(f"/proc/{name}").st_uid != os.geteuid():
                continue
        except OSError:
            continue
        if one := process(int(name)):
            found[one.pid] = one
    return found
