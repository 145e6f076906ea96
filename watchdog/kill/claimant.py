"""Who holds a claim on a kill request: a daemon's whole identity as text, and whether that daemon is gone."""

import os
from functools import cache

from watchdog.core.process import Identity, Presence
from watchdog.processes.identity import boot_id, presence, read_identity


@cache
def claimant(host: str) -> str:
    """This daemon: its host, boot, pid and start ticks."""
    me = read_identity(os.getpid(), host)
    ticks = me.start_ticks if me else 0  # a daemon always sees itself; 0 is nobody's, so it reads as gone
    return f"daemon {os.getpid()} {ticks} of boot {boot_id()} of host {host}"


def gone(claimed_by: str | None, host: str) -> bool:
    """Whether nobody holds the claim any more: there is none, or its daemon's process is proved absent.

    A claim of another boot of this host is nobody's: that boot is over, or its daemon would be heard (`claim_host`).
    Text that no daemon of ours wrote names no process, so nobody can be asked.
    """
    words = (claimed_by or "").split(" ", 8)
    if len(words) != 9 or not (words[1].isdigit() and words[2].isdigit()):
        return True
    identity = Identity(host=words[8], boot_id=words[5], pid=int(words[1]), start_ticks=int(words[2]))
    if identity.pid == os.getpid() and claimed_by == claimant(host):
        return True  # our own, and we know of no such order: the answer to our claim was lost
    return presence(identity, None, host=host) is Presence.ABSENT
