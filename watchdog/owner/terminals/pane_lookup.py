"""Which process is at which terminal, from /proc, for processes of our own uid; independent of terminal programs.

Tests: tests/owner/terminals/test_panes.py, tests/owner/terminals/test_tmux.py.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from watchdog.core.vendors import VENDORS, is_launcher, runs_as
from watchdog.errors import OwnerCallFailed
from watchdog.owner import environments, proc_files

CHAIN = 100  # maximum number of processes from an agent up to its pane
WRAPPER = "agent-watchdog"  # comm of `run`
TERMINAL = re.compile(r"/dev/(pts/[0-9]{1,7}|tty[A-Za-z0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class PaneProcess:
    """The fields of /proc/PID/stat that matter here (proc(5)). `device`: of its controlling terminal, 0 for none."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    device: int
    foreground: int  # process group of its terminal
    ticks: int


def stat_of(pid: int) -> PaneProcess:
    """The stat fields of a process. Raises OwnerCallFailed (`left`) if there is no such process."""
    try:
        head, _, tail = proc_files.read(pid, "stat").rpartition(b")")
    except proc_files.ReadHung as error:
        raise OwnerCallFailed("unreadable", str(error.strerror)) from error
    except OSError as error:
        raise OwnerCallFailed("left", f"process {pid} has ended") from error
    fields = tail.split()
    numbers = [int(fields[index]) for index in (1, 2, 3, 4, 5, 19)]
    parent, group, session, device, foreground, ticks = numbers
    name = head.partition(b" (")[2].decode("utf-8", "replace")
    return PaneProcess(pid, name, fields[0].decode(), parent, group, session, device & 0xFFFFFFFF, foreground, ticks)


def lives(pid: int, ticks: int) -> bool:
    """Whether it is still that process, and not a zombie."""
    try:
        found = stat_of(pid)
    except OwnerCallFailed:
        return False
    return found.ticks == ticks and found.state not in "ZX"


def above(pid: int) -> list[PaneProcess]:
    """A process and its ancestors up to init's children. Raises OwnerCallFailed (`left`)."""
    found = [stat_of(pid)]
    while found[-1].parent > 1 and len(found) < CHAIN:
        found.append(stat_of(found[-1].parent))
    return found


def words_of(pid: int) -> list[str]:
    """Its command line; empty if it cannot be read."""
    try:
        return os.fsdecode(proc_files.read(pid, "cmdline", 4096)).rstrip("\0").split("\0")
    except OSError:
        return []


def is_waiting(one: PaneProcess) -> bool:
    """Whether it only started another program and waits for it: `run`, or a launcher."""
    return one.name == WRAPPER or is_launcher(words_of(one.pid))


def vendor_at(main: PaneProcess) -> tuple[str, int, list[str]] | None:
    """The vendor whose program is in the foreground of an agent's terminal, its pid and arguments; None: none known.

    The program is the agent's main process or a descendant.
    """
    for one in chain([main], _in_group(main.foreground)):
        if one.pid != main.pid and all(each.pid != main.pid for each in above(one.pid)):
            continue
        words = words_of(one.pid)
        try:
            program = os.readlink(f"/proc/{one.pid}/exe")
        except OSError:
            program = ""
        for vendor in VENDORS:
            if runs_as(vendor, words[:8], program) is not None:
                return vendor, one.pid, words
    return None


def reads_terminal(pid: int) -> bool:
    """Whether the stdin of a process is a terminal."""
    try:
        return TERMINAL.fullmatch(os.readlink(f"/proc/{pid}/fd/0")) is not None
    except OSError:
        return False


def _in_group(group: int) -> Iterator[PaneProcess]:
    """The processes of a process group, oldest first; a generator, so /proc is scanned only when used."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and proc_files.uid_of(name) == os.geteuid():
            try:
                one = stat_of(int(name))
            except (OwnerCallFailed, ValueError, IndexError):
                continue
            if one.group == group:
                found.append(one)
    yield from sorted(found, key=lambda one: (one.ticks, one.pid))


def environment(pid: int, names: tuple[str, ...]) -> dict[str, str]:
    """These variables of its initial environment; none if it cannot be read, or another uid chose it."""
    return {name: value for name, value in environments.of(pid).items() if name in names}


def uids(pid: int) -> set[int]:
    """Its real, effective, saved and file system uid (proc(5)). Raises OwnerCallFailed (`left`)."""
    try:
        lines = proc_files.read(pid, "status").splitlines()
    except OSError as error:
        raise OwnerCallFailed("left", f"process {pid} has ended, or cannot be read") from error
    return {int(number) for line in lines if line.startswith(b"Uid:") for number in line.split()[1:]}


def device_of(path: str) -> int:
    """The device number of a terminal as in /proc/PID/stat: minor in bits 31 to 20 and 7 to 0, major in 15 to 8; or 0.

    Only names of terminals are accepted, as `path` comes from a server.
    """
    if not TERMINAL.fullmatch(path):
        return 0
    try:
        number = os.stat(path).st_rdev
    except OSError:
        return 0
    major, minor = os.major(number), os.minor(number)
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


def others(first: int, device: int, known: frozenset[tuple[int, int]]) -> list[PaneProcess]:
    """Other processes in a pane, not in `known`: those on its terminal, and children of its first process.

    Zombies and the first process itself do not count.
    """
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == first:
            continue
        try:
            one = stat_of(int(name))
        except OwnerCallFailed as error:
            if error.reason == "unreadable" and proc_files.uid_of(name) == os.geteuid():
                raise  # it may be in the pane
            continue
        except (ValueError, IndexError):
            continue
        inside = one.parent == first or (device and one.device == device)
        if inside and one.state not in "ZX" and (one.pid, one.ticks) not in known:
            found.append(one)
    return found
