"""Processes of other pid namespaces below ours, by the number that they have there."""

import os

from watchdog.processes import bounded as bounds
from watchdog.processes import procfs
from watchdog.processes.bounded import bounded


@bounded
def numbered_inside(numbers: tuple[int, ...], uid: int) -> dict[int, int]:
    """By number the pid here of a process of that uid which has it in a pid namespace of its own (NSpid, proc(5)).

    Raises OSError where /proc cannot be listed.
    """
    pids = [int(name) for name in os.listdir(procfs.PROC) if name.isdigit()]
    found = bounds.each(pids, lambda pid: _number_inside(pid, uid))
    return {inside: pid for pid, inside in found.items() if inside in numbers and inside != pid}


def _number_inside(pid: int, uid: int) -> int | None:
    """Its innermost number where that is another than ours, and it is of that uid. Raises OSError."""
    lines = dict(line.partition(b":")[::2] for line in procfs.read_of(pid, "status").splitlines())
    owner, numbers = lines.get(b"Uid", b"").split(), lines.get(b"NSpid", b"").split()
    return int(numbers[-1]) if len(numbers) > 1 and owner[1:2] == [b"%d" % uid] else None
