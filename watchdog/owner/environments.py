"""The environment that a process was started with, if this uid chose it (`core.environment`)."""

import os

from watchdog.core.environment import AUXILIARY_BYTES, ENVIRONMENT_BYTES, is_chosen_by, variables
from watchdog.owner import proc_files


def of(pid: int) -> dict[str, str]:
    """Its variables; empty if they cannot be read, or if another uid or the caller of a set-uid program chose them."""
    try:
        before = _auxiliary(pid)
        if not is_chosen_by(os.geteuid(), before):
            return {}
        text = os.fsdecode(proc_files.read(pid, "environ", ENVIRONMENT_BYTES))
        if _auxiliary(pid) != before:  # it has called execve meanwhile: the addresses in auxv are random (ASLR)
            return {}
    except OSError:
        return {}
    return variables(text)


def _auxiliary(pid: int) -> bytes:
    return proc_files.read(pid, "auxv", AUXILIARY_BYTES)
