"""Processes in pid namespaces below ours, by their pid there."""

import os

from watchdog.processes import bounded as bounds
from watchdog.processes import procfs
from watchdog.processes.bounded import bounded


@bounded
def numbered_inside(numbers: tuple[int, ...], uid: int) -> dict[int, int]:
    """Map each of these inner pids to the pid here of a process of that uid that has it in its own pid namespace
    (NSpid, proc(5)).

    Raises OSError where /proc cannot be listed.
    """
    pids = [int(name) for name in os.listdir(procfs.PROC) if name.isdigit()]
    found = bounds.each(pids, lambda pid: _number_inside(pid, uid))
    return {inside: pid for pid, inside in found.items() if inside in numbers and inside != pid}


def _number_inside(pid: int, uid: int) -> int | None:
    """Its innermost pid, if it is in a namespace below ours and of that uid; else None. Raises OSError."""
    lines = dict(line.partition(b":")[::2] for line in procfs.read_of(pid, "status").splitlines())
    owner, numbers = lines.get(b"Uid", b"").split(), lines.get(b"NSpid", b"").split()
    return int(numbers[-1]) if len(numbers) > 1 and owner[1:2] == [b"%d" % uid] else None
