"""How a process exited, also if it was not our child."""

import os

from watchdog.processes import identity as identities
from watchdog.processes import pidfd_info, procfs


def exit_status(pidfd: int) -> tuple[int | None, int | None] | None:
    """(exit code, None) or (None, signal) of any exited process; None when the kernel cannot say.

    Reaped: PIDFD_GET_INFO (kernel >= 6.15). Zombie: field 52 of its stat, which reads 0 without the right to see it
    (proc(5)), so a 0 is trusted only for processes of our own uid, or as root.
    """
    info = pidfd_info.info(pidfd)
    status = None if info is None else info.exit_status
    if status is None:
        status = _zombie_status(pidfd)
    if status is None:
        return None
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def _zombie_status(pidfd: int) -> int | None:
    try:
        pid = identities.pid_of(pidfd)
        if pid is None or not identities.ended(pidfd):
            return None
        status = procfs.exit_status(pid)
        found = identities.uids(pidfd)
        entitled = status != 0 or os.geteuid() == 0 or (found is not None and found.one == os.geteuid())
        return status if entitled and identities.pid_of(pidfd) == pid else None
    except (OSError, ValueError):
        return None
