"""The uids of the process that a call is about: a helper looks at its own user's processes alone.

The daemon has looked as well, but a moment ago: the process may have changed its uids since (gosu, sudo). What is read
of it then (its environment, its open files) would be another user's word, followed with this user's rights.
"""

import os
from typing import Any

from watchdog.errors import OwnerCallFailed
from watchdog.owner import proc_files


def refuse_foreign(args: dict[str, Any]) -> None:
    """Raise OwnerCallFailed `untouchable` where the arguments name a process (`pid`) that is not all this user's."""
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
