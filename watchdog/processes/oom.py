"""Processes that the kernel's OOM killer killed, as memory cgroups count them (see `agents.oom`).

Tests: tests/processes/test_cgroups.py.
"""

import os

from watchdog.processes import bounded as bounds
from watchdog.processes import cgroups
from watchdog.processes.bounded import bounded


@bounded
def counts(pids: tuple[int, ...]) -> dict[int, dict[str, int] | OSError]:
    """`counts_of` for many processes, or the error of each that cannot be read."""
    known: dict[str, int | None] = {}
    return bounds.each(pids, lambda pid: counts_of(pid, known))


def counts_of(pid: int, known: dict[str, int | None]) -> dict[str, int]:
    """Processes that the kernel's OOM killer has killed, by the directory of a process's memory cgroups.

    v2's `memory.events` (oom_kill) includes all cgroups below, so the parent, which outlives its child, is returned as
    second entry; if v1 has the controller, its `memory.oom_control`, which counts only itself (seen on 6.18). Empty if
    nothing counts: the root, no controller. `known`: a cache for this scan; many agents share a cgroup. Raises as
    `cgroups.path_of`.
    """
    controller = "memory" if cgroups.version_1("memory") is not None else ""
    mount = cgroups.version_1(controller) if controller else cgroups.version_2()
    path = None if mount is None else cgroups.path_of(pid, controller)
    found = {}
    for each in () if path is None else (path,) if controller else (path, os.path.dirname(path)):
        directory = None if mount is None else mount.directory_of(each)
        if directory is None:
            continue
        if directory not in known:
            known[directory] = kills_in(directory)
        if (count := known[directory]) is not None:
            found[directory] = count
    return found


def kills_in(directory: str) -> int | None:
    """The current count of one memory cgroup, v1 or v2; None when it is gone, or does not count."""
    for name in ("memory.events", "memory.oom_control"):  # a kernel before 4.13 does not count in the second
        try:
            return cgroups.numbers_in(f"{directory}/{name}").get("oom_kill")
        except OSError:
            continue
    return None
