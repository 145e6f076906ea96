"""What /proc shows an owner of its own processes, for sources whose registry says too little of them."""

import functools
import os
import time
from dataclasses import dataclass

from watchdog.owner import environments, parsing, proc_files

MOST_WORDS = 65536  # bytes of a command line


@functools.cache
def pid_max() -> int:
    """The greatest pid here: a number above is none."""
    with open("/proc/sys/kernel/pid_max", "rb") as file:
        return int(file.read())


@functools.cache
def this_boot() -> str:
    """The id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read().decode().strip()


def as_pid(value: object) -> int | None:
    """The value where it can be the pid of an agent."""
    return value if type(value) is int and 1 < value <= pid_max() else None


@parsing.outside
def link(pid: int, name: str) -> str:
    """Where `cwd` or `exe` of a process leads; empty where the kernel does not show it to us."""
    try:
        return os.readlink(f"/proc/{pid}/{name}") if name in ("cwd", "exe") else ""
    except OSError:
        return ""


@parsing.outside
def environ(pid: int) -> dict[str, str]:
    """What this uid started a process with; nothing where the kernel does not show it to us, or another uid did."""
    return environments.of(pid)


@dataclass(frozen=True, slots=True)
class Process:
    """One process, as it is now."""

    pid: int
    parent: int
    ticks: int  # field 22 of /proc/PID/stat
    words: tuple[str, ...]  # its command line


def process(pid: int) -> Process | None:
    """That process; None where there is none, or only what is left of one."""
    try:
        fields = proc_files.read(pid, "stat").rpartition(b")")[2].split()
        words = os.fsdecode(proc_files.read(pid, "cmdline", MOST_WORDS)).split("\0")[:-1]
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[1]), int(fields[19]), tuple(words))


def began(ticks: int) -> float:
    """When a process of this boot with those start ticks was started, in epoch seconds of the clock as it is now."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def own_processes() -> dict[int, Process]:
    """All of this uid's."""
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
