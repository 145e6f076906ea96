"""The environment that a process was started with, if the daemon's own uid chose it."""

import os

from watchdog.core.environment import AUXILIARY_BYTES, ENVIRONMENT_BYTES, is_chosen_by, variables
from watchdog.processes import procfs
from watchdog.processes.bounded import bounded


@bounded
def environment(pid: int) -> dict[str, str]:
    """Its variables; empty if they cannot be read, or if another uid or the caller of a set-uid program chose them.

    Raises LookFailed when a read hangs.
    """
    try:
        proc = os.open(procfs.PROC, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            before = _auxiliary(pid)
            if not is_chosen_by(os.geteuid(), before):
                return {}
            text = os.fsdecode(procfs.environ(pid, dir_fd=proc, limit=ENVIRONMENT_BYTES))
            if _auxiliary(pid) != before:  # it has called execve meanwhile: the addresses in auxv are random (ASLR)
                return {}
        finally:
            os.close(proc)
    except (OSError, ValueError):
        return {}
    return variables(text)


def _auxiliary(pid: int) -> bytes:
    return procfs.read_of(pid, "auxv")[:AUXILIARY_BYTES]
