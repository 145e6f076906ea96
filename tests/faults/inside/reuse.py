"""Forced reuses of a pid: the next process gets the same number at once. usage: reuse TIMES pidfs|bare|registered

Needs a pid namespace of its own (ns_last_pid). Whoever gets the number blocks TERM, so one that was sent in error stays
pending. `pidfs`: identities with the pidfd's inode. `bare`: without, and nobody holds a pidfd. `registered`: without
inodes, but read as the daemon reads who is registered, and asked of `pin` as well.
"""

import json
import os
import signal
import sys
from pathlib import Path

from tests.processes.conftest import pending
from watchdog.core.process import Identity
from watchdog.errors import SignalRefused
from watchdog.processes import identity as identities
from watchdog.processes import procfs
from watchdog.processes.signals import Guard, send

HOST = "h"


def spawn(*, lasting: bool) -> int:
    """A child that does nothing, for ever or just as long as it takes to end."""
    pid = os.fork()
    if pid == 0:
        if lasting:
            signal.pause()
        os._exit(0)
    return pid


def bare(pid: int) -> Identity:
    """Number and tick alone, as read in any tick: a scan's row, or an older version's."""
    stat = procfs.parse_stat(procfs.read(f"/proc/{pid}/stat"))
    return Identity(HOST, identities.boot_id(), pid, stat.start_ticks)


def known(pid: int) -> Identity:
    found = identities.read_identity(pid, HOST)
    assert found is not None
    return found


def said(identity: Identity, pidfd: int | None) -> str:
    """What one TERM came to."""
    try:
        return str(send(identity, signal.SIGTERM, Guard(HOST), pidfd))
    except SignalRefused as refusal:
        return refusal.reason


def main(times: int, mode: str) -> dict[str, int]:
    if mode != "pidfs":
        identities.use_pidfd_inodes(False)
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # both start within 10 ms, however busy the machine is
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    last_pid = Path("/proc/sys/kernel/ns_last_pid")
    count = dict.fromkeys(("reused", "same_tick", "wrong", "sent", "gone", "unpinned", "pinned"), 0)
    while count["reused"] < times:
        pid = spawn(lasting=False)
        old = bare(pid) if mode == "bare" else known(pid)
        held = identities.open_pidfd(pid)
        os.waitpid(pid, 0)
        last_pid.write_text(str(pid - 1))
        impostor = spawn(lasting=True)
        if impostor == pid:
            count["reused"] += 1
            count["same_tick"] += bare(pid).start_ticks == old.start_ticks
            count[said(old, None)] += 1
            assert said(old, held) == "gone"
            if mode != "bare":
                found = identities.pin(old)
                count["pinned"] += found is not None
            count["wrong"] += pending(pid) != 0
        if held is not None:
            os.close(held)
        os.kill(impostor, signal.SIGKILL)
        os.waitpid(impostor, 0)
    return count


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2])))
