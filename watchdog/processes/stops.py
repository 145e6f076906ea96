"""What the kernel reports about stopped processes: by which signal, and whether a debugger holds them."""

import signal

from watchdog.core.halts import StopState
from watchdog.processes import bounded as bounds
from watchdog.processes.bounded import bounded
from watchdog.processes.procfs import read_of


@bounded
def stops(pids: tuple[int, ...]) -> dict[int, StopState]:
    """The state of each process that is stopped now. Those that are gone or unreadable are left out."""
    found = bounds.each(pids, _stop)
    return {pid: stop for pid, stop in found.items() if isinstance(stop, StopState) and stop.state in "tT"}


@bounded
def tracers_of(pids: tuple[int, ...]) -> dict[int, int]:
    """The tracer of each process in a tracing stop. Those that are gone or unreadable are left out."""
    found = {pid: _traced(status) for pid, status in bounds.each(pids, _status).items() if isinstance(status, dict)}
    return {pid: tracer for pid, (state, tracer) in found.items() if state == b"t" and tracer > 0}


def _status(pid: int) -> dict[bytes, bytes]:
    """The lines of its status by key. Raises OSError."""
    return dict(line.partition(b":")[::2] for line in read_of(pid, "status").splitlines())


def _traced(status: dict[bytes, bytes]) -> tuple[bytes, int]:
    """Its state, and its tracer (0: none)."""
    return status.get(b"State", b"").strip()[:1], int(status.get(b"TracerPid", b"0"))


def _stop(pid: int) -> StopState:
    """Its stop state. Field 52 of stat is the stopping signal, for permitted readers, until its parent has waited
    (6.18).

    Raises OSError.
    """
    fields = read_of(pid, "stat").rpartition(b")")[2].split()
    if fields[0] not in (b"t", b"T"):
        return StopState(fields[0].decode("ascii", "replace"))
    _, tracer = _traced(_status(pid))
    number = int(fields[49]) & 0x7F if len(fields) > 49 else 0
    name = signal.Signals(number).name if number in signal.valid_signals() else ""
    return StopState(fields[0].decode(), tracer, name, fields[4] != b"0", fields[5] == fields[2])
