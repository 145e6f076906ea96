"""Checks the uids of the process that a call is about: a helper only inspects its own user's processes.

The daemon has checked too, but a moment ago: the process may have changed its uids since (gosu, sudo). Then its
environment and open files would be another user's input, acted on with this user's rights.
"""

import os
from typing import Any

from watchdog.errors import OwnerCallFailed
from watchdog.owner import proc_files


def refuse_foreign(args: dict[str, Any]) -> None:
    """Raise OwnerCallFailed `untouchable` if the arguments name a process (`pid`) not all of whose uids are this
    user's.
    """
    pid = args.get("pid")
    if type(pid) is not int:
        return
    try:
        status = proc_files.read(pid, "status")
        line = next(line for line in status.splitlines() if line.startswith(b"Uid:"))
    except (OSError, StopIteration):
        return  # gone, or hidden: the call itself reports what it cannot read
    uids = [int(word) for word in line.split()[1:]]
    if set(uids) != {os.geteuid()}:
        raise OwnerCallFailed("untouchable", f"process {pid} runs with uids {uids}, this helper with {os.geteuid()}")
