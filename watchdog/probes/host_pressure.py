"""Whether the host is so busy that a silence means little: a process that waits for a CPU cannot beat.

By PSI (Documentation/accounting/psi.rst) together with the load: three spinning programs on two cores make `some` 100 %
and starve no process. Without PSI in the kernel (psi=0), by the load alone.
"""

import os

from watchdog.processes.procfs import PROC, read

LOAD = 2.0  # runnable tasks per core, from which pressure counts
LOAD_ALONE = 4.0  # where there is no PSI
MEMORY = 40.0  # percent of the time in which all tasks waited for memory; systemd-oomd acts at 60


def host_pressure(cpu_percent: float) -> str | None:
    """The reason, as text; None when the host is not busy or that is unknown. `cpu_percent` of 100 switches it off."""
    if cpu_percent >= 100:
        return None
    cpu, memory = _average("cpu", b"some"), _average("memory", b"full")
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return judged(cpu, memory, load, cpu_percent)


def judged(cpu: float | None, memory: float | None, load: float, cpu_percent: float) -> str | None:
    """The same from numbers: percent of the last ten seconds (None: unknown), runnable tasks per core."""
    if cpu is not None and cpu >= cpu_percent and load >= LOAD:
        return f"the host is overloaded: tasks waited for a CPU in {cpu:.0f}% of the time, load {load:.1f} a core"
    if cpu is None and load >= LOAD_ALONE:
        return f"the host is overloaded: load {load:.1f} a core"
    if memory is not None and memory >= MEMORY:
        return f"the host is out of memory: all tasks waited for it in {memory:.0f}% of the time"
    return None


def _average(what: str, line: bytes) -> float | None:
    """avg10 of one line of /proc/pressure, in percent."""
    try:
        for words in read(f"{PROC}/pressure/{what}").splitlines():
            kind, _, rest = words.partition(b" avg10=")
            if kind == line:
                return float(rest.split()[0])
    except (OSError, ValueError, IndexError):
        pass
    return None
